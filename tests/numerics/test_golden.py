import shutil
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import NumericsError
from meshwright.numerics import golden
from meshwright.numerics.backend import available

GOLDEN = Path(__file__).parent.parent / "golden"
FORMAT_OF_FILE = {
    "accumulator": "accumulator",
    "crossmesh": "crossmesh",
    "matmul": "matmul",
    "matmul_machine": "matmul_machine",
    "peer_add": "peer_add",
    "quantise": "quantise",
    "vector_alu": "vector_alu",
    "vector_convert": "vector_convert",
    "vector_reduce": "vector_reduce",
}
VECTORS = {
    "accumulator": 36376,
    "crossmesh": 36608,
    "matmul": 29696,
    "matmul_machine": 14080,
    "peer_add": 6912,
    "quantise": 21060,
    "vector_alu": 54000,
    "vector_convert": 28092,
    "vector_reduce": 90,
}
# For each format the arrays that hold what the machine gave.
RESULTS = {
    "accumulator": ["tile", "emit", "peer_out", "emit_valid"],
    "crossmesh": [
        "case0_partials_fp22",
        "case1_chain_fp16",
        "case1_star_fp22",
        "case0_onemesh_fp16",
        "add_result_fp22",
    ],
    "matmul": ["case0_fp22", "case3_fp16", "case4_pumped_fp22", "case6_pumped_fp16"],
    "matmul_machine": ["integer_64x256x64_c", "tiny_32x32x32_c"],
    "peer_add": ["cancel_32x128x32_c_peer_add", "large_16x256x16_c_single", "normal_32x128x32_c_second_half"],
    "quantise": ["q", "scale_field", "packed_words_a"],
    "vector_alu": ["FMA_out", "EXP2_out", "CMPLT_out", "CMPEQ_pred"],
    "vector_convert": ["f16_to_e8", "e8_to_f16", "f32_to_e8", "e8_to_f32", "acc22_to_e8", "acc22_to_f16"],
    "vector_reduce": ["result"],
}


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {array: file[array] for array in file.files}


def save(path, arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", FORMAT_OF_FILE)
def test_every_value_is_the_machines_on_every_backend(name):
    result = golden.check_file(GOLDEN / f"{name}.npz", available())
    assert result == golden.FileResult(
        GOLDEN / f"{name}.npz", FORMAT_OF_FILE[name], VECTORS[name], dict.fromkeys(available(), 0)
    )
    assert result.ok


@pytest.mark.parametrize(("name", "array"), [(name, array) for name, arrays in RESULTS.items() for array in arrays])
def test_one_changed_bit_is_found(name, array, tmp_path):
    arrays = load(name)
    changed = arrays[array]
    valid = arrays.get(f"{'emit' if array == 'emit' else 'peer'}_valid") if array in ("emit", "peer_out") else None
    at = np.argmax(valid) * 16 if valid is not None else changed.size // 2
    changed.reshape(-1)[at] ^= 1
    result = golden.check_file(save(tmp_path / "some.npz", arrays))
    assert not result.ok
    assert result.error is None
    assert result.mismatches == dict.fromkeys(available(), 1)


@pytest.mark.parametrize(
    ("name", "array"),
    [("matmul", "case4_a"), ("peer_add", "cancel_32x128x32_b"), ("quantise", "x_fp16_bits"), ("accumulator", "anchor")],
)
def test_a_changed_input_is_found(name, array, tmp_path):
    arrays = load(name)
    arrays[array].reshape(-1)[0] ^= 0x40
    result = golden.check_file(save(tmp_path / "some.npz", arrays))
    assert result.error is None
    assert all(result.mismatches.values())


@pytest.mark.parametrize("name", ["matmul", "crossmesh", "matmul_machine", "peer_add"])
def test_other_names_and_fewer_cases_are_still_recognised(name, tmp_path):
    arrays = load(name)
    first = min(array.removesuffix("_a") for array in arrays if array.endswith("_a"))
    renamed = {
        array.replace(first, "case_41_held_back"): values
        for array, values in arrays.items()
        if array.startswith(f"{first}_")
    }
    result = golden.check_file(save(tmp_path / "vector.npz", renamed))
    assert result.ok, result
    assert result.format == name


def test_raw_adds_alone_are_a_crossmesh_file(tmp_path):
    arrays = {name: values[:50] for name, values in load("crossmesh").items() if name.startswith("add_")}
    result = golden.check_file(save(tmp_path / "adds.npz", arrays))
    assert (result.format, result.vectors, result.ok) == ("crossmesh", 100, True)


def test_a_directory_names_what_it_passes_over(tmp_path):
    for name in ("matmul", "quantise"):
        shutil.copy(GOLDEN / f"{name}.npz", tmp_path)
    (tmp_path / "figures.json").write_text("{}")
    (tmp_path / "deeper").mkdir()
    result = golden.check_directory(tmp_path, ["numpy"])
    assert [file.format for file in result.files] == ["matmul", "quantise"]
    assert result.passed_over == ("figures.json",)
    assert result.ok
    assert result.vectors == VECTORS["matmul"] + VECTORS["quantise"]
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nothing behind it")
    broken = golden.check_directory(tmp_path, ["numpy"])
    assert not broken.ok
    assert [file.ok for file in broken.files] == [False, True, True]


def test_a_directory_without_vectors_is_not_ok(tmp_path):
    assert not golden.check_directory(tmp_path).ok
    with pytest.raises(NumericsError, match="nowhere is not a directory of vector files"):
        golden.check_directory(tmp_path / "nowhere")


def test_an_unknown_backend_is_refused():
    with pytest.raises(NumericsError, match="backend 'abacus' is not a backend"):
        golden.check_file(GOLDEN / "matmul.npz", ["abacus"])


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -300])
def test_a_truncated_file_is_an_error(keep, tmp_path):
    whole = (GOLDEN / "quantise.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:keep])
    result = golden.check_file(tmp_path / "cut.npz")
    assert not result.ok
    assert result.error.startswith("can't be read: ")


@pytest.mark.parametrize("at", [200, 5000, 20000])
def test_a_flipped_bit_in_the_file_itself_is_never_passed(at, tmp_path):
    raw = bytearray((GOLDEN / "quantise.npz").read_bytes())
    raw[at] ^= 0x10
    (tmp_path / "flipped.npz").write_bytes(raw)
    assert not golden.check_file(tmp_path / "flipped.npz").ok


def test_a_missing_file_is_an_error(tmp_path):
    assert "No such file" in golden.check_file(tmp_path / "absent.npz").error


def without(name, array):
    arrays = load(name)
    del arrays[array]
    return arrays


def with_array(name, array, values):
    return load(name) | {array: values}


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        (
            {"weights": np.zeros(3)},
            "not a known vector format: arrays weights; known are quantise, crossmesh, matmul, matmul_machine, "
            "peer_add, accumulator, vector_convert, vector_reduce, vector_alu",
        ),
        (
            with_array("matmul", "seed", np.zeros(1)),
            "not a known vector format: arrays case0_a, case0_b, case0_fp16, case0_fp22, case0_pumped_fp16, "
            "case0_pumped_fp22, case1_a, case1_b, ...; known are quantise, crossmesh, matmul, matmul_machine, "
            "peer_add, accumulator, vector_convert, vector_reduce, vector_alu",
        ),
        (without("matmul", "case3_b"), "arrays don't belong together: group 'case3' lacks case3_b"),
        (without("crossmesh", "add_peer_fp22"), "arrays don't belong together: group 'add' lacks add_peer_fp22"),
        (without("crossmesh", "case1_ranks"), "arrays don't belong together: group 'case1' lacks case1_ranks"),
        (without("vector_convert", "acc22"), "arrays don't belong together: acc22_to_e8 without acc22"),
        (
            with_array("matmul", "case0_fp22", np.zeros((16, 15), np.uint32)),
            "arrays don't belong together: a result array is uint32[16, 15]; the inputs give uint32[16, 16]",
        ),
        (
            with_array("matmul", "case0_fp22", np.zeros((16, 16))),
            "arrays don't belong together: a result array is float64[16, 16]; the inputs give uint32[16, 16]",
        ),
        (
            with_array("crossmesh", "case0_ranks", np.int64(3)),
            "arrays don't belong together: group 'case0': uint16[16, 512] can't be cut along K into "
            "3 runs of whole blocks",
        ),
        (
            with_array("accumulator", "op", np.full(1428, 9, np.uint8)),
            "arrays don't belong together: 9 is not a command of the accumulator log",
        ),
        (
            with_array("accumulator", "op", np.full(1428, 2, np.uint8)),
            "arrays don't belong together: the log reads a tile that no LOAD opened: what it holds is not known",
        ),
        (
            with_array("accumulator", "sa", np.zeros((9, 4), np.uint8)),
            "arrays don't belong together: the columns of the command log have different lengths",
        ),
        (
            with_array("vector_reduce", "kind", np.full(90, 6, np.uint8)),
            "arrays don't belong together: row 0 reduces kind 6 over 1 chunks, which is no reduction",
        ),
        (
            {
                "x_a": np.zeros((0, 32), np.uint16),
                "x_b": np.zeros((4, 32), np.uint16),
                "x_c": np.zeros((0, 4), np.uint16),
            },
            "arrays don't belong together: the file has no vectors",
        ),
    ],
)
def test_arrays_that_are_no_vectors_are_an_error(arrays, error, tmp_path):
    result = golden.check_file(save(tmp_path / "some.npz", arrays))
    assert not result.ok
    assert result.error == error
    assert result.vectors == 0


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, q=np.array([{}], dtype=object), allow_pickle=True)
    assert golden.check_file(path).error.startswith("can't be read: ")

"""`meshwright doctor --golden`: agrees with the vectors, and notices when one bit of them is another."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from meshwright.numerics.backend import available

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(path.name for path in GOLDEN.glob("*.npz"))
# One result of each kind in each file, by the end of its name; the row is one that is compared.
RESULTS = [
    ("quantise.npz", "q", 0),
    ("quantise.npz", "scale_field", 0),
    ("quantise.npz", "packed_words_a", 0),
    ("matmul.npz", "_fp22", 0),
    ("matmul.npz", "_fp16", 0),
    ("matmul.npz", "_pumped_fp22", 0),
    ("matmul.npz", "_pumped_fp16", 0),
    ("crossmesh.npz", "_partials_fp22", 0),
    ("crossmesh.npz", "_chain_fp22", 0),
    ("crossmesh.npz", "_chain_fp16", 0),
    ("crossmesh.npz", "_star_fp22", 0),
    ("crossmesh.npz", "_star_fp16", 0),
    ("crossmesh.npz", "_onemesh_fp22", 0),
    ("crossmesh.npz", "_onemesh_fp16", 0),
    ("crossmesh.npz", "add_result_fp22", 0),
    ("crossmesh.npz", "add_result_fp16", 0),
    ("matmul_machine.npz", "_c", 0),
    ("peer_add.npz", "_c_peer_add", 0),
    ("peer_add.npz", "_c_single", 0),
    ("peer_add.npz", "_c_second_half", 0),
    ("accumulator.npz", "tile", 0),
    ("accumulator.npz", "peer_out", "peer_valid"),
    ("accumulator.npz", "emit", "emit_valid"),
    ("vector_convert.npz", "f16_to_e8", 0),
    ("vector_convert.npz", "e8_to_f16", 0),
    ("vector_convert.npz", "f32_to_e8", 0),
    ("vector_convert.npz", "e8_to_f32", 0),
    ("vector_convert.npz", "acc22_to_e8", 0),
    ("vector_convert.npz", "acc22_to_f16", 0),
    ("vector_reduce.npz", "result", 0),
    ("vector_alu.npz", "_out", 0),
    ("vector_alu.npz", "_pred", 0),
]


def arrays_of(name):
    with np.load(GOLDEN / name) as file:
        return {key: file[key] for key in file.files}


def flip(array, row):
    """A copy of `array` with the lowest bit of one value in `row` flipped."""
    changed = array.copy()
    changed[row].reshape(-1)[0:1] ^= np.ones(1, changed.dtype) if changed[row].ndim else 0
    if not changed[row].ndim:
        changed[row] ^= changed.dtype.type(1)
    return changed


def test_every_vector_file_of_the_source_is_tried():
    assert {name for name, _, _ in RESULTS} == set(FILES)


def test_all_bits_of_all_backends_are_the_machines(run):
    result = run("doctor", "--golden", str(GOLDEN))
    assert (result.exit_code, result.stderr) == (0, "")
    for name in FILES:
        assert name in result.stdout
    assert f"values, {len(available())} backends: every bit is the machine's." in result.stdout
    assert "Passed over, not vector files: ORIGIN.md, README.md, " in result.stdout


def test_json_has_the_same_counts(run):
    result = run("doctor", "--golden", str(GOLDEN), "--json", "--backend", available()[-1])
    report = json.loads(result.stdout)
    assert report["backends"] == [available()[-1]]
    assert [line["file"] for line in report["files"]] == FILES
    assert report["vectors"] == sum(line["vectors"] for line in report["files"]) > 200_000
    assert report["mismatches"] == 0
    assert "README.md" in report["passed_over"]


@pytest.mark.parametrize(("name", "ending", "row"), RESULTS, ids=[f"{n}-{e}" for n, e, _ in RESULTS])
def test_one_flipped_bit_is_found(run, tmp_path, name, ending, row):
    arrays = arrays_of(name)
    key = next(key for key in arrays if key.endswith(ending) and ("pumped" in key) == ("pumped" in ending))
    compared = int(np.argmax(arrays[row])) if isinstance(row, str) else row
    before = arrays[key]
    arrays[key] = flip(before, compared)
    assert np.count_nonzero(arrays[key] != before) == 1
    np.savez(tmp_path / name, **arrays)
    result = run("doctor", "--golden", str(tmp_path), "--json", "--backend", "numpy")
    assert result.exit_code == 1
    # A value of two results, such as the elements that packed words are made of, may be compared twice.
    assert json.loads(result.stdout)["mismatches"] in (1, 2)


def test_a_mismatch_says_which_file_and_how_many(run, tmp_path):
    shutil.copy(GOLDEN / "peer_add.npz", tmp_path)
    arrays = arrays_of("vector_reduce.npz")
    arrays["result"] = flip(arrays["result"], 0)
    np.savez(tmp_path / "vector_reduce.npz", **arrays)
    result = run("doctor", "--golden", str(tmp_path), "--backend", "numpy")
    assert result.exit_code == 1
    verdicts = {line.split()[0]: line for line in result.stdout.splitlines() if ".npz" in line}
    assert verdicts["vector_reduce.npz"].rstrip().endswith("DIFFERS")
    assert verdicts["peer_add.npz"].rstrip().endswith("same bits")
    assert result.stderr == ("error: 1 value differs from the machine's: this build must not be trusted with numbers\n")
    assert "every bit is the machine's" not in result.stdout


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_cannot_be_read(run, tmp_path, name):
    whole = (GOLDEN / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    result = run("doctor", "--golden", str(tmp_path), "--backend", "numpy")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / name}: can't be read: ")
    assert "not run" in result.stdout


def test_a_mismatch_outweighs_a_file_that_cannot_be_read(run, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK")
    arrays = arrays_of("vector_reduce.npz")
    arrays["result"] = flip(arrays["result"], 0)
    np.savez(tmp_path / "vector_reduce.npz", **arrays)
    result = run("doctor", "--golden", str(tmp_path), "--backend", "numpy")
    assert result.exit_code == 1
    assert "broken.npz: can't be read" in result.stderr
    assert "1 value differs" in result.stderr


def test_unknown_arrays_are_no_vectors(run, tmp_path):
    np.savez(tmp_path / "mine.npz", values=np.arange(3))
    result = run("doctor", "--golden", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"error: {tmp_path / 'mine.npz'}: not a known vector format: arrays values; known are "
    )


def test_no_such_directory(run, tmp_path):
    result = run("doctor", "--golden", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --golden {tmp_path / 'nowhere'}: there is no such directory. "
        "The vectors that come with the source are in tests/golden\n"
    )


@pytest.mark.parametrize(
    ("others", "found"), [([], "nothing"), (["a.csv"], "1 other file"), (["a", "b"], "2 other files")]
)
def test_nothing_to_check_is_no_success(run, tmp_path, others, found):
    for name in others:
        (tmp_path / name).touch()
    result = run("doctor", "--golden", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --golden {tmp_path}: no vector file (.npz) in it, but {found}; nothing was checked. "
        "The vectors that come with the source are in tests/golden\n"
    )


def test_a_backend_that_cannot_run_is_refused(run):
    result = run("doctor", "--golden", str(GOLDEN), "--backend", "abacus")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: backend 'abacus' is not a backend; available: numpy")

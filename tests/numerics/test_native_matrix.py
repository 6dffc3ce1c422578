"""The compiled matrix kernels against the RTL's vectors, and every instruction set against the integer rule."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

native = pytest.importorskip("meshwright.numerics._matrix", reason="the compiled kernels are not built")

GOLDEN = Path(__file__).parents[1] / "golden"
ISAS = native.supported()
WIDE = [isa for isa in ISAS if isa != "scalar"]
SATURATED = 0x1FFFFF

Codes = npt.NDArray[np.uint32]


def quantise(isa: str, x: npt.NDArray[np.uint16], threads: int = 1):
    x = np.ascontiguousarray(x)
    blocks = -(-x.shape[1] // 32)
    q = np.full((x.shape[0], blocks * 32), 99, np.int8)
    scale = np.full((x.shape[0], blocks), 255, np.uint8)
    native.quantise(isa, x, q, scale, threads)
    return q, scale


def matmul(isa, qa, sa, qb, sb, start=None, threads=1, function=native.matmul):
    out = np.full((1, qa.shape[0], qb.shape[0]), 0xDEADBEEF, np.uint32)
    zero = np.zeros(1, np.int64)
    begin = None if start is None else np.ascontiguousarray(start)[None]
    function(isa, qa[None], sa[None], qb[None], sb[None], zero, zero, begin, out, threads)
    return out[0]


def matmul_fp16(isa, a, b, threads=1):
    out = np.full((1, a.shape[0], b.shape[0]), 0xDEAD, np.uint16)
    zero = np.zeros(1, np.int64)
    native.matmul_fp16(isa, np.ascontiguousarray(a)[None], np.ascontiguousarray(b)[None], zero, zero, out, threads)
    return out[0]


def add(isa: str, tile: Codes, peer: Codes, threads: int = 1) -> Codes:
    out = np.full(tile.shape, 0xDEADBEEF, np.uint32)
    native.add(isa, tile, peer, out, threads)
    return out


def drain(isa: str, codes: Codes, threads: int = 1) -> npt.NDArray[np.uint16]:
    out = np.full(codes.shape, 0xDEAD, np.uint16)
    native.drain(isa, np.ascontiguousarray(codes), out, threads)
    return out


def golden_cases(name: str, suffix: str) -> list[str]:
    with np.load(GOLDEN / f"{name}.npz") as data:
        return sorted(key.removesuffix(suffix) for key in data.files if key.endswith(suffix))


def test_scalar_kernels_are_always_there():
    assert ISAS[0] == "scalar"
    assert set(ISAS) <= {"scalar", "avx2", "avx512"}


@pytest.mark.parametrize("isa", ISAS)
class TestAgainstRtl:
    def test_quantiser(self, isa):
        with np.load(GOLDEN / "quantise.npz") as data:
            q, scale = quantise(isa, data["x_fp16_bits"])
            np.testing.assert_array_equal(q, data["q"])
            np.testing.assert_array_equal(scale[:, 0], data["scale_field"])

    @pytest.mark.parametrize("case", golden_cases("matmul", "_a"))
    def test_product(self, isa, case):
        with np.load(GOLDEN / "matmul.npz") as data:
            a, b = data[f"{case}_a"], data[f"{case}_b"]
            operands = (*quantise(isa, a), *quantise(isa, b))
            codes = matmul(isa, *operands)
            np.testing.assert_array_equal(codes, data[f"{case}_fp22"])
            np.testing.assert_array_equal(drain(isa, codes.ravel()), data[f"{case}_fp16"].ravel())
            np.testing.assert_array_equal(matmul_fp16(isa, a, b), data[f"{case}_fp16"])
            pumped = matmul(isa, *operands, function=native.matmul_pumped)
            np.testing.assert_array_equal(pumped, data[f"{case}_pumped_fp22"])
            np.testing.assert_array_equal(drain(isa, pumped.ravel()), data[f"{case}_pumped_fp16"].ravel())

    def test_peer_add(self, isa):
        with np.load(GOLDEN / "crossmesh.npz") as data:
            result = add(isa, data["add_tile_fp22"], data["add_peer_fp22"])
            np.testing.assert_array_equal(result, data["add_result_fp22"])
            np.testing.assert_array_equal(drain(isa, result), data["add_result_fp16"])

    @pytest.mark.parametrize("case", golden_cases("matmul_machine", "_a"))
    def test_whole_machine_product(self, isa, case):
        with np.load(GOLDEN / "matmul_machine.npz") as data:
            result = matmul_fp16(isa, data[f"{case}_a"], data[f"{case}_b"])
            np.testing.assert_array_equal(result, data[f"{case}_c"])

    @pytest.mark.parametrize("case", golden_cases("peer_add", "_a"))
    def test_halves_of_k_added_in_the_accumulator(self, isa, case):
        with np.load(GOLDEN / "peer_add.npz") as data:
            a, b = data[f"{case}_a"], data[f"{case}_b"]
            half = a.shape[1] // 2
            halves = [
                matmul(isa, *quantise(isa, a[:, k]), *quantise(isa, b[:, k]))
                for k in (slice(None, half), slice(half, None))
            ]
            joined = add(isa, halves[0].ravel(), halves[1].ravel())
            np.testing.assert_array_equal(drain(isa, joined), data[f"{case}_c_peer_add"].ravel())
            chained = matmul(isa, *quantise(isa, a[:, half:]), *quantise(isa, b[:, half:]), start=halves[0])
            np.testing.assert_array_equal(drain(isa, chained.ravel()), data[f"{case}_c_single"].ravel())

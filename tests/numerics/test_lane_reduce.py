import json
from pathlib import Path

import lane_model
import numpy as np
import pytest

from meshwright.errors import NumericsError
from meshwright.numerics import lane
from meshwright.numerics.backend import available
from meshwright.numerics.lane_program import Constant, Input, Instruction, Output, Program, Register, execute

LENGTHS = (16, 32, 48, 64, 128, 144, 256, 272, 528, 1040)


def rows(seed, count, length, special=0.0):
    random = np.random.default_rng([seed, length])
    values = random.standard_normal((count, length)) * np.exp2(random.integers(-3, 4, (count, length)))
    codes = lane.from_fp32(values.astype(np.float32), backend="numpy")
    specials = random.choice([0, 0x800000, 0x7F8000, 0xFF8000, 0x7FC001, 0x7F7FFF], codes.shape)
    return np.where(random.random(codes.shape) < special, specials, codes).astype(np.uint32)


def test_reductions_give_the_vectors_of_the_rtl(backend):
    vectors = lane_model.golden("vector_reduce")
    assert {int(kind) for kind in vectors["kind"]} == {0, 2, 4}
    for kind, chunks in {tuple(pair) for pair in zip(vectors["kind"], vectors["nchunk"], strict=True)}:
        these = (vectors["kind"] == kind) & (vectors["nchunk"] == chunks)
        x, y = (vectors[name][these, : 16 * chunks].astype(np.uint32) for name in "xy")
        name = lane.REDUCTIONS[kind]
        found = lane.reduce(name, x, y if name == "dot" else None, backend=backend)
        np.testing.assert_array_equal(found, vectors["result"][these])


@pytest.mark.parametrize("kind", lane.REDUCTIONS)
@pytest.mark.parametrize("special", [0.0, 0.02])
def test_reductions_as_the_model_says(kind, special):
    for length in (16, 48, 128, 144, 272):
        x, y = rows(1, 3, length, special), rows(2, 3, length, special)
        expected = [lane_model.reduce(kind, a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        for name in available():
            found = lane.reduce(kind, x, y if kind == "dot" else None, backend=name)
            assert found.tolist() == expected, (length, name)


@pytest.mark.parametrize("kind", lane.REDUCTIONS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("threads", [1, 3])
def test_reductions_agree_between_backends(kind, length, threads, compiled_backend):
    x, y = rows(3, 401, length, 0.001).reshape(1, 401, length), rows(4, 401, length).reshape(1, 401, length)
    second = y if kind == "dot" else None
    found = lane.reduce(kind, x, second, backend=compiled_backend, threads=threads)
    assert found.shape == (1, 401)
    np.testing.assert_array_equal(found, lane.reduce(kind, x, second, backend="numpy"))


@pytest.mark.parametrize("length", LENGTHS)
def test_expsum_gives_its_leaves(length, backend):
    x = rows(5, 9, length, 0.01)
    total, leaves = lane.expsum(x, backend=backend)
    np.testing.assert_array_equal(leaves, lane.apply("exp2", x, backend=backend))
    np.testing.assert_array_equal(total, lane.reduce("expsum", x, backend=backend))


def test_reductions_read_storage_formats(backend):
    halves = np.random.default_rng(6).standard_normal((5, 64)).astype(np.float16)
    codes = lane.from_fp16(halves, backend=backend)
    for kind in ("sum", "max", "sumsq"):
        found = lane.reduce(kind, halves, format="fp16", backend=backend)
        np.testing.assert_array_equal(found, lane.reduce(kind, codes, backend=backend))
    singles = halves.astype(np.float32)[:, ::-1]
    np.testing.assert_array_equal(
        lane.reduce("dot", singles, halves.astype(np.float32), format="fp32", backend=backend),
        lane.reduce("dot", codes[:, ::-1], codes, backend=backend),
    )


@pytest.mark.parametrize(("kind", "identity"), [("sum", 0), ("max", 0xFF8000), ("min", 0x7F8000), ("sumsq", 0)])
def test_no_rows_reduce_to_no_totals_and_identities_to_themselves(kind, identity, backend):
    assert lane.reduce(kind, np.empty((0, 32), np.uint32), backend=backend).shape == (0,)
    assert lane.reduce(kind, np.full(48, identity, np.uint32), backend=backend) == identity


def kernel(name):
    words = json.loads((Path(__file__).parent.parent / "golden" / "ktpu_vector_words.json").read_text())
    found = next(kernel for kernel in words["kernels"] if kernel["name"] == name)

    def halves(text):
        return np.frombuffer(bytes.fromhex(text), "<u2").view(np.float16)

    inputs = [halves(operand["fp16_hex"]) for operand in found["mem_inputs"].values()]
    return inputs, halves(found["output"]["rtl_sim_fp16_hex"])


def test_row_softmax_equals_the_rtl(backend):
    (x,), out = kernel("row_softmax_8x64")
    x = lane.from_fp16(x.reshape(8, 64), backend=backend)
    shifted = lane.sub(x, lane.reduce("max", x, backend=backend)[:, None], backend=backend)
    total, leaves = lane.expsum(lane.mul(shifted, np.uint32(0x3FB8AA), backend=backend), backend=backend)
    found = lane.mul(leaves, lane.apply("inv", total, backend=backend)[:, None], backend=backend)
    np.testing.assert_array_equal(lane.to_fp16(found, backend=backend).ravel(), out)


def test_layernorm_equals_the_rtl(backend):
    (x, gamma, beta), out = kernel("layernorm_8x64")
    x, gamma, beta = (lane.from_fp16(values, backend=backend) for values in (x.reshape(8, 64), gamma, beta))
    mean = lane.reduce("sum", x, backend=backend)[:, None]
    centred = lane.fma(mean, np.uint32(0xBC8000), x, backend=backend)
    squares = lane.reduce("sumsq", centred, backend=backend)[:, None]
    variance = lane.fma(squares, np.uint32(0x3C8000), np.uint32(0x3727C5), backend=backend)
    scale = lane.apply("rsqrt", variance, backend=backend)
    found = lane.fma(lane.mul(centred, scale, backend=backend), gamma, beta, backend=backend)
    np.testing.assert_array_equal(lane.to_fp16(found, backend=backend).ravel(), out)


def test_silu_equals_the_rtl(backend):
    (x,), out = kernel("silu_256")
    program = Program(
        ("fp16",),
        (
            Instruction("mul", 0, Input(0), Constant(0xBFB8AA)),
            Instruction("exp2", 0, Register(0)),
            Instruction("add", 0, Register(0), c=Constant(lane.ONE)),
            Instruction("inv", 0, Register(0)),
            Instruction("mul", 0, Input(0), Register(0)),
        ),
        (Output(Register(0), "fp16"),),
    )
    np.testing.assert_array_equal(execute(program, (x,), backend=backend)[0], out)


def refusal(call):
    with pytest.raises(NumericsError) as caught:
        call()
    return str(caught.value)


def test_refusals(backend):
    x = np.zeros((2, 32), np.uint32)
    assert refusal(lambda: lane.reduce("prod", x)) == (
        "lane.reduce('prod'): no such reduction; reductions: sum, max, min, sumsq, dot, expsum"
    )
    assert refusal(lambda: lane.reduce("sum", x[:, :20], backend=backend)) == (
        "lane.reduce('sum'): `x` is [2, 20]; the last axis must be a multiple of 16: "
        "pad it with the reduction's identity"
    )
    assert refusal(lambda: lane.reduce("sum", np.uint32(3), backend=backend)).startswith(
        "lane.reduce('sum'): `x` is [];"
    )
    assert refusal(lambda: lane.reduce("dot", x)) == "lane.reduce('dot'): `y` was not given"
    assert refusal(lambda: lane.reduce("sum", x, x)) == "lane.reduce('sum'): `y` is for dot only"
    assert refusal(lambda: lane.reduce("dot", x, x[:1])) == (
        "lane.reduce('dot'): `x` is [2, 32] and `y` [1, 32]; they must agree"
    )
    assert refusal(lambda: lane.reduce("max", x, format="bf16")) == (
        "lane.reduce('max'): no format 'bf16'; formats: fp16, fp32, e8, fp22"
    )
    assert refusal(lambda: lane.reduce("max", x.astype(np.int32))) == (
        "lane.reduce('max'): `x` is int32[2, 32]; its format e8 takes uint32"
    )
    x[1, 30] = 0x1000000
    assert refusal(lambda: lane.reduce("dot", np.zeros_like(x), x, backend=backend)) == (
        "lane.reduce('dot'): `y`: codes of format e8 have 24 bits, and some here have more"
    )

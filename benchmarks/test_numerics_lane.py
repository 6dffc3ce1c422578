"""How fast the vector lane runs: each figure is held against the numpy twin and numpy's float32 on the same work.

`extra_info` has, beside the time, `lane_operations_per_second` and the two ratios (above 1: ours is faster).
"""

import time

import numpy as np
import pytest

from meshwright.numerics import lane
from meshwright.numerics.backend import available
from meshwright.numerics.lane_program import Constant, Input, Instruction, Output, Program, Register, execute

COUNT = 1 << 20
ROW = 128
OPERATIONS = {
    "add": ("ac", np.add),
    "mul": ("ab", np.multiply),
    "fma": ("abc", lambda x, y, z: x * y + z),
    "max": ("ab", np.maximum),
    "exp2": ("a", np.exp2),
    "log2": ("a", np.log2),
    "inv": ("a", np.reciprocal),
    "rsqrt": ("a", lambda x: np.reciprocal(np.sqrt(x))),
}
REPEATS = 8

pytestmark = pytest.mark.parametrize("backend", [name for name in available() if name != "numpy"])


def best(call, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def numbers(seed, count=COUNT):
    return np.abs(np.random.default_rng(seed).standard_normal(count)).astype(np.float32) + np.float32(2**-20)


def record(benchmark, call, operations, twin, single):
    """Times `call`; `twin` and `single` are seconds for the same work by the numpy twin and by float32."""
    benchmark.pedantic(call, rounds=7, warmup_rounds=1)
    ours = benchmark.stats.stats.min
    benchmark.extra_info["lane_operations_per_second"] = operations / ours
    benchmark.extra_info["times_the_numpy_twin"] = twin / ours
    benchmark.extra_info["times_numpy_float32"] = single / ours


@pytest.mark.parametrize("op", OPERATIONS)
def test_opcode(benchmark, op, backend):
    """An opcode REPEATS times in one program on one core, so that memory doesn't hide what it costs."""
    slots, float32 = OPERATIONS[op]
    singles = [numbers(seed) for seed in range(len(slots))]
    codes = tuple(lane.from_fp32(x) for x in singles)
    operands = {slot: Input(number) for number, slot in enumerate(slots)}
    steps = tuple(Instruction(op, i % 2, **operands) for i in range(REPEATS))
    program = Program(("e8",) * len(slots), steps, (Output(Register(0), "e8"),))
    some = tuple(x[: COUNT // 16] for x in codes)
    twin = best(lambda: lane.apply(op, **dict(zip(slots, some, strict=True)), backend="numpy"), 2) * 16 * REPEATS
    single = best(lambda: float32(*singles)) * REPEATS
    found, expected = (execute(program, some, backend=name)[0] for name in (backend, "numpy"))
    np.testing.assert_array_equal(found, expected)
    record(benchmark, lambda: execute(program, codes, backend=backend, threads=1), COUNT * REPEATS, twin, single)


@pytest.mark.parametrize("kind", ["sum", "max", "sumsq", "expsum"])
def test_reduction(benchmark, kind, backend):
    """Rows of 128, what a vector core reduces at once, on one core; an operation is an element."""
    values = -numbers(3).reshape(-1, ROW)
    codes = lane.from_fp32(values)
    float32 = {
        "sum": lambda: values.sum(axis=-1),
        "max": lambda: values.max(axis=-1),
        "sumsq": lambda: np.square(values).sum(axis=-1),
        "expsum": lambda: np.exp2(values).sum(axis=-1),
    }[kind]
    twin = best(lambda: lane.reduce(kind, codes[: COUNT // ROW // 16], backend="numpy"), 2) * 16
    found, expected = (lane.reduce(kind, codes[:99], backend=name) for name in (backend, "numpy"))
    np.testing.assert_array_equal(found, expected)
    call = lambda: lane.reduce(kind, codes, backend=backend, threads=1)  # noqa: E731
    record(benchmark, call, COUNT, twin, best(float32))


def erf_gelu():
    """x/2 (1 + erf(x / sqrt 2)) by Abramowitz and Stegun 7.1.26, in the lane's primitives, fp16 to fp16."""

    def constant(value):
        return Constant(lane.immediate(value))

    def r(number):
        return Register(number)

    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    steps = [
        Instruction("mul", 0, Input(0), constant(0.7071067811865476)),
        Instruction("abs", 1, r(0)),
        Instruction("fma", 2, r(1), constant(0.3275911), constant(1.0)),
        Instruction("inv", 2, r(2)),
        Instruction("mov", 3, constant(coefficients[0])),
    ]
    steps += [Instruction("fma", 3, r(3), r(2), constant(value)) for value in coefficients[1:]]
    steps += [
        Instruction("mul", 3, r(3), r(2)),
        Instruction("mul", 4, r(1), r(1)),
        Instruction("mul", 4, r(4), constant(-1.4426950408889634)),
        Instruction("exp2", 4, r(4)),
        Instruction("fnma", 3, r(3), r(4), constant(1.0)),
        Instruction("neg", 5, r(3)),
        Instruction("lt", 0, r(0), constant(0.0)),
        Instruction("mov", 3, r(5), predicate=0),
        Instruction("add", 3, r(3), c=constant(1.0)),
        Instruction("mul", 4, Input(0), constant(0.5)),
        Instruction("mul", 3, r(3), r(4)),
    ]
    return Program(("fp16",), tuple(steps), (Output(Register(3), "fp16"),))


def float32_gelu(x):
    t = x.astype(np.float32) * np.float32(0.7071067811865476)
    size = np.abs(t)
    k = np.float32(1) / (size * np.float32(0.3275911) + np.float32(1))
    tail = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = tail * k + np.float32(coefficient)
    erf = np.copysign(np.float32(1) - tail * k * np.exp2(size * size * np.float32(-1.4426950408889634)), t)
    return ((erf + np.float32(1)) * (x.astype(np.float32) * np.float32(0.5))).astype(np.float16)


def test_gelu(benchmark, backend):
    """A whole activation over 4 Mi fp16 elements in one pass, on one core."""
    program = erf_gelu()
    x = np.random.default_rng(5).standard_normal(4 * COUNT).astype(np.float16)
    np.testing.assert_allclose(execute(program, (x[:999],))[0], float32_gelu(x[:999]), atol=2e-3)
    twin = best(lambda: execute(program, (x[: COUNT // 16],), backend="numpy"), 1) * 64
    operations = x.size * len(program.instructions)
    record(
        benchmark,
        lambda: execute(program, (x,), backend=backend, threads=1),
        operations,
        twin,
        best(lambda: float32_gelu(x)),
    )


def test_softmax(benchmark, backend):
    """Softmax of rows of 128 fp16: a maximum, a shift and scale, a sum of exp2, a scale; an operation is an element."""
    x = np.random.default_rng(6).standard_normal((1 << 14, ROW)).astype(np.float16)
    shift = Program(
        ("fp16", "e8"),
        (
            Instruction("sub", 0, Input(0), c=Input(1)),
            Instruction("mul", 0, Register(0), Constant(lane.immediate(1.4426950408889634))),
        ),
        (Output(Register(0), "e8"),),
    )
    scale = Program(
        ("e8", "e8"),
        (Instruction("inv", 0, Input(1)), Instruction("mul", 0, Input(0), Register(0))),
        (Output(Register(0), "fp16"),),
    )

    def softmax(rows, name):
        largest = lane.reduce("max", rows, format="fp16", backend=name, threads=1)
        shifted = execute(shift, (rows, largest[:, None]), backend=name, threads=1)[0]
        total, leaves = lane.expsum(shifted, backend=name, threads=1)
        return execute(scale, (leaves, total[:, None]), backend=name, threads=1)[0]

    def float32_softmax():
        rows = x.astype(np.float32)
        leaves = np.exp(rows - rows.max(axis=-1, keepdims=True))
        return (leaves / leaves.sum(axis=-1, keepdims=True)).astype(np.float16)

    np.testing.assert_allclose(softmax(x, backend), float32_softmax(), atol=1e-3)
    twin = best(lambda: softmax(x[: 1 << 10], "numpy"), 1) * 16
    record(benchmark, lambda: softmax(x, backend), x.size, twin, best(float32_softmax))

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import NumericsError
from meshwright.numerics import lane
from meshwright.numerics.backend import available
from meshwright.numerics.lane_program import (
    COMPARISONS,
    OPERATIONS,
    SLOTS,
    Constant,
    Input,
    Instruction,
    Output,
    Predicate,
    Program,
    Register,
    execute,
)

DTYPES = {"fp16": np.float16, "fp32": np.float32, "e8": np.uint32, "fp22": np.uint32}
WIDTHS = {"fp16": 16, "fp32": 32, "e8": 24, "fp22": 22}


def operand(name, seed, shape):
    """Bits of any value of the format, half of them of ordinary size."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << WIDTHS[name], shape, dtype=np.uint32)
    ordinary = random.standard_normal(shape).astype(np.float32)
    if name == "fp16":
        return np.where(random.random(shape) < 0.5, ordinary.astype(np.float16), bits.astype(np.uint16).view("f2"))
    if name == "fp32":
        return np.where(random.random(shape) < 0.5, ordinary, bits.view(np.float32))
    return bits


def step_by_step(program, inputs, backend):
    """The program one public call at a time, over whole arrays."""
    load = {"fp16": lane.from_fp16, "fp32": lane.from_fp32, "e8": lambda x, **_: x, "fp22": lane.from_fp22}
    store = {"fp16": lane.to_fp16, "fp32": lane.to_fp32, "e8": lambda x, **_: x}
    values = [load[name](x, backend=backend) for name, x in zip(program.inputs, inputs, strict=True)]
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    registers, predicates = {}, {}

    def value(source):
        match source:
            case Input(index):
                return values[index]
            case Register(index):
                return registers[index]
            case Constant(code):
                return np.uint32(code)

    for step in program.instructions:
        if step.op in COMPARISONS:
            predicates[step.dst] = lane.compare(step.op, value(step.a), value(step.b), backend=backend)
            continue
        slots = {slot: value(getattr(step, slot)) for slot in SLOTS[step.op]}
        result = lane.apply(step.op, **slots, backend=backend)
        if step.predicate is not None:
            result = np.where(predicates[step.predicate] == step.when, result, registers[step.dst])
        registers[step.dst] = result
    return [
        np.broadcast_to(
            predicates[out.source.index]
            if isinstance(out.source, Predicate)
            else store[out.format](value(out.source), backend=backend),
            shape,
        )
        for out in program.outputs
    ]


def same_bits(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    kind = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.view(kind), np.ascontiguousarray(expected).view(kind))


@st.composite
def programs(draw):
    """Any program of up to 12 instructions over up to 3 inputs, 5 registers and 2 predicates."""
    formats = tuple(draw(st.lists(st.sampled_from(list(DTYPES)), min_size=1, max_size=3)))
    registers, predicates, steps = set(), set(), []
    constants = st.builds(Constant, st.sampled_from([0, 0x3F8000, 0xBF8000, 0x3FB8AA, 0x7F8000, 0x400001]))

    def source():
        choices = [st.builds(Input, st.integers(0, len(formats) - 1)), constants]
        if registers:
            choices.append(st.builds(Register, st.sampled_from(sorted(registers))))
        return draw(st.one_of(choices))

    for _ in range(draw(st.integers(0, 12))):
        op = draw(st.sampled_from(OPERATIONS))
        slots = {slot: source() for slot in SLOTS[op]}
        if op in COMPARISONS:
            steps.append(Instruction(op, draw(st.integers(0, 1)), **slots))
            predicates.add(steps[-1].dst)
            continue
        masked = registers and predicates and draw(st.booleans())
        target = draw(st.sampled_from(sorted(registers)) if masked else st.integers(0, 4))
        mask = draw(st.sampled_from(sorted(predicates))) if masked else None
        steps.append(Instruction(op, target, **slots, predicate=mask, when=draw(st.booleans())))
        registers.add(target)
    outputs = [Output(source(), draw(st.sampled_from(["fp16", "fp32", "e8"]))) for _ in range(draw(st.integers(1, 3)))]
    outputs += [Output(Predicate(index), "bool") for index in sorted(predicates)]
    return Program(formats, tuple(steps), tuple(outputs))


SHAPES = [
    ((3, 700), (3, 700), (3, 700)),
    ((3, 700), (700,), (3, 1)),
    ((1, 5, 1, 33), (4, 1, 7, 1), ()),
    ((2, 1), (), (1,)),
    ((0, 4), (4,), (1, 1)),
]


@given(program=programs(), shapes=st.sampled_from(SHAPES), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_any_program_equals_its_steps_on_every_backend(program, shapes, seed):
    inputs = tuple(operand(name, seed + i, shapes[i]) for i, name in enumerate(program.inputs))
    expected = step_by_step(program, inputs, "numpy")
    for name in available():
        for found, truth in zip(execute(program, inputs, backend=name, threads=2), expected, strict=True):
            same_bits(found, truth)


def polynomial():
    """(x * scale + shift) squared, where positive; else exp2 of it, rounded to fp16 on the way."""
    one = Constant(lane.ONE)
    return Program(
        ("fp16", "fp32", "e8"),
        (
            Instruction("fma", 0, Input(0), Input(1), Input(2)),
            Instruction("gt", 0, Register(0), Constant(0)),
            Instruction("mul", 1, Register(0), Register(0)),
            Instruction("exp2", 1, Register(0), predicate=0, when=False),
            Instruction("round_fp16", 2, Register(1)),
            Instruction("add", 2, Register(2), c=one),
        ),
        (Output(Register(2), "fp32"), Output(Predicate(0), "bool"), Output(Register(1), "fp16")),
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    "shapes",
    [
        ((70_003,), (70_003,), (70_003,)),
        ((300, 257), (257,), (300, 1)),
        ((20, 1, 60, 50), (7, 1, 50), (1, 1, 60, 1)),
        ((9001, 16), (9001, 1), ()),
    ],
)
def test_broadcasts_and_threads_change_nothing(shapes, threads, compiled_backend):
    program = polynomial()
    inputs = tuple(operand(name, 7 + i, shapes[i]) for i, name in enumerate(program.inputs))
    found = execute(program, inputs, backend=compiled_backend, threads=threads)
    for ours, truth in zip(found, execute(program, inputs, backend="numpy"), strict=True):
        same_bits(ours, truth)


def test_views_are_read_where_they_lie(backend):
    program = polynomial()
    base = [operand(name, 20 + i, (90, 120)) for i, name in enumerate(program.inputs)]
    views = (base[0][::-1, ::3], base[1].T[:40, :90].T, np.broadcast_to(base[2][:, :1], (90, 40)))
    copies = tuple(np.ascontiguousarray(view) for view in views)
    big_endian = (copies[0].astype(">f2"), *copies[1:])
    for inputs in (views, big_endian):
        for ours, truth in zip(
            execute(program, inputs, backend=backend), execute(program, copies, backend="numpy"), strict=True
        ):
            same_bits(ours, truth)


def test_more_registers_than_a_machine_has_are_fine(backend):
    count = 90
    steps = [Instruction("add", i, Register(i - 1) if i else Input(0), c=Constant(lane.ONE)) for i in range(count)]
    total = [Instruction("add", count, Register(count - 1), c=Register(0))]
    total += [Instruction("add", count, Register(count), c=Register(i)) for i in range(1, count)]
    program = Program(("e8",), (*steps, *total), (Output(Register(count), "e8"),))
    found = execute(program, (np.zeros(1000, np.uint32),), backend=backend)[0]
    assert set(lane.decode(found).tolist()) == {count + count * (count + 1) / 2}


def test_round_fp16_is_what_storing_and_loading_does(backend):
    codes = np.arange(0, 1 << 24, 7, dtype=np.uint32)
    program = Program(("e8",), (Instruction("round_fp16", 0, Input(0)),), (Output(Register(0), "e8"),))
    expected = lane.from_fp16(lane.to_fp16(codes, backend="numpy"), backend="numpy")
    np.testing.assert_array_equal(execute(program, (codes,), backend=backend)[0], expected)


def test_a_program_is_data():
    program = polynomial()
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    assert hash(program) == hash(polynomial())


def refusal(call):
    with pytest.raises(NumericsError) as caught:
        call()
    return str(caught.value)


X = Input(0)


@pytest.mark.parametrize(
    ("instructions", "outputs", "message"),
    [
        (
            [Instruction("pow", 0, X)],
            [],
            f"lane program: instruction 0 (pow): there is no such opcode; opcodes: {', '.join(OPERATIONS)}",
        ),
        (
            [Instruction("add", 0, X, X)],
            [],
            "lane program: instruction 0 (add) reads slots a, c, and slot c is empty",
        ),
        (
            [Instruction("mov", -1, X)],
            [],
            "lane program: instruction 0 (mov) writes register -1; registers are numbered from 0",
        ),
        (
            [Instruction("mov", 0, Register(3))],
            [],
            "lane program: instruction 0 (mov), slot a reads register 3 before any instruction has written it",
        ),
        (
            [Instruction("mov", 0, Input(1))],
            [],
            "lane program: instruction 0 (mov), slot a reads input 1; the program has 1",
        ),
        (
            [Instruction("mov", 0, Constant(1 << 24))],
            [],
            "lane program: instruction 0 (mov), slot a: constant 0x1000000 is no E8M15 code, which has 24 bits",
        ),
        (
            [Instruction("mov", 0, X), Instruction("mov", 0, X, predicate=1)],
            [],
            "lane program: instruction 1 (mov) reads predicate 1 before any instruction has written it",
        ),
        (
            [Instruction("lt", 0, X, X), Instruction("mov", 0, X, predicate=0)],
            [],
            "lane program: instruction 1 (mov), predicated, reads register 0 before any instruction has written it",
        ),
        (
            [Instruction("lt", 0, X, X), Instruction("lt", 1, X, X, predicate=0)],
            [],
            "lane program: instruction 1 (lt) has a predicate; comparisons write every lane",
        ),
        ([], [Output(X, "fp22")], "lane program: output 0 has format 'fp22'; formats: fp16, fp32, e8, bool"),
        (
            [Instruction("lt", 0, X, X)],
            [Output(Predicate(0), "fp16")],
            "lane program: output 0 is Predicate(index=0) as fp16; bool is for predicates only",
        ),
        (
            [],
            [Output(Register(0), "e8")],
            "lane program: output 0 reads register 0 before any instruction has written it",
        ),
    ],
)
def test_programs_that_are_refused(instructions, outputs, message):
    assert refusal(lambda: Program(("e8",), tuple(instructions), tuple(outputs))) == message


def test_inputs_that_are_refused():
    assert refusal(lambda: Program(("bf16",), (), ())) == (
        "lane program: input 0 has format 'bf16'; formats: fp16, fp32, e8, fp22"
    )
    program = Program(("fp16",), (), (Output(X, "e8"),))
    assert refusal(lambda: execute(program, ())) == "lane program of 1 inputs, given 0"
    assert refusal(lambda: execute(program, (np.zeros((2, 3)),))) == (
        "lane program: input 0 is float64[2, 3]; its format fp16 takes float16 or uint16"
    )

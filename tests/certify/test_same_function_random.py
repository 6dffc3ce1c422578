"""Random programs against themselves, cut into other blocks and with stages in another order, and against others.

Which programs really differ is asked of float64, evaluated by numpy from the program and not from a graph.
"""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.certify.same_function import same_function
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Binary, BinaryOp, Operand, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Generic, Matmul, Reduce
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Precedence

from .split_graphs import site

SIZE = 4
F32 = ElementType.F32
UNARY = {
    "exp2": (Unary(UnaryOp.EXP2, Operand(0)), np.exp2),
    "halve": (Operand(0) * 0.5, lambda x: x / 2),
    "negate": (-Operand(0), np.negative),
    "square": (Operand(0) * Operand(0), np.square),
}
BINARY = {
    "add": (Operand(0) + Operand(1), np.add),
    "sub": (Operand(0) - Operand(1), np.subtract),
    "mul": (Operand(0) * Operand(1), np.multiply),
    "max": (Binary(BinaryOp.MAX, Operand(0), Operand(1)), np.maximum),
}
ROWWISE = {
    "row sum": (Pool.SUM, lambda x: np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape)),
    "row max": (Pool.MAX, lambda x: np.broadcast_to(x.max(axis=1, keepdims=True), x.shape)),
}


@dataclass(frozen=True)
class Step:
    """One operation on values before it; values 0 and 1 are the inputs."""

    op: str
    a: int
    b: int = 0


@st.composite
def programs(draw):
    steps = []
    for known in range(2, 2 + draw(st.integers(1, 5))):
        op = draw(st.sampled_from([*UNARY, *BINARY, *ROWWISE, "matmul"]))
        steps.append(Step(op, draw(st.integers(0, known - 1)), draw(st.integers(0, known - 1))))
    return tuple(steps)


def closed(program):
    """The program with the product of the inputs added to its result, so that it reads both."""
    return (*program, Step("mul", 0, 1), Step("add", len(program) + 1, len(program) + 2))


def needed(program):
    """Which steps the last one needs."""
    wanted = {len(program) - 1}
    for at in range(len(program) - 1, -1, -1):
        if at in wanted:
            wanted |= {program[at].a - 2, program[at].b - 2 if program[at].op in (*BINARY, "matmul") else -1}
    return wanted


def in_numpy(program, x, y):
    values = [x, y]
    with np.errstate(all="ignore"):
        for step in program:
            a, b = values[step.a], values[step.b]
            if step.op in UNARY:
                values.append(UNARY[step.op][1](a))
            elif step.op in BINARY:
                values.append(BINARY[step.op][1](a, b))
            else:
                values.append(ROWWISE[step.op][1](a) if step.op in ROWWISE else a @ b.T)
    return values[-1]


class Lowering:
    """A program as a graph whose blocks are `rows` x `columns` of every value; each value goes through memory."""

    def __init__(self, program, rows, columns, depth):
        self.make = GraphBuilder()
        self.blocks = {"block": (rows, columns), "row": (rows, SIZE), "depth": depth}
        self.values = [(self.make.tensor(name, (SIZE, SIZE), F32, (0,)), None) for name in "xy"]
        self.program = program

    def graph(self):
        wanted = needed(self.program)
        for number, step in enumerate(self.program):
            if number not in wanted:
                self.values.append((None, None))
                continue
            last = number == len(self.program) - 1
            made = self.make.tensor("z" if last else f"value {number}", (SIZE, SIZE), F32, (0,))
            source, block = self._source(step)
            self.values.append((made, self.make.store(made, self._blocks(block), source)))
        return self.make.graph()

    def _blocks(self, block):
        loops = [Loop(SIZE // block[0], (block[0], 0)), Loop(SIZE // block[1], (0, block[1]))]
        return Affine((0, 0), block, tuple(loops))

    def _read(self, value, pattern):
        tensor, stored = self.values[value]
        out = self.make.fifo(site(0), pattern.box, F32)
        self.make.load(tensor, pattern, out, after=() if stored is None else (stored,))
        return out

    def _source(self, step):
        if step.op == "matmul":
            return self._product(step)
        block = self.blocks["row" if step.op in ROWWISE else "block"]
        out = self.make.fifo(site(0), block, F32)
        if step.op in ROWWISE:
            folded = self.make.fifo(site(0), (block[0], 1), F32)
            self.make.compute(Reduce(ROWWISE[step.op][0], (1,)), (self._read(step.a, self._blocks(block)),), (folded,))
            # The fold, spread over its row.
            self.make.compute(Generic((Operand(0),), ((0, 1),)), (folded,), (out,))
            return out, block
        ins = [self._read(v, self._blocks(block)) for v in ((step.a, step.b) if step.op in BINARY else (step.a,))]
        expr = (BINARY if step.op in BINARY else UNARY)[step.op][0]
        self.make.compute(Generic.elementwise(expr, len(ins), 2), ins, (out,))
        return out, block

    def _product(self, step):
        (m, n), k = self.blocks["block"], self.blocks["depth"]
        over = SIZE // k
        loops_a = (Loop(SIZE // m, (m, 0)), Loop(SIZE // n, (0, 0)), Loop(over, (0, k)))
        loops_b = (Loop(SIZE // m, (0, 0)), Loop(SIZE // n, (n, 0)), Loop(over, (0, k)))
        a = self._read(step.a, Affine((0, 0), (m, k), loops_a))
        b = self._read(step.b, Affine((0, 0), (n, k), loops_b))
        out = self.make.fifo(site(0), (m, n), F32)
        self.make.compute(Matmul((m, n, k), over, b_transposed=True), (a, b), (out,))
        return out, (m, n)


def lowered(program, rows=SIZE, columns=SIZE, depth=SIZE):
    return Lowering(closed(program), rows, columns, depth).graph()


def reordered(graph, random):
    """The same stages in another order of the table."""
    order = list(range(len(graph.stages)))
    random.shuffle(order)
    new = {StageId(old): StageId(at) for at, old in enumerate(order)}
    stages = tuple(graph.stages[old] for old in order)
    edges = tuple(Precedence(new[e.before], new[e.after]) for e in graph.precedences)
    return Graph(graph.tensors, graph.buffers, graph.groups, stages, edges)


sizes = st.sampled_from([1, 2, 4])


@settings(max_examples=60, deadline=None)
@given(programs(), sizes, sizes, sizes, st.randoms(use_true_random=False))
def test_other_blocks_and_another_order_are_held(program, rows, columns, depth, random):
    found = same_function(reordered(lowered(program, rows, columns, depth), random), lowered(program))
    assert found.held, str(found)


@settings(max_examples=120, deadline=None)
@given(programs(), st.data(), sizes, sizes)
def test_a_program_that_differs_in_numpy_is_broken(program, data, rows, columns):
    at = data.draw(st.integers(0, len(program) - 1))
    step = program[at]
    kinds = next(kind for kind in (UNARY, BINARY, ROWWISE, {"matmul": 0}) if step.op in kind)
    other = replace(step, op=data.draw(st.sampled_from(sorted(kinds))), a=data.draw(st.integers(0, at + 1)))
    mutated = (*program[:at], other, *program[at + 1 :])
    random = np.random.default_rng(1)
    inputs = [tuple(random.standard_normal((2, SIZE, SIZE)) * 0.5) for _ in range(3)]
    results = [(in_numpy(closed(program), *i), in_numpy(closed(mutated), *i)) for i in inputs]
    assume(all(np.isfinite(r).all() and np.abs(r).max() < 1e6 for pair in results for r in pair))
    differ = any(np.abs(a - b).max() > 1e-3 * np.abs(a).max() for a, b in results)
    found = same_function(lowered(mutated, rows, columns), lowered(program), rounds=3)
    close = all(np.abs(a - b).max() <= 1e-12 * np.abs(a).max() for a, b in results)
    if differ:
        assert found.verdict == "broken", str(found)
    elif mutated == program:
        assert found.held, str(found)
    elif close:
        assert found.verdict != "broken", str(found)

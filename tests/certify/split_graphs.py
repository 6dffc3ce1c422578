"""Products, normalised rows and the like over several chips, right and wrong in stated ways."""

from meshwright.ir import library
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Scalar, Site
from meshwright.ir.scalar import (
    Arithmetic,
    Choose,
    Number,
    ReadElement,
    Register,
    Repeat,
    ScalarBody,
    ScalarOp,
    SetRegister,
    WriteElement,
)
from meshwright.ir.spec import COPIED, Spec

F32, I32 = ElementType.F32, ElementType.I32
ROWS, COLUMNS, DEPTH = 4, 6, 8
SAME = Operand(0)


def site(chip):
    return Site(ChipId(chip), 0, 0)


class Builder(GraphBuilder):
    def read(self, tensor, shape, chip, after=(), rank=None):
        out = self.fifo(site(chip), shape, F32)
        self.load(tensor, whole(shape), out, rank, after)
        return out

    def write(self, tensor, source, rank=None):
        return self.store(tensor, whole(self.block(source)), source, rank)

    def each(self, expr, *ins, block=None):
        out = self.fifo(self.place(ins[0]), block or self.block(ins[0]), F32)
        rank = len(self.block(out))
        self.compute(Generic((expr,), (tuple(range(rank)),) * len(ins)), ins, (out,))
        return out

    def folded(self, pool, source, axis=1):
        block = [1 if a == axis else size for a, size in enumerate(self.block(source))]
        out = self.fifo(self.place(source), block, F32)
        self.compute(Reduce(pool, (axis,)), (source,), (out,))
        return out


def product(
    split=None,
    ranks=1,
    reduced="accumulator",
    bias=None,
    left_out=(),
    doubled=(),
    swapped=False,
    scaled=1.0,
    result=COPIED,
):
    """`a @ b.T` (and `bias`), a [4, 8] and b [6, 8], over `ranks` chips.

    split: "rows", "columns" or "contraction". reduced: "accumulator", "vector", or None: nobody adds. bias: "once", or
    "every": on every rank before the sum. left_out, doubled: ranks whose summand is. swapped: every rank takes the next
    one's piece of b. scaled: a factor on y. result: the spec of y.
    """
    make = Builder()
    chips = tuple(range(ranks))
    m, n, k = ROWS, COLUMNS, DEPTH
    specs = {
        None: (COPIED, COPIED, COPIED, COPIED),
        "rows": (Spec.on(0), COPIED, COPIED, Spec.on(0)),
        "columns": (COPIED, Spec.on(0), Spec.on(1), Spec.on(1)),
        "contraction": (Spec.on(1), Spec.on(1), COPIED, result),
    }[split]
    shapes = [spec.local(shape, ranks) for spec, shape in zip(specs, ((m, k), (n, k), (1, n), (m, n)), strict=True)]
    a = make.tensor("a", (m, k), F32, chips, specs[0])
    b = make.tensor("b", (n, k), F32, chips, specs[1])
    added = make.tensor("bias", (1, n), F32, chips, specs[2]) if bias else None
    y = make.tensor("y", (m, n), F32, chips, specs[3])
    in_accumulator = split == "contraction" and reduced == "accumulator" and not doubled and bias != "every"
    sums = []
    for chip in chips:
        rank = (chip + 1) % ranks if swapped else None
        operands = make.read(a, shapes[0], chip), make.read(b, shapes[1], chip, rank=rank)
        block = shapes[3]
        out = make.accumulator(site(chip), block) if in_accumulator else make.fifo(site(chip), block, F32)
        make.compute(Matmul((*block, shapes[0][1]), 1, b_transposed=True), operands, (out,))
        if chip in doubled:
            out = make.each(SAME + SAME, out)
        if bias == "every":
            out = make.each(SAME + Operand(1), out, make.read(added, shapes[2], chip))
        sums.append(out)
    if split == "contraction" and reduced and ranks > 1:
        adding = [s for chip, s in enumerate(sums) if chip not in left_out]
        unit = Unit.ACCUMULATOR if in_accumulator else Unit.VECTOR
        totals = adding if in_accumulator else [make.fifo(site(c), shapes[3], F32) for c in chips if c not in left_out]
        make.stage(AllReduce(Pool.SUM, y, combine(len(adding), 2, Pool.SUM, unit)), adding, totals)
        by_chip = {make.place(t).chip: t for t in totals}
        sums = [by_chip.get(chip, own) for chip, own in enumerate(sums)]
    for chip, total in enumerate(sums):
        expr, ins = SAME * scaled, [total]
        if bias == "once":
            expr, ins = expr + Operand(1), [total, make.read(added, shapes[2], chip)]
        made = make.each(expr, *ins)
        make.write(y, made)
    return make.graph()


def softmax(ranks=1, axis=1, local=False, forgotten=0):
    """Softmax along axis 1 of x [4, 8], its rows split over the ranks.

    axis: along which the sum runs instead. local: x is split on axis 1, and every rank normalises what it has.
    forgotten: columns that the sum leaves out.
    """
    make = Builder()
    chips = tuple(range(ranks))
    spec = (Spec.on(1) if local else Spec.on(0)) if ranks > 1 else COPIED
    x = make.tensor("x", (4, 8), F32, chips, spec)
    y = make.tensor("y", (4, 8), F32, chips, spec)
    block = spec.local((4, 8), ranks)
    for chip in chips:
        exps = make.scratch("exps", block, F32, chip)
        highest = make.folded(Pool.MAX, make.read(x, block, chip), axis)
        stored = make.write(exps, make.each(library.exp(SAME - Operand(1)), make.read(x, block, chip), highest))
        part = make.fifo(site(chip), (block[0], block[1] - forgotten), F32)
        make.load(exps, whole(make.block(part)), part, after=[stored])
        total = make.folded(Pool.SUM, part, axis)
        shares = make.read(exps, block, chip, [stored])
        make.write(y, make.each(library.divide(SAME, Operand(1)), shares, total))
    return make.graph()


def elementwise(expr, names=("a", "b"), shape=(3, 5), result="y", kept=None):
    """`result` = expr over inputs of these names, through a stored value `kept` where an expression for it is given."""
    make = Builder()
    tensors = [make.tensor(name, shape, F32, (0,)) for name in names]
    ins = [make.read(t, shape, 0) for t in tensors]
    if kept is not None:
        middle = make.tensor("middle", shape, F32, (0,))
        stored = make.write(middle, make.each(kept, *ins))
        ins = [make.read(middle, shape, 0, [stored])]
    out = make.tensor(result, shape, F32, (0,))
    make.write(out, make.each(expr, *ins))
    return make.graph()


def transposed(turn):
    """A square input, turned or not."""
    make = Builder()
    x, y = (make.tensor(name, (4, 4), F32, (0,)) for name in "xy")
    source = make.read(x, (4, 4), 0)
    out = make.fifo(site(0), (4, 4), F32)
    make.compute(Permute((1, 0) if turn else (0, 1)), (source,), (out,))
    make.write(y, out)
    return make.graph()


def copied_over(ranks, shift):
    """A value split on axis 0 to itself; every rank stores the piece of the rank `shift` after it."""
    make = Builder()
    x, y = (make.tensor(name, (8, 3), F32, range(ranks), Spec.on(0)) for name in "xy")
    for chip in range(ranks):
        source = make.read(x, (8 // ranks, 3), chip, rank=(chip + shift) % ranks)
        make.write(y, source)
    return make.graph()


def embedding(ranks=1, origin=True, all_of_it=True):
    """Rows of a table [8, 3], split on axis 0, looked up by ids [5]; rows a rank hasn't read 0, ranks are added.

    origin: whether ranks know where their rows begin. all_of_it: whether the rows are added over the ranks.
    """
    make = Builder()
    chips = tuple(range(ranks))
    ids = make.tensor("ids", (5,), I32, chips)
    table = make.tensor("table", (8, 3), F32, chips, Spec.on(0) if ranks > 1 else COPIED)
    y = make.tensor("y", (5, 3), F32, chips)
    found = []
    for chip in chips:
        index = make.fifo(site(chip), (5,), I32)
        make.load(ids, whole((5,)), index)
        rows = make.fifo(site(chip), (5, 3), F32)
        first = chip * (8 // ranks) if origin else 0
        make.load(table, Gather(Affine((0, 0), (5, 3), pad=0.0), 0, index, first), rows)
        found.append(rows)
    if ranks > 1 and all_of_it:
        totals = [make.fifo(site(chip), (5, 3), F32) for chip in chips]
        make.stage(AllReduce(Pool.SUM, y, combine(ranks, 2, Pool.SUM, Unit.VECTOR)), found, totals)
        found = totals
    for rows in found:
        make.write(y, rows)
    return make.graph()


def over_a_grid(specs=(COPIED, COPIED), grid=(1, 1), result=(COPIED, COPIED), twice=False):
    """y = 3 x over a grid of ranks, piece by piece. twice: the rank in the corner adds its piece once more."""
    make = Builder()
    chips = tuple(range(grid[0] * grid[1]))
    x = make.tensor("x", (4, 6), F32, chips, specs, grid)
    y = make.tensor("y", (4, 6), F32, chips, result, grid)
    block = specs[1].local(specs[0].local((4, 6), grid[0]), grid[1])
    for chip in chips:
        factor = 4.0 if twice and chip == 0 else 3.0
        make.write(y, make.each(SAME * factor, make.read(x, block, chip)))
    return make.graph()


def updated(row):
    """x [1, 3] is stored to a row of a cache [4, 3], and y is its first row."""
    make = Builder()
    x, cache, y = (make.tensor(name, (n, 3), F32, (0,)) for name, n in (("x", 1), ("cache", 4), ("y", 1)))
    make.write(y, make.read(cache, (1, 3), 0))
    make.store(cache, Affine((row, 0), (1, 3)), make.read(x, (1, 3), 0))
    return make.graph()


def largest(by_program, start=0):
    """The largest of each row of x [6, 5] and its position, by a scalar program or a fold; `start`: searched from."""
    make = Builder()
    x = make.tensor("x", (6, 5), F32, (0,))
    outs = [make.fifo(site(0), (1, 1), F32), make.fifo(site(0), (1, 1), I32)]
    row = make.fifo(site(0), (1, 5), F32)
    make.load(x, Affine((0, 0), (1, 5), (Loop(6, (1, 0)),)), row)
    if by_program:
        best, at, turn, value = (Register(i) for i in range(4))
        position = Arithmetic(ScalarOp.ADD, turn, Number(start))
        larger = Arithmetic(ScalarOp.LESS, best, value)
        body = (
            ReadElement(3, 0, position),
            SetRegister(1, Choose(larger, position, at)),
            SetRegister(0, Choose(larger, value, best)),
        )
        first = (ReadElement(0, 0, Number(start)), SetRegister(1, Number(start)))
        last = (WriteElement(0, Number(0), best), WriteElement(1, Number(0), at))
        make.stage(Scalar(ScalarBody(4, (*first, Repeat(2, 5 - start, body), *last))), (row,), outs)
    else:
        make.compute(Reduce(Pool.ARGMAX, (1,)), (row,), outs)
    for name, out in zip(("largest", "position"), outs, strict=True):
        result = make.tensor(name, (6, 1), F32 if name == "largest" else I32, (0,))
        make.store(result, Affine((0, 0), (1, 1), (Loop(6, (1, 0)),)), out)
    return make.graph()


def exp2(expr):
    """The bare primitive, without a clamp."""
    return Unary(UnaryOp.EXP2, expr)

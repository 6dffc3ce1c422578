"""One malformed graph for each rule of form, each a well-formed sample with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ir.samples import F16, F32, FP22, I32, site
from meshwright.ir.expression import Binary, BinaryOp, Constant, Operand, Select, Unary, UnaryOp
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.operation import Generic, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import Buffer, Compute, Precedence, Recv, Scalar, Stage, Store
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
    Statement,
    WriteElement,
)
from meshwright.ir.spec import Spec

Change = Callable[[Graph], Graph]


def at(table: str, index: int, /, **fields: Any) -> Change:
    """Changes fields of one record."""

    def change(graph: Graph) -> Graph:
        records = list(getattr(graph, table))
        records[index] = replace(records[index], **fields)
        return replace(graph, **{table: tuple(records)})

    return change


def kind(index: int, /, **fields: Any) -> Change:
    """Changes fields of a stage's kind."""
    return lambda graph: at("stages", index, kind=replace(graph.stages[index].kind, **fields))(graph)


def op(index: int, /, **fields: Any) -> Change:
    """Changes fields of a compute stage's operation."""
    return lambda graph: kind(index, op=replace(graph.stages[index].kind.op, **fields))(graph)


def pattern(index: int, /, **fields: Any) -> Change:
    """Changes fields of a load's or store's pattern; of the affine one under a gather where it hasn't such a field."""

    def change(graph: Graph) -> Graph:
        now = graph.stages[index].kind.pattern
        if set(fields) <= set(now.__struct_fields__):
            return kind(index, pattern=replace(now, **fields))(graph)
        return kind(index, pattern=replace(now, base=replace(now.base, **fields)))(graph)

    return change


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(graph: Graph) -> Graph:
        for one in changes:
            graph = one(graph)
        return graph

    return change


def more_stages(*stages: Stage) -> Change:
    """Puts stages at the end of the table."""
    return lambda graph: replace(graph, stages=(*graph.stages, *stages))


def more_buffers(*buffers: Buffer) -> Change:
    """Puts buffers at the end of the table."""
    return lambda graph: replace(graph, buffers=(*graph.buffers, *buffers))


def program(*statements: Statement, registers: int = 2) -> Change:
    """Replaces the scalar program of `embedding_argmax`, its stage s8."""
    return at("stages", 8, kind=Scalar(ScalarBody(registers, statements)))


def _edge(before: int, after: int) -> Change:
    return lambda graph: replace(graph, precedences=(Precedence(StageId(before), StageId(after)),))


BOOLEAN = Binary(BinaryOp.LT, Operand(0), Constant(0.0))
EVERYWHERE = replace(site(), chip=0)
ONE_MORE = Arithmetic(ScalarOp.ADD, Register(9), Choose(Register(0), Number(1), Register(1)))

# By sample. linear_layer: s0 load x -> b0, s1 load w -> b1, s2 load bias -> b2, s3 matmul -> b3 (spill b4), s4 store.
# chained_reduce: s0-s2 and s3-s5 load x, load w, matmul on chips 0, 1 (b0-b2, b3-b5); s6 all_reduce, s7 generic,
# s8 store. multicast_rows: s0 load to g0 -> b0, s1, s2 recv -> b1, b2; s3 generic, s4 store, s5 load, s6 generic,
# s7 reduce, s8 store. embedding_argmax: s0 load ids, s1 load table by b0, s2 argmax (chip 0), s3-s5 (chip 1),
# s6 all_reduce, s7 permute, s8 scalar, s9, s10 store.
MALFORMED: dict[str, tuple[str, Change]] = {
    # Ids that name nothing.
    "dangling input": ("linear_layer", at("stages", 4, ins=(9,))),
    "dangling output": ("linear_layer", at("stages", 0, outs=(-1,))),
    "dangling bias": ("linear_layer", op(3, bias=5)),
    "dangling spill": ("linear_layer", op(3, spill=-2)),
    "dangling index": ("embedding_argmax", pattern(1, index=99)),
    "dangling tensor of a load": ("linear_layer", kind(0, tensor=4)),
    "dangling tensor of a store": ("linear_layer", kind(4, tensor=-1)),
    "dangling tensor of an all-reduce": ("chained_reduce", kind(6, tensor=4)),
    "dangling group of a load": ("multicast_rows", kind(0, multicast=1)),
    "dangling group of a recv": ("multicast_rows", kind(1, group=-1)),
    "dangling precedence": ("linear_layer", _edge(0, 5)),
    # Tables.
    "two tensors of a name": ("linear_layer", at("tensors", 1, name="x")),
    "tensor without a name": ("linear_layer", at("tensors", 1, name="")),
    "negative size": ("linear_layer", at("tensors", 0, shape=(8, -6))),
    "internal format in memory": ("linear_layer", at("tensors", 0, format=FP22)),
    "tensor nowhere": ("linear_layer", at("tensors", 0, chips=())),
    "tensor twice on a chip": ("linear_layer", at("tensors", 0, chips=(0, 0))),
    "grid of another size": ("linear_layer", at("tensors", 0, grid=(2,))),
    "spec missing": ("chained_reduce", at("tensors", 0, grid=(2, 1))),
    "uneven split": ("chained_reduce", at("tensors", 0, shape=(4, 9))),
    "split on an axis that isn't there": ("chained_reduce", at("tensors", 0, specs=(Spec(axis=2),))),
    "block of nothing": ("linear_layer", at("buffers", 0, block=(4, 0))),
    "block without axes": ("linear_layer", at("buffers", 0, block=())),
    "block too large": ("linear_layer", at("buffers", 0, block=(1 << 16, 1 << 16))),
    "depth of nothing": ("linear_layer", at("buffers", 0, depth=0)),
    "rectangle inside out": ("multicast_rows", at("groups", 0, high=(-1, 0))),
    "rectangle too large": ("multicast_rows", at("groups", 0, high=(1 << 40, 0))),
    # Who puts into and takes from a FIFO.
    "two consumers": (
        "linear_layer",
        more_stages(Stage(Store(3, Affine((0, 0), (4, 4), (Loop(2, (4, 0)),))), ins=(3,))),
    ),
    "two producers": ("linear_layer", at("stages", 1, outs=(0,))),
    "index that is a port as well": ("embedding_argmax", pattern(1, index=2)),
    "no producer": ("linear_layer", both(at("stages", 2, outs=(5,)), more_buffers(Buffer(site(), (1, 4), F32, 1)))),
    "spill that is an input as well": ("linear_layer", op(3, spill=0)),
    # Places.
    "inputs at two sites": ("linear_layer", at("buffers", 1, site=site(0, 1))),
    "bias elsewhere": ("linear_layer", at("buffers", 2, site=site(0, 1))),
    "index elsewhere": ("embedding_argmax", at("buffers", 0, site=site(0, 1))),
    "output elsewhere": ("linear_layer", both(at("buffers", 3, site=site(0, 0, 1)), at("stages", 4, ins=(3,)))),
    "output on another chip": ("chained_reduce", at("buffers", 6, site=site(1))),
    "load of a tensor that isn't on the chip": ("linear_layer", at("tensors", 0, chips=(1,))),
    "load of a rank that isn't there": ("linear_layer", kind(0, rank=1)),
    # Loads, receives and stores.
    "load with an input": (
        "linear_layer",
        both(
            at("buffers", 4, block=(1,)),
            op(3, spill=None),
            at("stages", 0, ins=(4,)),
            at("stages", 1, outs=(1,)),
            more_stages(Stage(Compute(Generic((Constant(0.0),), ())), outs=(4,))),
        ),
    ),
    "load without an output": (
        "linear_layer",
        both(at("stages", 0, outs=()), at("stages", 3, ins=(1,), kind=Scalar(ScalarBody(0, ())))),
    ),
    "load with two outputs": ("linear_layer", both(op(3, spill=None), at("stages", 0, outs=(0, 4)))),
    "sender inside without a buffer": (
        "multicast_rows",
        both(
            at("stages", 0, outs=()),
            at("stages", 1, outs=(0,)),
            at("stages", 2, outs=(1,)),
            more_stages(Stage(Recv(0), outs=(2,))),
        ),
    ),
    "sender outside with a buffer": ("multicast_rows", at("groups", 0, low=(1, 0))),
    "sender's buffer elsewhere": ("multicast_rows", at("groups", 0, sender=site(0, 1))),
    "nobody receives": (
        "multicast_rows",
        both(
            at("groups", 0, low=(0, 1), high=(0, 1)),
            at("stages", 0, outs=()),
            *(at("stages", i, kind=Compute(Generic((Constant(0.0),), ()))) for i in (1, 2)),
            more_stages(Stage(Compute(Generic((Constant(0.0),), ())), outs=(0,))),
        ),
    ),
    "receivers of different blocks": ("multicast_rows", at("buffers", 1, block=(3, 2))),
    "receiver outside": ("multicast_rows", at("buffers", 1, site=site(0, 0, 1))),
    "receiver with an input": (
        "multicast_rows",
        both(at("stages", 1, ins=(6,)), at("stages", 8, kind=Scalar(ScalarBody(0, ())), ins=())),
    ),
    "more blocks than the pattern has": ("linear_layer", kind(0, num_blocks=7)),
    "load that casts": ("linear_layer", at("buffers", 0, format=F32)),
    "pattern of other axes": ("linear_layer", pattern(0, offset=(0,))),
    "loop of other axes": ("linear_layer", pattern(0, loops=(Loop(6, (1,)),))),
    "empty box": ("linear_layer", pattern(0, box=(4, 0))),
    "step of nothing": ("linear_layer", pattern(0, step=(0, 1))),
    "negative extent": ("linear_layer", pattern(0, loops=(Loop(-1, (0, 0)), Loop(-6, (0, 0))))),
    "too many blocks": ("linear_layer", pattern(0, loops=(Loop(1 << 20, (0, 0)), Loop(1 << 20, (0, 0))))),
    "box that isn't the block": ("linear_layer", pattern(0, box=(2, 4))),
    "gather along no axis": ("embedding_argmax", pattern(1, axis=2)),
    "gather whose box has too few axes": ("embedding_argmax", both(pattern(1, axis=1), pattern(1, box=(2,)))),
    "gather with too few indices": ("embedding_argmax", pattern(1, axis=1)),
    "gather by floats": (
        "embedding_argmax",
        both(at("buffers", 0, format=F32), at("tensors", 1, format=F32), at("buffers", 4, format=F32)),
    ),
    "store with an output": ("linear_layer", both(op(3, spill=None), at("stages", 4, outs=(4,)))),
    "sub-blocks that don't tile": ("linear_layer", kind(4, sub_blocks=(3, 4))),
    "sub-blocks of a matmul that don't tile": ("linear_layer", op(3, sub_blocks=(0, 4))),
    # Compute.
    "matmul of one operand": ("linear_layer", at("stages", 3, ins=(0,))),
    "matmul of nothing": ("linear_layer", op(3, contraction_blocks=0)),
    "matmul of another block": ("linear_layer", op(3, block=(4, 4, 3))),
    "matmul of indices": ("linear_layer", both(at("buffers", 0, format=I32), at("tensors", 0, format=I32))),
    "matmul out of an accumulator": ("chained_reduce", at("buffers", 0, resident=True)),
    "matmul continues another accumulator": (
        "chained_reduce",
        both(more_buffers(Buffer(site(), (4, 2), FP22, 1, resident=True)), at("stages", 2, ins=(0, 1, 7))),
    ),
    "matmul continues a FIFO": (
        "linear_layer",
        both(op(3, bias=None, spill=None), at("stages", 3, ins=(0, 1, 2)), at("buffers", 2, block=(4, 4))),
    ),
    "epilogue into an accumulator": ("chained_reduce", op(2, epilogue=Operand(0) * 2.0)),
    "bias of another shape": ("linear_layer", at("buffers", 2, block=(4, 1))),
    "spill that is resident": ("linear_layer", at("buffers", 4, resident=True)),
    "spill of another shape": ("linear_layer", at("buffers", 4, block=(4, 2))),
    "epilogue of two operands": ("linear_layer", op(3, epilogue=Operand(0) + Operand(1))),
    "generic of too few maps": ("chained_reduce", op(7, maps=())),
    "generic outputs of two shapes": (
        "chained_reduce",
        both(
            op(7, exprs=(Operand(0), Operand(0))),
            at("stages", 7, outs=(6, 7)),
            more_buffers(Buffer(site(), (2, 4), F32, 1)),
        ),
    ),
    "generic map that names an axis twice": ("chained_reduce", op(7, maps=((0, 0),))),
    "generic map that doesn't broadcast": ("chained_reduce", op(7, maps=((1, 0),))),
    "generic of an operand that isn't there": ("chained_reduce", op(7, exprs=(Operand(-1),))),
    "predicate as a value's part": ("chained_reduce", op(7, exprs=(BOOLEAN + Operand(0),))),
    "number as a predicate": ("chained_reduce", op(7, exprs=(Select(Operand(0), Operand(0), Operand(0)),))),
    "number negated as a predicate": (
        "chained_reduce",
        op(7, exprs=(Select(Unary(UnaryOp.NOT, Operand(0)), Operand(0), Operand(0)),)),
    ),
    "predicate as a value": ("chained_reduce", op(7, exprs=(BOOLEAN,))),
    "predicate as an epilogue": ("linear_layer", op(3, epilogue=BOOLEAN)),
    "accumulator that multiplies": (
        "chained_reduce",
        both(at("buffers", 6, format=FP22), op(7, exprs=(Operand(0) * Operand(0),), unit=Unit.ACCUMULATOR)),
    ),
    "accumulator of floats": ("chained_reduce", op(7, unit=Unit.ACCUMULATOR)),
    "reduce into two outputs": (
        "multicast_rows",
        both(more_buffers(Buffer(site(), (1, 2, 1), F32, 1)), at("stages", 7, outs=(6, 16))),
    ),
    "reduce along no axis": ("multicast_rows", op(7, axes=())),
    "reduce along an axis twice": ("multicast_rows", op(7, axes=(2, 2))),
    "reduce of no blocks": ("multicast_rows", op(7, blocks=0)),
    "reduce into another shape": ("multicast_rows", op(7, axes=(1,))),
    "argmax along two axes": (
        "embedding_argmax",
        both(op(2, axes=(0, 1)), at("buffers", 2, block=(1, 1)), at("buffers", 3, block=(1, 1))),
    ),
    "argmax position that is a float": ("embedding_argmax", at("buffers", 3, format=F32)),
    "permute of two inputs": ("embedding_argmax", both(at("stages", 7, ins=(8, 9)), at("stages", 8, ins=()))),
    "permute of a grid of other axes": ("embedding_argmax", op(7, grid=(3,))),
    "permute of no permutation": ("embedding_argmax", op(7, axes=(0, 0))),
    "permute cut unevenly": ("embedding_argmax", op(7, grid=(1, 2))),
    "permute that casts": ("embedding_argmax", both(at("buffers", 10, format=F16), at("tensors", 3, format=F16))),
    # All-reduce.
    "all-reduce of nothing": ("chained_reduce", at("stages", 6, ins=())),
    "all-reduce twice on a chip": ("chained_reduce", at("stages", 6, ins=(2, 2))),
    "all-reduce of half a pair": ("embedding_argmax", at("stages", 6, ins=(2, 3, 6))),
    "combine of another pool": ("chained_reduce", kind(6, pool=Pool.MAX)),
    "combine of too few": ("chained_reduce", kind(6, combine=combine(1, 2, Pool.SUM, Unit.ACCUMULATOR))),
    "combine in another order": ("chained_reduce", kind(6, combine=Generic((Operand(1) + Operand(0),), ((0, 1),) * 2))),
    "all-reduce into nothing": ("chained_reduce", at("stages", 6, outs=())),
    "all-reduce into a chip that takes no part": (
        "chained_reduce",
        both(at("stages", 6, outs=(7,)), more_buffers(Buffer(site(2), (4, 2), FP22, 1))),
    ),
    "all-reduce of a torn pair": ("embedding_argmax", at("stages", 6, ins=(2, 7, 6, 3))),
    "all-reduce into a torn pair": (
        "embedding_argmax",
        both(more_buffers(Buffer(site(1), (2, 1), I32, 1)), at("stages", 6, outs=(8, 12)), at("stages", 8, ins=())),
    ),
    "all-reduce of different blocks": ("chained_reduce", at("buffers", 5, block=(2, 2))),
    # Scalar programs.
    "program without outputs": (
        "embedding_argmax",
        both(at("stages", 8, outs=()), more_stages(Stage(Compute(Generic((Constant(0.0),), ())), outs=(11,)))),
    ),
    "program of too many registers": ("embedding_argmax", program(registers=257)),
    "program of a register that isn't there": ("embedding_argmax", program(SetRegister(2, ONE_MORE))),
    "program of a port that isn't there": ("embedding_argmax", program(ReadElement(0, 1, Number(0)))),
    "program of an output that isn't there": ("embedding_argmax", program(ReadElement(0, -1, Number(0), output=True))),
    "program that writes an output that isn't there": (
        "embedding_argmax",
        program(WriteElement(1, Number(0), Number(0))),
    ),
    "program that repeats less than never": ("embedding_argmax", program(Repeat(0, -1, ()))),
    "program that repeats too often": ("embedding_argmax", program(Repeat(0, 1 << 11, (Repeat(1, 1 << 11, ()),)))),
    "program of a number too large": ("embedding_argmax", program(SetRegister(0, Number(1 << 63)))),
}

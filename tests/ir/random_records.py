"""Arbitrary records of every kind, well formed or not: what has to survive being written and read."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.ir.expression import (
    Binary,
    BinaryOp,
    Cast,
    Constant,
    Expr,
    MultiplyAdd,
    Operand,
    Select,
    Special,
    Unary,
    UnaryOp,
)
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Permute, Reduce, Unit
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import (
    AllReduce,
    Buffer,
    Compute,
    Group,
    Load,
    Precedence,
    Recv,
    Scalar,
    Site,
    Stage,
    Store,
    Tensor,
)
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
from meshwright.ir.spec import Spec

small = st.integers(-3, 1 << 40)
count = st.integers(0, 9)
buffers = count.map(BufferId)
formats = st.sampled_from(ElementType)
pools = st.sampled_from(Pool)


def some(values: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    """Short tuples."""
    return st.lists(values, max_size=most).map(tuple)


def maybe(values: st.SearchStrategy) -> st.SearchStrategy:
    """A value or None."""
    return st.none() | values


constants = st.builds(Constant, st.floats() | st.integers(-5, 5) | st.sampled_from(Special))
exprs: st.SearchStrategy[Expr] = st.recursive(
    st.builds(Operand, small) | constants,
    lambda e: st.one_of(
        st.builds(Unary, st.sampled_from(UnaryOp), e),
        st.builds(Binary, st.sampled_from(BinaryOp), e, e),
        st.builds(MultiplyAdd, e, e, e),
        st.builds(Select, e, e, e),
        st.builds(Cast, e, formats),
    ),
    max_leaves=8,
)
scalar_exprs = st.recursive(
    st.builds(Number, st.integers(-(1 << 62), 1 << 62)) | st.builds(Register, small),
    lambda e: st.builds(Arithmetic, st.sampled_from(ScalarOp), e, e) | st.builds(Choose, e, e, e),
    max_leaves=5,
)
statements = st.recursive(
    st.one_of(
        st.builds(SetRegister, count, scalar_exprs),
        st.builds(ReadElement, count, count, scalar_exprs, st.booleans()),
        st.builds(WriteElement, count, scalar_exprs, scalar_exprs),
    ),
    lambda s: st.builds(Repeat, count, small, some(s)),
    max_leaves=5,
)
specs = st.one_of(st.builds(Spec), st.builds(Spec, axis=count), st.builds(Spec, partial=pools))
affines = st.builds(
    Affine,
    some(small),
    some(small),
    some(st.builds(Loop, small, some(small))),
    some(small),
    maybe(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3)),
)
patterns = affines | st.builds(Gather, affines, small, buffers, small)
generics = st.builds(Generic, some(exprs), some(some(count)), st.sampled_from(Unit))
matmuls = st.builds(
    Matmul,
    st.tuples(small, small, small),
    small,
    st.booleans(),
    maybe(buffers),
    maybe(buffers),
    maybe(exprs),
    maybe(st.tuples(small, small)),
)
operations = st.one_of(
    matmuls,
    generics,
    st.builds(Reduce, pools, some(small), small),
    st.builds(Permute, some(small), some(small)),
)
kinds = st.one_of(
    st.builds(Load, count.map(TensorId), patterns, small, maybe(count.map(GroupId)), maybe(small)),
    st.builds(Recv, count.map(GroupId)),
    st.builds(Store, count.map(TensorId), patterns, maybe(st.tuples(small, small)), maybe(small)),
    st.builds(AllReduce, pools, count.map(TensorId), generics),
    st.builds(Compute, operations),
    st.builds(Scalar, st.builds(ScalarBody, count, some(statements))),
)
sites = st.builds(Site, count.map(ChipId), small, small)
stages = st.builds(Stage, kinds, some(buffers), some(buffers))
graphs = st.builds(
    Graph,
    some(
        st.builds(Tensor, st.text(max_size=5), some(small), formats, some(count.map(ChipId)), some(specs), some(small))
    ),
    some(st.builds(Buffer, sites, some(small), formats, small, st.booleans())),
    some(st.builds(Group, sites, st.tuples(small, small), st.tuples(small, small))),
    some(stages, 4),
    some(st.builds(Precedence, count.map(StageId), count.map(StageId))),
)

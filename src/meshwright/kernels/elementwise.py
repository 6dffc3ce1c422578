"""Elementwise kernels: an expression over operands that broadcast by numpy's rules, on vector units."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir import library
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr, Operand, as_expr, type_fault
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.linearity import is_linear_in
from meshwright.ir.operation import Generic
from meshwright.kernels.blocks import at_most, filled
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import named, require_floats, require_operands
from meshwright.kernels.placement import Placement


class Elementwise(Struct, frozen=True):
    """`expr` over `count` operands, element by element. The result has the first operand's element type."""

    name: str
    expr: Expr
    count: int

    @property
    def unit(self) -> UnitKind:
        """Vector units do elementwise work."""
        return "vector"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The operands' shapes broadcast against each other."""
        if len(operands) != self.count:
            raise KernelError(f"{self.name} takes {self.count} operands; {len(operands)} are given: {named(operands)}")
        require_operands(self.name, operands)
        require_floats(self.name, operands)
        return Shaped(broadcast(self.name, operands), operands[0].format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """Axes line up from the last one; nothing is mixed."""
        rank = max(len(o.shape) for o in operands)
        return tuple(tuple(range(rank - len(o.shape), rank)) for o in operands)

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """None: nothing is folded."""
        return ()

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """As the expression is."""
        return is_linear_in(self.expr, together)

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """Loads, one Generic and a store at each vector unit that has a share."""
        sites = placement.vector_sites()
        elements = at_most(placement.vector_elements(len(operands) + 1), math.prod(result.shape), len(sites))
        nest = Nest.over(result.shape, filled(result.shape, elements))
        shapes = [Shaped(o.shape, placement.value_format) for o in operands]
        stores: list[StageId] = []
        for share, site in zip(nest.dealt(len(sites)), sites, strict=False):
            ins: list[BufferId] = []
            for piece, axes in zip(operands, self.axes(shapes), strict=True):
                pattern = share.pattern(axes, piece.shape)
                block = _padded(pattern.box, len(result.shape))
                ins.append(builder.fifo(site, block, placement.value_format))
                builder.load(piece.tensor, pattern, ins[-1], piece.rank, piece.ready)
            pattern = share.pattern(range(len(result.shape)), result.shape)
            block = _padded(pattern.box, len(result.shape))
            out = builder.fifo(site, block, placement.value_format)
            maps = (tuple(range(len(block))),) * len(ins)
            builder.compute(Generic((self.expr,), maps), ins, (out,))
            stores.append(builder.store(result.tensor, pattern, out, result.rank))
        return tuple(stores)


def broadcast(name: str, operands: Sequence[Shaped]) -> tuple[int, ...]:
    """The shape that operands broadcast to; `KernelError` naming the axis where they don't."""
    rank = max((len(o.shape) for o in operands), default=0)
    shape: list[int] = []
    for axis in range(-rank, 0):
        sizes = {o.shape[axis] for o in operands if -axis <= len(o.shape)} - {1}
        if len(sizes) > 1:
            raise KernelError(
                f"{name}: {' and '.join(map(str, operands))} don't broadcast: along axis {axis} they have "
                f"{' and '.join(map(str, sorted(sizes)))} elements"
            )
        shape.append(sizes.pop() if sizes else 1)
    return tuple(shape)


def _padded(box: Sequence[int], rank: int) -> tuple[int, ...]:
    """A block with `rank` axes (at least one): a box lined up from its last axis."""
    size = max(rank, 1)
    return (1,) * (size - len(box)) + tuple(box)


def elementwise(function: Callable[..., Expr | float], name: str | None = None) -> Elementwise:
    """A kernel from a Python function over elements, traced once: `elementwise(lambda x, y: x * y + 1.0)`.

    The function gets one expression node a parameter, and may use Python's arithmetic and `meshwright.ir.library`.
    Raises `KernelError` where it can't be traced.
    """
    count = len(inspect.signature(function).parameters)
    try:
        expr = as_expr(function(*(Operand(i) for i in range(count))))
    except TypeError as error:
        raise KernelError(
            f"{name or function.__name__} can't be traced into the compute algebra: {error}. Use + - * < > and the "
            "functions of meshwright.ir.library; a choice is library.select(condition, a, b)"
        ) from None
    fault = type_fault(expr)
    if fault is not None:
        raise KernelError(f"{name or function.__name__}: {fault}")
    return Elementwise(name or function.__name__, expr, count)


def _unary(function: Callable[[Expr], Expr]) -> Elementwise:
    return Elementwise(function.__name__, function(Operand(0)), 1)


_A, _B = Operand(0), Operand(1)

add = Elementwise("add", _A + _B, 2)
subtract = Elementwise("subtract", _A - _B, 2)
multiply = Elementwise("multiply", _A * _B, 2)
maximum = Elementwise("maximum", library.maximum(_A, _B), 2)
minimum = Elementwise("minimum", library.minimum(_A, _B), 2)
negative = Elementwise("negative", -_A, 1)
exp = _unary(library.exp)
log = _unary(library.log)
sqrt = _unary(library.sqrt)
reciprocal = _unary(library.reciprocal)
sigmoid = _unary(library.sigmoid)
silu = _unary(library.silu)
tanh = _unary(library.tanh)
erf = _unary(library.erf)
gelu = _unary(library.gelu)
gelu_sigmoid = _unary(library.gelu_sigmoid)


def scale(factor: float) -> Elementwise:
    """Multiplies by a constant."""
    return Elementwise(f"scale({factor:g})", Operand(0) * factor, 1)

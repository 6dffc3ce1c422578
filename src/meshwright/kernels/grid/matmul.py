"""The matrix product on a rectangle of sites, operands multicast along its rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Expr
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import StageId
from meshwright.ir.linearity import is_linear_in
from meshwright.ir.operation import Matmul
from meshwright.ir.pool import Pool
from meshwright.kernels.grid.products import Bias, Products, emit_products
from meshwright.kernels.grid.rectangle import Deal, SiteRectangle
from meshwright.kernels.grid.spread import Source
from meshwright.kernels.grid.tiles import Tile, require_depth, tile_for
from meshwright.kernels.grid.tracing import traced
from meshwright.kernels.kernel import Contraction, Piece, Shaped, UnitKind
from meshwright.kernels.nest import Nest
from meshwright.kernels.operands import require_floats, require_operands
from meshwright.kernels.placement import Placement

_NAME = "multicast matmul"


class MulticastProduct(Struct, frozen=True):
    """`epilogue(a @ b.T + bias)`: a [M, K], b [N, K] and maybe a bias [N] or [M, N] give [M, N].

    With `b_transposed` False, b is [K, N] and the product is `a @ b`. Output blocks are dealt over rows and columns of
    sites, the same number to each. Blocks past an edge are read as zeros (of K too, which adds zeros to the sums) and
    cut where they are stored. Bias and epilogue come after the last step through K.

    tile: (m, n, k) of a block; None for one that suits. rows, columns: how many rows and columns of sites; None for all
    that have a share. depth: blocks of a FIFO. epilogue: an expression over operand 0. spill: the element type in which
    partial sums leave the engine between two steps; float32 loses nothing.

    On a grid with bf16 operands the error of a result y before its epilogue is at most
    2^-8 |y| + (K + 1) 2^-24 (sum over K of |a b| + |bias|): one rounding to bf16, K + 1 additions in float32. Every
    step's bf16 spill adds 2^-8 of the partial sum's magnitude.
    """

    tile: Tile | None = None
    rows: int | None = None
    columns: int | None = None
    depth: int = 2
    b_transposed: bool = True
    epilogue: Expr | None = None
    spill: ElementType | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return _NAME

    @property
    def unit(self) -> UnitKind:
        """Matrix units do products."""
        return "matrix"

    def result(self, operands: Sequence[Shaped]) -> Shaped:
        """The shape of the product; `KernelError` where the operands don't fit each other."""
        require_operands(_NAME, operands, {2: "a and b", 3: "a, b and a bias"})
        require_floats(_NAME, operands)
        a, b = operands[:2]
        form = "a @ b.T: `b` is stored [N][K]" if self.b_transposed else "a @ b: `b` is stored [K][N]"
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise KernelError(f"{_NAME}: `a` is {a} and `b` is {b}; both have two axes. The product is {form}")
        n, k = b.shape if self.b_transposed else b.shape[::-1]
        if a.shape[1] != k:
            raise KernelError(
                f"{_NAME}: `a` is {a} and `b` is {b}: the contraction has {a.shape[1]} and {k} elements. "
                f"The product is {form}"
            )
        if len(operands) == 3 and operands[2].shape not in ((n,), (a.shape[0], n)):
            raise KernelError(
                f"{_NAME}: the bias is {operands[2]} and the product [{a.shape[0]}, {n}]; a bias is [{n}], or as "
                "large as the product"
            )
        return Shaped((a.shape[0], n), a.format)

    def axes(self, operands: Sequence[Shaped]) -> tuple[tuple[int | None, ...], ...]:
        """K is mixed; rows of `a` are rows of the result, rows of `b` its columns."""
        found = ((0, None), (1, None) if self.b_transposed else (None, 1))
        return found if len(operands) == 2 else (*found, (1,) if len(operands[2].shape) == 1 else (0, 1))

    def contractions(self, operands: Sequence[Shaped]) -> tuple[Contraction, ...]:
        """K, unless a bias or something that isn't linear comes after the sum: slices would each have it."""
        if len(operands) == 3 or not self._linear:
            return ()
        return (Contraction((1, 1 if self.b_transposed else 0), Pool.SUM),)

    @property
    def _linear(self) -> bool:
        return self.epilogue is None or is_linear_in(self.epilogue, frozenset((0,)))

    def linear_in(self, together: frozenset[int], operands: Sequence[Shaped]) -> bool:
        """In `a` or `b`, together with the bias if there is one, unless the epilogue isn't."""
        bias = frozenset(range(2, len(operands)))
        return self._linear and together in (bias | {0}, bias | {1})

    def emit(
        self, builder: GraphBuilder, placement: Placement, operands: Sequence[Piece], result: Piece
    ) -> tuple[StageId, ...]:
        """A multicast a row and a column, one Matmul and one store a site."""
        (m, n), k = result.shape, operands[0].shape[1]
        sites = SiteRectangle.of(placement, self.rows, self.columns, _NAME)
        tile = tile_for(self.tile, placement, math.ceil(m / sites.rows), math.ceil(n / sites.columns), k)
        down, across = (
            Deal.over(math.ceil(size / block), lines)
            for size, block, lines in ((m, tile[0], sites.rows), (n, tile[1], sites.columns))
        )
        nests = [
            [
                Nest(result.shape, tile[:2], (row * down.each, column * across.each), (down.each, across.each))
                for column in range(across.lines)
            ]
            for row in range(down.lines)
        ]
        a, b = operands[:2]
        k_axis = 1 if self.b_transposed else 0
        of_b = (1, None) if self.b_transposed else (None, 1)
        op = Matmul(tile, math.ceil(k / tile[2]), b_transposed=self.b_transposed, epilogue=self.epilogue)
        products = Products(
            over=sites.first(down.lines, across.lines),
            op=op,
            rows=[Source(a.tensor, nest[0].pattern((0, None), a.shape, [(1, tile[2])]), a.ready) for nest in nests],
            columns=[Source(b.tensor, n.pattern(of_b, b.shape, [(k_axis, tile[2])]), b.ready) for n in nests[0]],
            stores=[[nest.pattern((0, 1), result.shape) for nest in row] for row in nests],
            depth=self.depth,
            bias=None if len(operands) == 2 else _bias(operands[2], nests, tile),
            spill=self.spill,
        )
        return emit_products(builder, products, result)


def _bias(bias: Piece, nests: Sequence[Sequence[Nest]], tile: Tile) -> Bias:
    """A bias of one row is the same in a whole column of sites; a bias of the product's shape is each site's own."""
    if len(bias.shape) == 1:
        sent = [Source(bias.tensor, nest.pattern((1,), bias.shape), bias.ready) for nest in nests[0]]
        return Bias((1, tile[1]), columns=sent)
    own = [[Source(bias.tensor, nest.pattern((0, 1), bias.shape), bias.ready) for nest in row] for row in nests]
    return Bias(tile[:2], sites=own)


def multicast_matmul(
    tile: Tile | None = None,
    rows: int | None = None,
    columns: int | None = None,
    depth: int = 2,
    b_transposed: bool = True,
    epilogue: Callable[[Expr], Expr | float] | None = None,
    spill: ElementType | None = None,
) -> MulticastProduct:
    """A `MulticastProduct` whose epilogue is traced: `multicast_matmul(epilogue=library.gelu)`.

    Raises `KernelError` for a depth below 1, an epilogue that can't be traced, or a spill of whole numbers.
    """
    require_depth("multicast_matmul", depth)
    if spill is not None and spill.is_integer:
        raise KernelError(f"multicast_matmul(spill={spill}): partial sums are no whole numbers; f32 loses nothing")
    expr = None if epilogue is None else traced("multicast_matmul: the epilogue", epilogue)
    return MulticastProduct(tile, rows, columns, depth, b_transposed, expr, spill)

"""Products on rows and columns of sites: `a` blocks multicast along rows, `b` blocks along columns.

The site in the first column of each row sends `a` to its row, the site in the first row of each column sends `b` to its
column. Every site takes a block of each, step by step through K, and stores its own output blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, StageId
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine
from meshwright.ir.records import Site
from meshwright.kernels.grid.rectangle import SiteRectangle
from meshwright.kernels.grid.spread import Source, spread
from meshwright.kernels.kernel import Piece


class Bias(Struct, frozen=True):
    """What is added to the sums: one source a column, multicast along it, or one a site, which loads its own.

    block: (1, n) or (m, n).
    """

    block: tuple[int, int]
    columns: Sequence[Source] = ()
    sites: Sequence[Sequence[Source]] = ()


class Products(Struct, frozen=True):
    """One Matmul a site of `over`.

    op: the operation of every site, without buffers. rows: what is sent along each row; columns: along each column.
    stores: the pattern of the result at each site, row by row. depth: blocks of a FIFO. spill: the element type that
    partial sums are written to and read back from between steps; None: they stay in the engine.
    """

    over: SiteRectangle
    op: Matmul
    rows: Sequence[Source]
    columns: Sequence[Source]
    stores: Sequence[Sequence[Affine]]
    depth: int
    bias: Bias | None = None
    spill: ElementType | None = None


def emit_products(builder: GraphBuilder, products: Products, result: Piece) -> tuple[StageId, ...]:
    """Adds the stages; gives those that store the result."""
    over, op, depth = products.over, products.op, products.depth
    m, n, k = op.block
    a: dict[Site, BufferId] = {}
    b: dict[Site, BufferId] = {}
    for row, source in enumerate(products.rows):
        a |= spread(builder, source, over.row(row), (m, k), depth)
    for column, source in enumerate(products.columns):
        b |= spread(builder, source, over.column(column), (n, k) if op.b_transposed else (k, n), depth)
    bias = _biases(builder, products)
    element = builder.element_type(result.tensor)
    stored: list[StageId] = []
    for row in range(over.rows):
        for column in range(over.columns):
            site = over.site(row, column)
            spill = None if products.spill is None else builder.fifo(site, (m, n), products.spill, 1)
            out = builder.fifo(site, (m, n), element, depth)
            here = msgspec.structs.replace(op, bias=bias.get(site), spill=spill)
            builder.compute(here, (a[site], b[site]), (out,))
            stored.append(builder.store(result.tensor, products.stores[row][column], out, result.rank))
    return tuple(stored)


def _biases(builder: GraphBuilder, products: Products) -> dict[Site, BufferId]:
    """The buffer that each site takes its bias from; none without a bias."""
    found: dict[Site, BufferId] = {}
    if products.bias is None:
        return found
    over, bias = products.over, products.bias
    for column, source in enumerate(bias.columns):
        found |= spread(builder, source, over.column(column), bias.block, products.depth)
    for row, sources in enumerate(bias.sites):
        for column, source in enumerate(sources):
            alone = over.row(row).column(column)
            found |= spread(builder, source, alone, bias.block, products.depth)
    return found

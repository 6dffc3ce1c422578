"""One load that fills a buffer at every site of a rectangle."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.ir.build import GraphBuilder
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.pattern import AccessPattern
from meshwright.ir.records import Site
from meshwright.kernels.grid.rectangle import SiteRectangle


class Source(Struct, frozen=True):
    """What is loaded: the piece of a tensor on the sites' own chip, in which blocks, and after which stages."""

    tensor: TensorId
    pattern: AccessPattern
    ready: tuple[StageId, ...] = ()


def spread(
    builder: GraphBuilder, source: Source, over: SiteRectangle, block: Sequence[int], depth: int
) -> dict[Site, BufferId]:
    """The buffer of `depth` blocks at each site, all filled by one load at the rectangle's first site.

    A rectangle of one site is filled by an ordinary load. A gather's index buffer has to be at the first site.
    """
    element = builder.element_type(source.tensor)
    at = {site: builder.fifo(site, block, element, depth) for site in over.sites}
    if len(at) == 1:
        builder.load(source.tensor, source.pattern, next(iter(at.values())), after=source.ready)
        return at
    group = builder.group(over.site(0, 0), over.low, over.high)
    stage = builder.multicast(source.tensor, source.pattern, group, tuple(at.values()))
    for before in source.ready:
        builder.precede(before, stage)
    return at

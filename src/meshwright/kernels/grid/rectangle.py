"""The sites of one chip as rows and columns, which is what multicast needs: a rectangle without gaps."""

from __future__ import annotations

import math

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.kernels.placement import Placement


class SiteRectangle(Struct, frozen=True):
    """Sites `(x, y)` of one chip, from `low` to `high`, corners included; a row has one y, a column one x."""

    chip: int
    low: tuple[int, int]
    high: tuple[int, int]

    @classmethod
    def of(
        cls, placement: Placement, rows: int | None = None, columns: int | None = None, what: str = "multicast"
    ) -> SiteRectangle:
        """The chip's matrix sites, or the first `rows` by `columns` of them.

        what: who asks, for messages. Raises `PlacementError` where the sites leave a gap, or are fewer than asked for.
        """
        sites = placement.matrix_sites()
        xs, ys = sorted({site.x for site in sites}), sorted({site.y for site in sites})
        width, height = xs[-1] - xs[0] + 1, ys[-1] - ys[0] + 1
        if len(sites) != width * height:
            raise PlacementError(
                f"{what} on chip {placement.chip}: its {len(sites)} sites leave gaps in the rectangle "
                f"({xs[0]},{ys[0]})..({xs[-1]},{ys[-1]}) of {width * height}; a multicast reaches every place of its "
                "rectangle"
            )
        for name, asked, there in (("rows", rows, height), ("columns", columns, width)):
            if asked is not None and not 1 <= asked <= there:
                raise PlacementError(
                    f"{what} over {asked} {name} of sites: chip {placement.chip} has {height} rows and {width} columns "
                    f"of them; 1 to {there} {name} are possible"
                )
        return cls(placement.chip, (xs[0], ys[0]), (xs[0] + (columns or width) - 1, ys[0] + (rows or height) - 1))

    @property
    def rows(self) -> int:
        """How many rows of sites."""
        return self.high[1] - self.low[1] + 1

    @property
    def columns(self) -> int:
        """How many columns of sites."""
        return self.high[0] - self.low[0] + 1

    def site(self, row: int, column: int) -> Site:
        """The site in that row and column, counted from 0."""
        return Site(ChipId(self.chip), self.low[0] + column, self.low[1] + row)

    def row(self, row: int) -> SiteRectangle:
        """One row alone."""
        y = self.low[1] + row
        return SiteRectangle(self.chip, (self.low[0], y), (self.high[0], y))

    def column(self, column: int) -> SiteRectangle:
        """One column alone."""
        x = self.low[0] + column
        return SiteRectangle(self.chip, (x, self.low[1]), (x, self.high[1]))

    def first(self, rows: int, columns: int) -> SiteRectangle:
        """The first `rows` and `columns`: no more than there are."""
        return SiteRectangle(self.chip, self.low, (self.low[0] + columns - 1, self.low[1] + rows - 1))

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site, row by row."""
        return tuple(self.site(row, column) for row in range(self.rows) for column in range(self.columns))


class Deal(Struct, frozen=True):
    """Blocks along an axis dealt over lines of sites, every line the same number: a multicast leaves no choice.

    lines: how many lines have a share; each: blocks of a share. The last share may reach past the last block: such
    blocks are read padded and cut where they are stored.
    """

    lines: int
    each: int

    @classmethod
    def over(cls, blocks: int, lines: int) -> Deal:
        """`blocks` over at most `lines`."""
        each = math.ceil(blocks / lines)
        return cls(math.ceil(blocks / each), each)

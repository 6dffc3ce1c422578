"""One site in a picture: its coordinates, what its engines do, its FIFOs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from meshwright.ir.records import Role
from meshwright.report.summary import Held, SiteSummary, Work
from meshwright.report.svg import CHARACTER, Drawing, fitted
from meshwright.report.words import sizes

_SIZE = 9.0
_LINE = 12.5
_HEAD = 16.0
_DEPTH_CELLS = 4
_WEIGHT: Final[tuple[Role, ...]] = ("compute", "link", "scalar", "reader", "writer")
_DETAILED = 400
"""Up to so many sites each shows its work and FIFOs; beyond, how many there are."""


class CellStyle(Struct, frozen=True):
    """Measures of a site's box. work, held: most lines of each; 0 of both: counts alone."""

    width: float
    height: float
    work: int
    held: int


def cell_style(sites: Sequence[SiteSummary], drawn: int) -> CellStyle:
    """A box that the fullest site fits, or nearly: what is more is counted."""
    if drawn > _DETAILED:
        return CellStyle(86, 44, 0, 0)
    most_work, most_held = (5, 4) if drawn > 64 else (8, 6)
    work = min(most_work, max((len(site.work) for site in sites), default=0))
    held = min(most_held, max((len(site.held) for site in sites), default=0))
    longest = max(
        [12, *(len(str(w)) + 2 for site in sites for w in site.work)]
        + [len(_held(h)) + min(h.depth, _DEPTH_CELLS + 1) + 2 for site in sites for h in site.held]
    )
    width = min(210.0 if drawn <= 64 else 168.0, longest * _SIZE * CHARACTER + 14)
    return CellStyle(max(width, 96), _HEAD + (work + held) * _LINE + 10, work, held)


def draw_cell(
    drawing: Drawing,
    style: CellStyle,
    corner: tuple[float, float],
    coordinates: tuple[int, int],
    site: SiteSummary | None,
    colours: Mapping[str, str],
) -> None:
    """The box of one site; without `site`, of a place where this graph has nothing."""
    x, y = corner
    name = f"({coordinates[0]},{coordinates[1]})"
    if site is None:
        drawing.box(x, y, style.width, style.height, fill="#fbfcfd", stroke="#d9e0e6", stroke_width=0.8, rx=4)
        drawing.text(x + 6, y + 12, name, _SIZE, fill="#a9b4bf")
        return
    drawing.box(x, y, style.width, style.height, fill="#ffffff", stroke="#52606d", stroke_width=1, rx=4)
    drawing.text(x + 6, y + 12, name, _SIZE, font_weight="bold")
    fifos = f"{site.fifos} FIFO{'s' if site.fifos != 1 else ''}"
    stages = sum(work.count for work in site.work)
    if not style.work and not style.held:
        drawing.text(x + 6, y + 25, f"{stages} stage{'s' if stages != 1 else ''}", _SIZE)
        drawing.text(x + 6, y + 37, fifos, _SIZE, fill="#52606d")
        return
    drawing.text(x + style.width - 6, y + 12, fifos, _SIZE, "#7b8794", text_anchor="end")
    at = y + _HEAD + 9
    for work in _shown(site.work, style.work):
        drawing.box(x + 6, at - 7.5, 3, 9, fill=colours[work.role])
        drawing.text(x + 13, at, fitted(str(work), style.width - 17, _SIZE), _SIZE)
        at += _LINE
    at = _draw_more(drawing, x, at, len(site.work) - style.work, style.work)
    for held in site.held if len(site.held) <= style.held else site.held[: style.held - 1]:
        _draw_held(drawing, style, x + 6, at, held)
        at += _LINE
    _draw_more(drawing, x, at, len(site.held) - style.held, style.held)


def _shown(work: Sequence[Work], most: int) -> Sequence[Work]:
    """What fits, in its order; where not all does, what computes rather than what moves."""
    if len(work) <= most:
        return work
    weight = sorted(range(len(work)), key=lambda i: (_WEIGHT.index(work[i].role), i))
    return [work[i] for i in sorted(weight[: most - 1])]


def _draw_more(drawing: Drawing, x: float, at: float, over: int, most: int) -> float:
    """A line that counts what isn't shown, where something isn't."""
    if over <= 0 or not most:
        return at
    drawing.text(x + 13, at, f"+ {over + 1} more", _SIZE, fill="#7b8794")
    return at + _LINE


def _held(held: Held) -> str:
    several = f"{held.count}×" if held.count > 1 else ""
    return f"{several}{held.format} {sizes(held.block)}"


def _draw_held(drawing: Drawing, style: CellStyle, x: float, at: float, held: Held) -> None:
    """A cell a block, then count, element type and block shape."""
    fill = "#c9d6df" if held.resident else "#f5d76e"
    cells = min(held.depth, _DEPTH_CELLS)
    for number in range(cells):
        drawing.box(x + number * 6, at - 7.5, 5, 8.5, fill=fill, stroke="#8a6d1a", stroke_width=0.6)
    left = x + cells * 6 + 2
    depth = f" ×{held.depth}" if held.depth > _DEPTH_CELLS else ""
    drawing.text(left, at, fitted(_held(held) + depth, style.width - 10 - (left - x), _SIZE), _SIZE, fill="#3e4c59")

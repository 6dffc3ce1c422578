"""Links in a picture: a line where chips are joined, an arrow with its bytes where something moves."""

from __future__ import annotations

import math

from msgspec import Struct

from meshwright.report.summary import Summary
from meshwright.report.svg import CHARACTER, Drawing
from meshwright.report.words import amount

_COLOUR, _IDLE = "#b8336a", "#c3ccd5"
_APART = 9.0
"""Between a link's two directions."""


class Panel(Struct, frozen=True):
    """Where a chip stands in a picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2


def draw_links(drawing: Drawing, summary: Summary, panels: dict[int, Panel]) -> None:
    """Every link that something moves over as an arrow in that direction, the others as a thin line."""
    moved = summary.moved or {}
    for a, b in summary.links:
        if (a, b) not in moved and (b, a) not in moved:
            (x0, y0), (x1, y1) = _ends(panels[a], panels[b])
            drawing.add("line", x1=x0, y1=y0, x2=x1, y2=y1, stroke=_IDLE, stroke_width=1.5)
    for (a, b), count in sorted(moved.items()):
        _draw_arrow(drawing, panels[a], panels[b], amount(count), both=(b, a) in moved)


def _ends(start: Panel, end: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where the line between two centres leaves one panel and meets the other."""
    return _edge(start, end.middle), _edge(end, start.middle)


def _edge(panel: Panel, towards: tuple[float, float]) -> tuple[float, float]:
    (x, y), (tx, ty) = panel.middle, towards
    dx, dy = tx - x, ty - y
    share = min((half / abs(d) for half, d in ((panel.width / 2, dx), (panel.height / 2, dy)) if d), default=0.0)
    return x + dx * share, y + dy * share


def _draw_arrow(drawing: Drawing, start: Panel, end: Panel, text: str, *, both: bool) -> None:
    (x0, y0), (x1, y1) = _ends(start, end)
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    along = ((x1 - x0) / length, (y1 - y0) / length)
    aside = _APART if both else 0.0
    x0, y0, x1, y1 = (
        x0 + along[1] * aside + along[0] * 3,
        y0 - along[0] * aside + along[1] * 3,
        x1 + along[1] * aside - along[0] * 3,
        y1 - along[0] * aside - along[1] * 3,
    )
    drawing.add("line", x1=x0, y1=y0, x2=x1 - along[0] * 6, y2=y1 - along[1] * 6, stroke=_COLOUR, stroke_width=1.8)
    wings = [(x1 - along[0] * 9 + s * along[1] * 4, y1 - along[1] * 9 - s * along[0] * 4) for s in (-1, 1)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x1, y1), *wings))
    drawing.add("polygon", points=points, fill=_COLOUR)
    _draw_label(drawing, ((x0 + x1) / 2, (y0 + y1) / 2), along, text)


def _draw_label(drawing: Drawing, middle: tuple[float, float], along: tuple[float, float], text: str) -> None:
    """The bytes beside an arrow: on its own side, so that those of the other direction have the other."""
    x, y = middle
    width = len(text) * 9.5 * CHARACTER
    if abs(along[0]) >= abs(along[1]):
        drawing.text(x, y - 4 if along[0] > 0 else y + 12, text, 9.5, _COLOUR, text_anchor="middle")
    else:
        drawing.text(x + 5 if along[1] > 0 else x - 5 - width, y + 3, text, 9.5, _COLOUR)

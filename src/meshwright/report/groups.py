"""Multicast rectangles in a picture: an outline around the receivers, a dot and an arrow at the sender."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.report.cells import CellStyle
from meshwright.report.layout import ChipGrid
from meshwright.report.summary import Multicast
from meshwright.report.svg import Drawing, fitted

_ROW, _COLUMN, _AREA = "#1f6fb2", "#c2571a", "#2c8a4b"
_MOST_NESTED = 3


def draw_group(
    drawing: Drawing,
    style: CellStyle,
    grid: ChipGrid,
    corner: Callable[[int, int], tuple[float, float]],
    group: Multicast,
    level: int,
) -> None:
    """One rectangle. level: how many with the same corners have been drawn, so that this one lies around them."""
    (first, last), (top, bottom) = (
        grid.columns(group.low[0], group.high[0]),
        grid.rows(group.low[1], group.high[1]),
    )
    along_row, along_column = top == bottom, first == last
    colour = _ROW if along_row else _COLUMN if along_column else _AREA
    out = (3.5 if along_row else 6.5 if along_column else 9.5) + 1.5 * min(level, _MOST_NESTED)
    x0, y0 = corner(first, top)
    x1, y1 = corner(last, bottom)
    x0, y0, x1, y1 = x0 - out, y0 - out, x1 + style.width + out, y1 + style.height + out
    drawing.box(x0, y0, x1 - x0, y1 - y0, fill="none", stroke=colour, stroke_width=1.3, rx=6)
    if group.tensors:
        _draw_label(drawing, ", ".join(group.tensors), (x0, y0, x1, y1), colour, upright=along_row)
    _draw_sender(drawing, style, grid, corner, group, (x0, y0, x1, y1), colour)


def _draw_label(
    drawing: Drawing, text: str, outline: tuple[float, float, float, float], colour: str, *, upright: bool
) -> None:
    """What is sent: above the outline, or, of a row, beside it from bottom to top."""
    x0, y0, x1, y1 = outline
    if upright:
        x, y = x0 - 8, (y0 + y1) / 2
        turn = f"rotate(-90 {x:.1f} {y:.1f})"
        drawing.text(x, y, fitted(text, y1 - y0 - 8, 8.5), 8.5, colour, text_anchor="middle", transform=turn)
    else:
        drawing.text((x0 + x1) / 2, y0 - 3, fitted(text, x1 - x0, 8.5), 8.5, colour, text_anchor="middle")


def _draw_sender(
    drawing: Drawing,
    style: CellStyle,
    grid: ChipGrid,
    corner: Callable[[int, int], tuple[float, float]],
    group: Multicast,
    outline: tuple[float, float, float, float],
    colour: str,
) -> None:
    """A dot where the sender is: on the outline beside it, or, for one outside, at its box with a line to there."""
    x0, y0, x1, y1 = outline
    column, row = grid.columns(group.sender.x, group.sender.x)[0], grid.rows(group.sender.y, group.sender.y)[0]
    left, top = corner(column, row)
    middle = left + style.width / 2, top + style.height / 2
    inside = x0 <= middle[0] <= x1 and y0 <= middle[1] <= y1
    if inside:
        upright = y1 - y0 > x1 - x0 and group.low[0] == group.high[0]
        dot = (left + style.width - 14, y0) if upright else (x0, top + 12)
        if not upright and abs(left - x0) > style.width / 2:
            dot = (left + style.width - 14, y0)
        drawing.add("circle", cx=dot[0], cy=dot[1], r=3.4, fill=colour)
        return
    nearest = min(max(middle[0], x0), x1), min(max(middle[1], y0), y1)
    drawing.add("circle", cx=middle[0], cy=top, r=3.4, fill=colour)
    drawing.add(
        "line", x1=middle[0], y1=top, x2=nearest[0], y2=nearest[1], stroke=colour, stroke_width=1.3,
        stroke_dasharray="4 2",
    )  # fmt: skip

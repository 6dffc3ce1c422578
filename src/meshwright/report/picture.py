"""A graph as an SVG picture: chips, sites with their FIFOs and work, multicast rectangles, links with their bytes."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from meshwright.errors import UsageError
from meshwright.machine import MachineSpec
from meshwright.report.cells import CellStyle, cell_style, draw_cell
from meshwright.report.groups import draw_group
from meshwright.report.layout import ChipGrid, chip_grids, chip_places
from meshwright.report.links import Panel, draw_links
from meshwright.report.summary import ROLES, Summary
from meshwright.report.svg import CHARACTER, Drawing, fitted
from meshwright.report.words import amount

MOST_SITES = 4096
"""A picture of more is not drawn."""

COLOURS = {"reader": "#2f7ed8", "scalar": "#8e5bb5", "compute": "#d0632b", "link": "#b8336a", "writer": "#3a9a5b"}
_EDGE, _HEAD, _CELL_GAP = 20.0, 46.0, 24.0
_PANEL_HEAD, _PANEL_EDGE = 46.0, 30.0
_ACROSS_GAP, _DOWN_GAP = 96.0, 62.0
_LEAST_WIDTH = 800.0


class _Sheet(Struct, frozen=True):
    """Measures of one picture."""

    style: CellStyle
    grids: dict[int, ChipGrid]
    panels: dict[int, Panel]
    width: float
    height: float


def picture(summary: Summary, machine: MachineSpec | None = None) -> str:
    """The SVG of a summary made for the same machine.

    Self-contained: shapes and text, no script and nothing fetched. Raises `UsageError` for more sites than can be
    told apart.
    """
    sheet = _measured(summary, machine)
    drawing = Drawing()
    drawing.box(0, 0, sheet.width, sheet.height, fill="#ffffff")
    drawing.text(_EDGE, 26, fitted(summary.title, sheet.width - 2 * _EDGE, 13), 13, font_weight="bold")
    _draw_legend(drawing, sheet.height)
    for chip, panel in sheet.panels.items():
        _draw_chip(drawing, summary, sheet, chip, panel)
    draw_links(drawing, summary, sheet.panels)
    if summary.problem is not None:
        text = fitted(f"bytes over links are not known: {summary.problem}", sheet.width - 2 * _EDGE, 10)
        drawing.text(_EDGE, 40, text, 10, fill="#b3261e")
    return drawing.document(sheet.width, sheet.height, summary.title)


def _measured(summary: Summary, machine: MachineSpec | None) -> _Sheet:
    grids = chip_grids(summary, machine)
    drawn = sum(len(grid.xs) * len(grid.ys) for grid in grids.values())
    if max(drawn, len(summary.sites)) > MOST_SITES:
        raise UsageError(
            f"a picture of {drawn} places on {len(grids)} chips can't be read; up to {MOST_SITES} are drawn. The text "
            "without --svg has them all"
        )
    style = cell_style(summary.sites, drawn)
    columns, rows = (max((len(axis(grid)) for grid in grids.values()), default=1) for axis in (_xs, _ys))
    wide = 2 * _PANEL_EDGE + max(1, columns) * (style.width + _CELL_GAP) - _CELL_GAP
    high = _PANEL_HEAD + _PANEL_EDGE + max(1, rows) * (style.height + _CELL_GAP) - _CELL_GAP
    places = chip_places(summary, machine, wide / high)
    panels = {
        chip: Panel(_EDGE + column * (wide + _ACROSS_GAP), _HEAD + row * (high + _DOWN_GAP), wide, high)
        for chip, (column, row) in places.items()
    }
    right = max((panel.x + panel.width for panel in panels.values()), default=0.0)
    bottom = max((panel.y + panel.height for panel in panels.values()), default=_HEAD)
    return _Sheet(
        style,
        grids,
        panels,
        max(right + _EDGE, _LEAST_WIDTH, 2 * _EDGE + len(summary.title) * 13 * CHARACTER),
        bottom + 52,
    )


def _xs(grid: ChipGrid) -> tuple[int, ...]:
    return grid.xs


def _ys(grid: ChipGrid) -> tuple[int, ...]:
    return grid.ys


def _draw_legend(drawing: Drawing, height: float) -> None:
    x, y = _EDGE, height - 18
    for role in ROLES:
        drawing.box(x, y - 8, 9, 9, fill=COLOURS[role], rx=2)
        drawing.text(x + 14, y, role, 10, fill="#52606d")
        x += 78
    drawing.box(x, y - 8, 7, 9, fill="#f5d76e", stroke="#8a6d1a", stroke_width=0.7)
    drawing.box(x + 8, y - 8, 7, 9, fill="#f5d76e", stroke="#8a6d1a", stroke_width=0.7)
    drawing.text(x + 20, y, "FIFO, a cell a block", 10, fill="#52606d")
    x += 160
    drawing.box(x, y - 8, 20, 9, fill="none", stroke="#1f6fb2", stroke_width=1.4, rx=3)
    drawing.add("circle", cx=x, cy=y - 3.5, r=3.2, fill="#1f6fb2")
    drawing.text(x + 26, y, "multicast, dot at the sender", 10, fill="#52606d")


def _draw_chip(drawing: Drawing, summary: Summary, sheet: _Sheet, chip: int, panel: Panel) -> None:
    drawing.box(panel.x, panel.y, panel.width, panel.height, fill="#f6f8fa", stroke="#9aa5b1", stroke_width=1.2, rx=8)
    drawing.text(panel.x + 12, panel.y + 19, f"chip {chip}", 12, font_weight="bold")
    loaded, stored = summary.loaded.get(chip, 0), summary.stored.get(chip, 0)
    moved = f"loads {amount(loaded)}, stores {amount(stored)}"
    room = panel.width - 24 - 80
    drawing.text(panel.x + panel.width - 12, panel.y + 19, fitted(moved, room, 9.5), 9.5, "#52606d", text_anchor="end")
    grid, style = sheet.grids[chip], sheet.style

    def corner(column: int, row: int) -> tuple[float, float]:
        return (
            panel.x + _PANEL_EDGE + column * (style.width + _CELL_GAP),
            panel.y + _PANEL_HEAD + row * (style.height + _CELL_GAP),
        )

    there = {(site.site.x, site.site.y): site for site in summary.sites if site.site.chip == chip}
    for row, y in enumerate(grid.ys):
        for column, x in enumerate(grid.xs):
            draw_cell(drawing, style, corner(column, row), (x, y), there.get((x, y)), COLOURS)
    nested: Counter[tuple[tuple[int, int], tuple[int, int]]] = Counter()
    for group in summary.multicasts:
        if group.sender.chip == chip:
            level = nested[group.low, group.high]
            nested[group.low, group.high] += 1
            draw_group(drawing, style, grid, corner, group, level)

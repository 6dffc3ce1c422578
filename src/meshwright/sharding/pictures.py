"""Pictures of who holds what of a value: as text, and as an SVG drawing."""

from __future__ import annotations

import math
from html import escape

from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Shaped

Places = tuple[tuple[slice, ...], ...]

_WIDTH = 32
_BOX, _GAP, _LABEL = 120, 24, 22
_COLOURS = ("#3f51b5", "#00897b", "#c2185b", "#ef6c00", "#6d4c41", "#5e35b1", "#7cb342", "#0288d1")


def text_picture(
    title: str, shape: tuple[int, ...], specs: tuple[Spec, ...], meshes: tuple[int, ...], places: Places
) -> str:
    """A line a rank: its mesh, the indices that it holds, and for each split axis a bar of where they lie."""
    split = sorted({spec.axis for spec in specs if spec.axis is not None})
    partial = [spec.partial.value for spec in specs if spec.partial is not None]
    rows = [_indices(place, shape) for place in places]
    width = max(map(len, rows))
    names = max(len(str(mesh)) for mesh in meshes)
    lines = [title]
    for mesh, place, indices in zip(meshes, places, rows, strict=True):
        bars = "".join(f"   axis {axis} |{_bar(place[axis], shape[axis])}|" for axis in split)
        what = f"   a contribution to it, folded by {' and '.join(partial)}" if partial else ""
        lines.append(f"  mesh {mesh:>{names}}  {indices:<{width}}{bars}{what}".rstrip())
    return "\n".join(lines)


def _indices(place: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    parts = (
        ":" if (part.start, part.stop) == (0, size) else f"{part.start}:{part.stop}"
        for part, size in zip(place, shape, strict=True)
    )
    return f"[{', '.join(parts)}]"


def _bar(part: slice, size: int) -> str:
    if not size:
        return " " * _WIDTH
    first, after = part.start * _WIDTH // size, part.stop * _WIDTH // size
    after = max(after, min(first + 1, _WIDTH)) if part.stop > part.start else after
    return "." * first + "#" * (after - first) + "." * (_WIDTH - after)


def svg_picture(
    title: str,
    shaped: Shaped,
    specs: tuple[Spec, ...],
    grid: tuple[int, ...],
    meshes: tuple[int, ...],
    places: Places,
) -> str:
    """A box a rank, laid out as the rank grid is: the whole value in outline, the part that is there filled.

    A value with more than two axes is drawn by the two that matter: the split ones, or the last.
    """
    shape = shaped.shape
    down, across = _drawn_axes(len(shape), specs)
    columns = grid[-1]
    rows = math.prod(grid[:-1])
    width, height = columns * (_BOX + _GAP) + _GAP, rows * (_BOX + _GAP + _LABEL) + _GAP + _LABEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<text x="{_GAP}" y="{_LABEL}" fill="#222">{escape(title)}</text>',
    ]
    for rank, (mesh, place) in enumerate(zip(meshes, places, strict=True)):
        row, column = divmod(rank, columns)
        x, y = _GAP + column * (_BOX + _GAP), _GAP + _LABEL + row * (_BOX + _GAP + _LABEL)
        parts += _rank(f"mesh {mesh}  {_indices(place, shape)}", x, y, _COLOURS[rank % len(_COLOURS)])
        x0, x1 = _span(place, shape, across)
        y0, y1 = _span(place, shape, down)
        hatched = any(spec.partial is not None for spec in specs)
        parts.append(
            f'<rect x="{x + x0:.1f}" y="{y + _LABEL + y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}" '
            f'fill="{_COLOURS[rank % len(_COLOURS)]}" fill-opacity="{0.35 if hatched else 0.85}"/>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _rank(label: str, x: int, y: int, colour: str) -> list[str]:
    return [
        f'<text x="{x}" y="{y + _LABEL - 6}" fill="#222">{escape(label)}</text>',
        f'<rect x="{x}" y="{y + _LABEL}" width="{_BOX}" height="{_BOX}" fill="none" stroke="{colour}"/>',
    ]


def _drawn_axes(rank: int, specs: tuple[Spec, ...]) -> tuple[int | None, int | None]:
    """The axes that are drawn downwards and across; None where the value hasn't got as many."""
    split = {spec.axis for spec in specs if spec.axis is not None}
    chosen = sorted([*sorted(split), *(a for a in reversed(range(rank)) if a not in split)][:2])
    if not chosen:
        return None, None
    return (None, chosen[0]) if len(chosen) == 1 else (chosen[0], chosen[1])


def _span(place: tuple[slice, ...], shape: tuple[int, ...], axis: int | None) -> tuple[float, float]:
    if axis is None or not shape[axis]:
        return 0.0, float(_BOX)
    return place[axis].start * _BOX / shape[axis], place[axis].stop * _BOX / shape[axis]

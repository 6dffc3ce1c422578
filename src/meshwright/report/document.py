"""Text in parts that a terminal and a page both know how to show: headings, paragraphs, listings, tables. Data only."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

_WIDTH: Final = 118


class Heading(Struct, frozen=True):
    """level: 1 for the title, 2 for what is under it."""

    text: str
    level: int = 2


class Text(Struct, frozen=True):
    """A paragraph; what stands between backticks is code."""

    text: str


class Listing(Struct, frozen=True):
    """Lines that stay as they are. language: `python`, `console`, or `text`."""

    text: str
    language: str = "text"


class Rows(Struct, frozen=True):
    """A table. numbers: headings of the columns that are set flush right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()


Part: TypeAlias = Heading | Text | Listing | Rows


def markdown(parts: Iterable[Part]) -> str:
    """The page; ends with a newline."""
    return "\n\n".join(_part(part) for part in parts) + "\n"


def _part(part: Part) -> str:
    match part:
        case Heading():
            return f"{'#' * part.level} {part.text}"
        case Text():
            return textwrap.fill(part.text, _WIDTH, break_long_words=False, break_on_hyphens=False)
        case Listing():
            return f"```{part.language}\n{part.text.rstrip()}\n```"
        case Rows():
            aligned = ["---:" if heading in part.numbers else "---" for heading in part.headings]
            return "\n".join([_row(part.headings), _row(aligned), *map(_row, part.rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

"""Small pieces of text that a walk is told with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MOST_LINES: Final = 12


def aligned(rows: Sequence[tuple[str, ...]], indent: str = "") -> str:
    """Rows of cells with their columns flush left, two spaces apart."""
    columns = max((len(row) for row in rows), default=0)
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(columns)]
    lines = ("  ".join(cell.ljust(widths[at]) for at, cell in enumerate(row)).rstrip() for row in rows)
    return "\n".join(f"{indent}{line}" for line in lines)


def counted(count: int, what: str) -> str:
    """`1 sweep`, `1,000 sweeps`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def bytes_of(data: bytes) -> str:
    """Bytes as they lie, in hexadecimal."""
    return data.hex(" ")


def lines_or_some(rows: Sequence[tuple[str, str, str]], whole: bool) -> list[tuple[str, str, str]]:
    """The rows, or the first and last of them with how many were left out."""
    if whole or len(rows) <= _MOST_LINES:
        return list(rows)
    left = len(rows) - _MOST_LINES + 1
    return [*rows[: _MOST_LINES - 2], (f"... and {left} more", "", ""), rows[-1]]


def wide_hex(word: int, bits: int) -> str:
    """A wide word in groups of 16 digits, the highest first."""
    digits = f"{word:0{bits // 4}x}"
    return " ".join(digits[at : at + 16] for at in range(0, len(digits), 16))

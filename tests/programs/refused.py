"""Graphs that a machine's units can't run: which messages may refuse them, and what it is that the units lack.

A refusal whose message isn't here is a failure: something that could be run isn't.
"""

from __future__ import annotations

import re
from typing import Final

REFUSED: Final[tuple[tuple[str, str], ...]] = (
    (
        r"stage s\d+ can't be emitted for a cluster: its sums go to mesh \d of .*, and a DRAIN names its mesh in "
        r"two bits: 0 to 3",
        "a DRAIN has two bits for the mesh that it sends sums to, and the machine has more than four meshes",
    ),
)
"""Patterns, matched with the whole message, and why no unit of the machine can do it."""


def reason(message: str) -> str | None:
    """Why a graph that was refused with `message` can't be run; None where it should have been."""
    return next((why for pattern, why in REFUSED if re.fullmatch(pattern, message, re.DOTALL)), None)

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
    (
        r"stage s\d+, a (Generic|Reduce|Matmul|Scalar), stands at \d+:\(\d+,\d+\), where no unit is that computes: a "
        r"memory agent loads, permutes and stores",
        "a graph by hand computes at a place where the machine has no unit",
    ),
    (
        r"stage s\d+ can't be emitted for a cluster: stages? (s\d+(, )?)+ have 0 Matmuls that open a sum, "
        r"and a cluster's work is one",
        "a graph by hand computes elements at a cluster's place, and a cluster only multiplies and adds",
    ),
    (
        r"stage s\d+ can't be emitted for a cluster: it computes with a sum; a cluster rounds it to f16 and drains it, "
        r"nothing else\. Store it, and load it at a vector core",
        "a graph by hand computes elements at a cluster's place, and a cluster only multiplies and adds",
    ),
    (
        r"stage s\d+ can't be emitted for a cluster: .* is f32; a cluster reads and drains f16",
        "memory in f32, and clusters read and drain f16",
    ),
    (
        r"stage s\d+ can't be emitted for a cluster: it has a bias, a spill, an epilogue or sub-blocks; a cluster "
        r"multiplies and adds",
        "a sum is put into memory between blocks of K and taken up again, and no instruction loads an accumulator",
    ),
)
"""Patterns, matched with the whole message, and why no unit of the machine can do it."""


def reason(message: str) -> str | None:
    """Why a graph that was refused with `message` can't be run; None where it should have been."""
    return next((why for pattern, why in REFUSED if re.fullmatch(pattern, message, re.DOTALL)), None)

"""Faults put into sound graphs, to see whether the certificate can fail."""

from typing import Final

from meshwright.certify.mutation import blocks, memory, sums, values
from meshwright.certify.mutation.judge import (
    CAP,
    Answer,
    Complaint,
    Judgement,
    Row,
    complaints,
    every,
    judge,
    judged,
    mutants,
    rows,
)
from meshwright.certify.mutation.subject import Kind, Mutant, Subject

KINDS: Final[tuple[Kind, ...]] = (*blocks.KINDS, *memory.KINDS, *sums.KINDS, *values.KINDS)
"""Every kind of fault, in the order of the obligations that they belong to."""

__all__ = [
    "CAP",
    "KINDS",
    "Answer",
    "Complaint",
    "Judgement",
    "Kind",
    "Mutant",
    "Row",
    "Subject",
    "complaints",
    "every",
    "judge",
    "judged",
    "mutants",
    "rows",
]

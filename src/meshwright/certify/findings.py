"""What obligations answer with, and the table of them that `certify` goes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from meshwright.certify.certificate import Entry, Evidence, Verdict, Witness
from meshwright.errors import GraphError
from meshwright.ir.accesses import Accesses
from meshwright.ir.flow import block_counts
from meshwright.ir.form import Fault, faults
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId, TensorId
from meshwright.ir.islands import Islands
from meshwright.ir.partials import Contents, contents
from meshwright.ir.steps import Walk, walk_of
from meshwright.machine import MachineSpec


class Case(Struct, frozen=True, eq=False, dict=True):
    """A graph and a machine with what several obligations ask of them, worked out once.

    spans: where pieces lie in DRAM, by tensor and rank. given: tensors that are stored and have a first content.
    """

    graph: Graph
    machine: MachineSpec
    spans: Mapping[tuple[TensorId, int], tuple[int, int]] | None = None
    given: frozenset[TensorId] = frozenset()
    reference: Graph | None = None
    names: Mapping[str, str] = {}

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the form."""
        return faults(self.graph)

    @cached_property
    def counts(self) -> dict[BufferId, int]:
        """Blocks through each buffer; `GraphError` where they don't balance."""
        return block_counts(self.graph)

    @cached_property
    def walk(self) -> Walk:
        """How stages can step; `GraphError` where blocks don't balance."""
        _ = self.counts
        return walk_of(self.graph)

    @cached_property
    def accesses(self) -> Accesses:
        """Accesses to memory."""
        return Accesses(self.graph)

    @cached_property
    def islands(self) -> Islands:
        """Stages that buffers join."""
        return Islands(self.graph)

    @cached_property
    def contents(self) -> Contents:
        """What values lack."""
        return contents(self.graph)

    def stage(self, stage: StageId) -> str:
        """A stage for messages: `s3 (load at 0:(1,1))`."""
        record = self.graph.stages[stage]
        return f"s{stage} ({type(record.kind).__name__} at {self.graph.site(record)})"

    def chips(self, stages: Sequence[StageId]) -> tuple[ChipId, ...]:
        """The chips that stages run on, each once; those whose site isn't known left out."""
        found: dict[ChipId, None] = {}
        for stage in stages:
            try:
                found[self.graph.site(self.graph.stages[stage]).chip] = None
            except GraphError:
                continue
        return tuple(found)


Obligation = Callable[[Case], Entry]
"""One obligation, asked of a case in which those that it rests on hold."""


def held(name: str, evidence: Evidence | None, message: str = "") -> Entry:
    """An obligation that holds; without evidence there was nothing to ask, and the message says why."""
    return Entry(name, Verdict.HELD, message, evidence)


def broken(name: str, message: str, witness: Witness) -> Entry:
    """An obligation that doesn't hold."""
    return Entry(name, Verdict.BROKEN, message, witness=witness)


def not_decided(name: str, reason: str) -> Entry:
    """An obligation that can't be decided."""
    return Entry(name, Verdict.NOT_DECIDED, reason)

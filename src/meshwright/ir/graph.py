"""The stage graph: four tables and a list, all plain frozen data.

A stage takes blocks from buffers and puts blocks into buffers. Where it runs is where its buffers are; when it
runs is not said here: only what must precede what, by the blocks that flow, by resident accumulators (in the order
of the stage table) and by the precedences, which say so for what goes through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

from msgspec import Struct

from meshwright.ir.ids import ChipId, TensorId
from meshwright.ir.records import Buffer, Group, Load, Precedence, Site, Stage, Store, Tensor, stage_site
from meshwright.ir.text import render

T = TypeVar("T")


class Graph(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """Four tables and a list. Equal graphs are equal values; ids are positions in the tables."""

    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    groups: tuple[Group, ...]
    stages: tuple[Stage, ...]
    precedences: tuple[Precedence, ...] = ()

    def derived(self, compute: Callable[[Graph], T]) -> T:
        """What `compute` finds of this graph, found once: a graph never changes, and several readers ask the same."""
        known = self._found
        if compute not in known:
            known[compute] = compute(self)
        return cast("T", known[compute])

    @cached_property
    def _found(self) -> dict[object, object]:
        return {}

    def tensor_id(self, name: str) -> TensorId:
        """The id of the tensor called `name`; `KeyError` where there is none."""
        return self._names[name]

    @cached_property
    def _names(self) -> dict[str, TensorId]:
        return {tensor.name: TensorId(i) for i, tensor in enumerate(self.tensors)}

    def site(self, stage: Stage) -> Site:
        """Where the stage runs: the site of its first input; a stage without inputs runs where its output is.

        A multicast load without an output buffer of its own runs at its group's sender. An `AllReduce` runs at the
        sites of all its inputs; this is the first one's.
        """
        return stage_site(self.buffers, self.groups, stage)

    def chips_taking_part(self, stage: Stage) -> tuple[ChipId, ...]:
        """The chips of an `AllReduce`'s inputs, in port order, each once."""
        return tuple(dict.fromkeys(self.buffers[b].site.chip for b in stage.ins))

    def rank_of(self, stage: Stage) -> int:
        """Whose piece of its tensor a `Load` or `Store` touches: the one it names, or that of its own chip."""
        kind = stage.kind
        if not isinstance(kind, (Load, Store)):
            raise TypeError(f"a {type(kind).__name__} touches no piece of a tensor")
        if kind.rank is not None:
            return kind.rank
        return self.tensors[kind.tensor].chips.index(self.site(stage).chip)

    def stored(self) -> frozenset[TensorId]:
        """The tensors that some stage stores: the results (a result that is also loaded is an intermediate)."""
        return frozenset(s.kind.tensor for s in self.stages if isinstance(s.kind, Store))

    def loaded(self) -> frozenset[TensorId]:
        """The tensors that some stage loads."""
        return frozenset(s.kind.tensor for s in self.stages if isinstance(s.kind, Load))

    def inputs(self) -> tuple[TensorId, ...]:
        """The tensors that are loaded and never stored: what a caller has to supply."""
        return tuple(sorted(self.loaded() - self.stored()))

    def outputs(self) -> tuple[TensorId, ...]:
        """The tensors that are stored and never loaded again."""
        return tuple(sorted(self.stored() - self.loaded()))

    def __str__(self) -> str:
        return render(self.tensors, self.buffers, self.groups, self.stages, self.precedences)

"""Programs of vector cores out of the vector stages of a stage graph.

A chain of Load, Generic and Reduce, and Store stages becomes code that works on a group of rows: fills, a barrier,
the rows one after the other, drains. For the next group only descriptors change; the code stays where it is. Rows that
are too much for one run take several. What is stored is, to the bit, what the graph means in `KtpuArithmetic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_vector_blocks import with_joined_blocks
from meshwright.targets.ktpu.emit_vector_groups import Groups
from meshwright.targets.ktpu.emit_vector_layout import Placed, oriented, padded_rows, regions, row_major
from meshwright.targets.ktpu.emit_vector_registers import L1_WALKER
from meshwright.targets.ktpu.emit_vector_runs import SCRATCH_WORDS
from meshwright.targets.ktpu.emit_vector_stages import Chain, chains_at
from meshwright.targets.ktpu.isa.descriptors import DIMENSIONS
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run
from meshwright.targets.ktpu.isa.program import Program

__all__ = ["Placed", "VectorTask", "emit_vector", "padded_rows", "row_major"]


class VectorTask(Struct, frozen=True):
    """What one vector core is sent for one chain of stages.

    stages: of the graph. after: stages, run by other units or in other tasks, whose stores it loads; they must have
    been seen complete. program: its payloads; each answers once.
    """

    site: Site
    stages: tuple[StageId, ...]
    after: tuple[StageId, ...]
    program: Program


def emit_vector(
    graph: Graph, site: Site, machine: MachineSpec, where: Mapping[tuple[TensorId, int], Placed]
) -> tuple[VectorTask, ...]:
    """The tasks of the vector core at `site`, in an order in which they can run.

    where: for each piece (tensor, rank) that the core touches, its place in the DRAM of the core's own mesh. Results
    lie apart from what their chain loads: a row that takes several runs is stored before all of it is loaded.

    Raises `PlacementError`, with the stage and the reason, for what a core can't do, for rows that don't begin at
    words, and for chains that need more registers than there are.
    """
    tasks: list[VectorTask] = []
    for chain in map(with_joined_blocks, chains_at(graph, site)):
        program = Program("VC", tuple(_Emission(graph, chain, machine, where).payloads()))
        after = tuple(sorted(e.before for e in graph.precedences if e.after in chain.stages))
        tasks.append(VectorTask(site, chain.stages, after, program))
    return tuple(tasks)


class _Emission:
    """The payloads of one chain: what the core holds of code and descriptors is followed, and sent where it changes."""

    def __init__(
        self, graph: Graph, chain: Chain, machine: MachineSpec, where: Mapping[tuple[TensorId, int], Placed]
    ) -> None:
        chain = oriented(graph, chain, where)
        self._core = machine.vector_core
        self._regions = regions(graph, chain, where)
        self._groups = Groups(graph, chain, self._core, where)
        self._loaded: dict[tuple[int, ...], int] = {}
        self._free = 0
        self._descriptors: dict[tuple[int, int], int] = {}

    def payloads(self) -> Iterator[Payload]:
        """Code where it changes, descriptors where they change, and RUNs for each group of rows."""
        # A load of f32 is the longest that walks L1: two words for every 16 elements.
        yield from self._describe(L1_WALKER, 0, [(1, 2 * SCRATCH_WORDS)])
        for region in self._regions:
            for part in region.parts(self._groups.rows(region)):
                for step in self._groups.steps(region, part.rows):
                    yield from self._code(step.words)
                    for number, walk in enumerate(step.walks, 1):
                        yield from self._describe(number, part.views[walk.move].address + walk.first, walk.dims)
                    yield Run(pc=self._loaded[step.words])

    def _code(self, words: tuple[int, ...]) -> Iterator[Payload]:
        """Loads code that isn't loaded; what was loaded goes when there is no room beside it."""
        if words in self._loaded:
            return
        if self._free + len(words) > self._core.instructions:
            self._loaded.clear()
            self._free = 0
        for at, word in enumerate(words, self._free):
            yield Imem(addr=at, word=word)
        self._loaded[words] = self._free
        self._free += len(words)

    def _describe(self, number: int, base: int, dims: Sequence[tuple[int, int]]) -> Iterator[Payload]:
        """Sets what of a descriptor isn't so already; dims: (stride, bound) of each dimension, innermost first."""
        wanted = [Desc.base(number, base)]
        for at in range(DIMENSIONS):
            stride, bound = dims[at] if at < len(dims) else (0, 1)
            wanted.append(Desc.dim(number, at, stride=stride, bound=bound))
        for payload in wanted:
            key = payload.ad, payload.fld
            if self._descriptors.get(key) != payload.value:
                self._descriptors[key] = payload.value
                yield payload

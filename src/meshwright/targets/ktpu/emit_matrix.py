"""Programs of clusters out of the matrix stages of a stage graph.

Loads and a Matmul become FILLs and GEMMs, a sum over meshes a DRAIN into the tiles of the cluster that collects, and a
store a DRAIN to memory. What is stored is, to the bit, what the graph means in `KtpuArithmetic`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId
from meshwright.ir.records import Site
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.emit_matrix_fills import Side, usable_entries
from meshwright.targets.ktpu.emit_matrix_image import BURST_BYTES, MatrixImage, OperandImage, ResultImage
from meshwright.targets.ktpu.emit_matrix_stages import (
    Loaded,
    Product,
    Receive,
    Result,
    Send,
    Work,
    refusal,
    works_at,
)
from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Gemm
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.span import OFFSET_BITS
from meshwright.targets.ktpu.layout import K_BLOCK

__all__ = ["Arrival", "Firing", "MatrixImage", "MatrixTask", "OperandImage", "ResultImage", "emit_matrix", "images_at"]

_GRANULES: Final = 2
"""Of a resident sub-tile on its way to another cluster."""
_BURST: Final = 8
"""Granules that a DRAIN to a unit sends at a time; each burst is acknowledged. Source: the card's specification."""
_NAMED_MESHES: Final = 4
"""What the two bits of a DRAIN's `dmesh` can name."""
_ACCUMULATOR: Final = 2
_SIGNAL: Final = 1


class Firing(Struct, frozen=True):
    """Block number `block` of a stage; None: all of its blocks."""

    stage: StageId
    block: int | None = None


class Arrival(Struct, frozen=True):
    """How often another unit signals that data has arrived, besides the completions of its own words."""

    site: Site
    signals: int


class MatrixTask(Struct, frozen=True):
    """What one cluster is sent at a time.

    does: complete when the program is and what it sends has arrived. after: done by other tasks, and seen complete by
    the host before this one starts. arrivals: to be awaited as well, at the units that receive.
    """

    site: Site
    does: tuple[Firing, ...]
    after: tuple[Firing, ...]
    program: Program
    arrivals: tuple[Arrival, ...] = ()


def images_at(graph: Graph, site: Site, machine: MachineSpec) -> tuple[MatrixImage, ...]:
    """What the cluster at `site` reads and writes, each image once; raises what `emit_matrix` does for stages."""
    found: dict[MatrixImage, None] = {}
    for work in works_at(graph, site, _addressed(machine)):
        for product in work.products:
            found[product.a.image] = None
            found[product.b.image] = None
        found.update((step.image, None) for step in work.steps if isinstance(step, Result))
    return tuple(found)


def emit_matrix(
    graph: Graph, site: Site, machine: MachineSpec, where: Mapping[MatrixImage, int]
) -> tuple[MatrixTask, ...]:
    """The tasks of the cluster at `site`, in the order in which it has to be sent them.

    where: the global byte address of each of `images_at`, in the cluster's own mesh, a multiple of 256. Clusters that
    name the same image share it.

    Raises `PlacementError`, with the stage and the reason, for what a cluster can't do, and for images that are
    nowhere or where the cluster can't reach them.
    """
    machine = _addressed(machine)
    emission = _Emission(graph, site, machine, where)
    return tuple(itertools.chain.from_iterable(map(emission.tasks, works_at(graph, site, machine))))


def _addressed(machine: MachineSpec) -> MachineSpec:
    """The machine with banks as long as offsets reach."""
    cluster = machine.cluster
    entries = usable_entries(cluster.l1_entries)
    if entries == cluster.l1_entries:
        return machine
    return msgspec.structs.replace(machine, maybe_cluster=msgspec.structs.replace(cluster, l1_entries=entries))


class _Draft:
    """A task under construction."""

    def __init__(self, after: tuple[Firing, ...]) -> None:
        self.after = after
        self.does: list[Firing] = []
        self.words: list[ClusterInstruction] = []
        self.arrivals: Counter[Site] = Counter()

    def task(self, site: Site, blocks: int) -> MatrixTask:
        """The task; a stage all of whose blocks it does is named once."""
        counts = Counter(firing.stage for firing in self.does)
        does = (Firing(f.stage, None if counts[f.stage] == blocks else f.block) for f in self.does)
        arrivals = tuple(Arrival(*item) for item in self.arrivals.items())
        return MatrixTask(site, tuple(dict.fromkeys(does)), self.after, Program("MG", tuple(self.words)), arrivals)


class _Emission:
    def __init__(self, graph: Graph, site: Site, machine: MachineSpec, where: Mapping[MatrixImage, int]) -> None:
        self.graph = graph
        self.site = site
        self.machine = machine
        self.where = where

    def tasks(self, work: Work) -> Iterator[MatrixTask]:
        """The tasks of one work: a new one wherever something of another unit has to be seen complete first."""
        sweeps = self._sweeps(work)
        drafts: list[_Draft] = []
        for block in range(work.blocks):
            arrived: list[Firing] = []
            for step in (work.product, *work.steps):
                if isinstance(step, Receive):
                    arrived.append(Firing(step.stage, block))
                    continue
                after = (*arrived, *self._before(step, work, block))
                arrived.clear()
                if after or not drafts:
                    drafts.append(_Draft(after))
                drafts[-1].does += [Firing(stage, block) for stage in step.stages]
                drafts[-1].words += self._words(step, work.product, block, sweeps)
                if isinstance(step, Send):
                    granules = _GRANULES * work.product.gm * work.product.gn
                    drafts[-1].arrivals[step.target] += -(-granules // _BURST)
        return (draft.task(self.site, work.blocks) for draft in drafts)

    def _sweeps(self, work: Work) -> _Sweeps:
        operands = (
            (
                product,
                self._address((product.a.stage, product.a.image)),
                self._address((product.b.stage, product.b.image)),
            )
            for product in work.products
        )
        return _Sweeps([_Operands(*of, work.blocks, self.machine.cluster.l1_entries) for of in operands])

    def _before(self, step: Product | Send | Result, work: Work, block: int) -> Iterator[Firing]:
        """What other units do that this step waits for; what this cluster does itself, it does in order."""
        if block == 0:
            stages = sorted({e.before for e in self.graph.precedences if e.after in step.stages})
            yield from (Firing(stage) for stage in stages)
        if isinstance(step, Send) and step.by != self.site:
            yield Firing(step.opened, block)

    def _words(
        self, step: Product | Send | Result, product: Product, block: int, sweeps: _Sweeps
    ) -> list[ClusterInstruction]:
        if isinstance(step, Product):
            return sweeps.block(step, block)
        sweeps.drained()
        count = product.gm * product.gn
        if isinstance(step, Result):
            base = self._address((step.stages[-1], step.image))
            return [Drain(addr=base + step.image.run(step.pattern.corner(block)), n=count)]
        if _GRANULES * count > 1 << OFFSET_BITS:
            raise refusal(
                step.stage,
                f"{count} sub-tiles are {_GRANULES * count} granules; bursts name theirs in {OFFSET_BITS} bits, which "
                "wrap",
            )
        if step.target.chip >= _NAMED_MESHES:
            raise refusal(
                step.stage,
                f"its sums go to mesh {step.target.chip} of {self.machine.name}, and a DRAIN names its mesh in two "
                f"bits: 0 to {_NAMED_MESHES - 1}",
            )
        return [self._sent(step.target, count)]

    def _sent(self, target: Site, count: int) -> Drain:
        """A drain into the resident tiles of a cluster of another mesh, acknowledged to the agent there."""
        agent = self.machine.mesh(target.chip).agent
        assert agent is not None
        ack_x, ack_y = agent
        own = self.machine.mesh(self.site.chip)
        near = self.machine.nearest_port(self.site.chip, (self.site.x, self.site.y))
        dst = own.agent if own.agent is not None and own.agent in own.ports else near
        return Drain(
            n=count,
            dnode=1,
            dst_x=dst[0],
            dst_y=dst[1],
            dbuf=_ACCUMULATOR,
            dflags=_SIGNAL,
            dack_x=ack_x,
            dack_y=ack_y,
            dmesh=target.chip,
            dfin=target.y << 4 | target.x,
        )

    def _address(self, wanted: tuple[StageId, MatrixImage]) -> int:
        stage, image = wanted
        name = self.graph.tensors[image.tensor].name
        if image not in self.where:
            raise refusal(stage, f"`where` has no address for its image of {name}, rank {image.rank}: {image.layout}")
        address = self.where[image]
        mesh, local = self.machine.split_addr(address)
        if mesh != self.site.chip or address % BURST_BYTES or local + image.nbytes > self.machine.dram.bytes:
            raise refusal(
                stage,
                f"its image of {name} is {image.nbytes} bytes from {address:#x} on, byte {local:#x} of mesh {mesh}; "
                f"the cluster reaches mesh {self.site.chip} up to {self.machine.dram.bytes:#x}, and bursts "
                f"begin at multiples of {BURST_BYTES}",
            )
        return address


class _Operands:
    """The entries that the sweeps of a product read, and where they are in L1."""

    def __init__(self, product: Product, at_a: int, at_b: int, blocks: int, entries: int) -> None:
        self.product = product
        self.pairs = [list(self._of_block(block, at_a, at_b)) for block in range(blocks)]
        pairs = list(itertools.chain.from_iterable(self.pairs))
        self.a = Side(0, product.gm * product.nk, entries, [a for a, _ in pairs])
        self.b = Side(1, product.gn * product.nk, entries, [b for _, b in pairs])

    def _of_block(self, block: int, at_a: int, at_b: int) -> Iterator[tuple[int, int]]:
        """Addresses of the entries of A and B of each sweep; sweeps over nothing but padding add zeros, so none is."""
        product = self.product
        for pair in range(block * product.contraction, (block + 1) * product.contraction):
            for sweep in range(product.sweeps):
                a = _run(product.a, pair, sweep * product.nk)
                b = _run(product.b, pair, sweep * product.nk)
                if a is not None and b is not None:
                    yield at_a + a, at_b + b


class _Sweeps:
    """FILLs and GEMMs of the products of one work, and what they leave in L1."""

    def __init__(self, operands: Sequence[_Operands]) -> None:
        self._operands = {of.product.stage: of for of in operands}
        self._last: StageId | None = None
        self._busy: tuple[int, int] | None = None

    def block(self, product: Product, block: int) -> list[ClusterInstruction]:
        """The instructions that leave a block's sum in the accumulator, or add to it."""
        operands = self._operands[product.stage]
        if self._last not in (None, product.stage):
            # Another product has filled the banks since.
            operands.a.forget()
            operands.b.forget()
        self._last = product.stage
        words: list[ClusterInstruction] = []
        for number, (at_a, at_b) in enumerate(operands.pairs[block]):
            busy_a, busy_b = self._busy if self._busy is not None else (None, None)
            a, fills_a = operands.a.take(at_a, busy_a)
            b, fills_b = operands.b.take(at_b, busy_b)
            gemm = Gemm(
                gm=product.gm,
                gn=product.gn,
                nk=product.nk,
                acc=int(number > 0 or product.continues),
                abank=a.bank,
                aoff=a.first,
                bbank=b.bank,
                boff=b.first,
            )
            words += [*fills_a, *fills_b, gemm]
            self._busy = a.bank, b.bank
        return words

    def drained(self) -> None:
        """A DRAIN waits for the sweep before it, so that nothing is being read."""
        self._busy = None


def _run(loaded: Loaded, pair: int, first: int) -> int | None:
    corner = loaded.pattern.corner(pair)
    return loaded.image.run((*corner[:-1], corner[-1] + first * K_BLOCK))

"""One product from the call to instruction words and back, with everything that passed on the way, as data.

Nothing is made up for showing: the product runs on a simulated card, a transport writes down what passes, and a
cluster is looked at while it executes. What is worked out beside that is compared with what was seen, and refused
where it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError, UsageError
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Matmul
from meshwright.ir.records import Compute, Site
from meshwright.machine import Coord, MachineSpec, load
from meshwright.report.walk_cluster import Filled, Watch
from meshwright.report.walk_exchange import Exchanges, Kick, Region, named
from meshwright.report.walk_numbers import Comparison, QuantisedEntry, SubTile, compared, quantised, sub_tile
from meshwright.report.walk_orders import Picture, picture_of
from meshwright.report.walk_transport import Block, Call, Collect, Recording, Submit, Traffic
from meshwright.runtime.cards import over
from meshwright.runtime.device import Stats
from meshwright.runtime.device import Tensor as Value
from meshwright.runtime.held import memory_of
from meshwright.runtime.transport import InProcess
from meshwright.sharding import MeshGroup
from meshwright.simulator import Card
from meshwright.simulator.arithmetic import ENTRY_BYTES
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.layout import K_BLOCK, SUB_TILE
from meshwright.targets.ktpu.orders import Order
from meshwright.targets.ktpu.tiling import Setting, Tiling, candidates, ranked

MOST: Final = 1 << 32
"""Multiply-adds of the largest product that is walked through: some ten seconds."""
MOST_ELEMENTS: Final = 1 << 22
"""Of the largest of its matrices."""


class Product(Struct, frozen=True):
    """`C[m, n] = A[m, k] @ B[n, k].T` on one mesh; A and B are standard normal from `seed`, rounded to fp16.

    named: what the machine was loaded by.
    """

    m: int
    k: int
    n: int
    machine: MachineSpec
    mesh: int
    seed: int
    named: str

    def operands(self) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """A and B."""
        rng = np.random.default_rng(self.seed)
        a = rng.standard_normal((self.m, self.k)).astype(np.float16)
        return a, rng.standard_normal((self.n, self.k)).astype(np.float16)


class Obligation(Struct, frozen=True):
    """An entry of the certificate."""

    name: str
    verdict: str
    note: str


class Tilings(Struct, frozen=True):
    """The tiling that was taken, the one that is first by estimated cycles, and how many were candidates."""

    taken: Tiling
    first: Tiling
    candidates: int


class UnitProgram(Struct, frozen=True):
    """What one cluster was sent, out of staging memory, in all its kicks."""

    at: Coord
    program: Program
    words: tuple[int, ...]


class Walk(Struct, frozen=True):
    """Everything that is shown of a product.

    discovery: calls of the transport while units were looked for; run: those of the run; back: of the readout.
    """

    product: Product
    clusters: int
    plan: str
    graph: Graph
    obligations: tuple[Obligation, ...]
    tilings: Tilings
    pictures: tuple[Picture, ...]
    programs: tuple[UnitProgram, ...]
    exchanges: Exchanges
    discovery: Traffic
    run: Traffic
    back: Traffic
    watched: Site
    entries: tuple[QuantisedEntry, ...]
    sub_tile: SubTile
    comparison: Comparison
    stats: Stats


def product(name: str, m: int, k: int, n: int, mesh: int | None = None, seed: int = 0) -> Product:
    """A product that can be walked through, on a machine by name or file.

    mesh: None takes the first one that has clusters. Raises `UsageError` for sizes below 1, too large a product, a
    negative seed, a machine without instruction words and a mesh without clusters, and `MachineError` for a machine or
    mesh that isn't there.
    """
    machine = load(name)
    asked = f"walk {m} {k} {n}"
    if min(m, k, n) < 1:
        raise UsageError(f"{asked}: M, K and N are 1 at least, for C[M, N] = A[M, K] @ B[N, K].T")
    if seed < 0:
        raise UsageError(f"{asked}: --seed {seed}: a seed is 0 or more")
    if machine.numerics != "ktpu":
        raise UsageError(
            f'{asked}: {machine.name} has numerics = "{machine.numerics}", and instruction words are of the "ktpu" '
            "family; take --machine ktpu-v13p, or look at a graph for this machine with `meshwright show`"
        )
    having = [spec.id for spec in machine.meshes if machine.has(spec.id, "MG")]
    if (mesh is not None and machine.mesh(mesh).id not in having) or not having:
        there = f"; meshes {', '.join(map(str, having))} have" if having else ""
        which = "no mesh" if mesh is None else f"mesh {mesh}"
        raise UsageError(f"{asked}: {which} of {machine.name} has {'a' if mesh is None else 'no'} cluster{there}")
    work, largest = m * k * n, max(m * k, n * k, m * n)
    if work > MOST or largest > MOST_ELEMENTS:
        raise UsageError(
            f"{asked}: {work:,} multiply-adds, and {largest:,} elements in its largest matrix; products of up to "
            f"{MOST:,} and {MOST_ELEMENTS:,} are walked through, and larger ones are run: MeshGroup.open(machine, "
            'backend="simulator")'
        )
    return Product(m, k, n, machine, having[0] if mesh is None else mesh, seed, name)


def walk(asked: Product) -> Walk:
    """Runs a product on a simulated card, and tells all of it.

    Raises `MeshwrightError` where what was seen is not what the formats say, and what a group raises.
    """
    machine = asked.machine
    a, b = asked.operands()
    evaluated, graph = _evaluated(asked, a, b)
    watch = Watch(_first_cluster(graph))
    recording = Recording(InProcess(Card(machine, units={"MG": watch.units})))
    group = MeshGroup.open(over(recording, machine), meshes=[asked.mesh])
    looked = len(recording.calls)
    left, right = group.copy(a, name="a"), group.copy(b, name="b")
    plan = group.plan_matmul(left, right)
    if plan.graph() != graph:
        raise MeshwrightError("the plan for the simulated card is another one than the evaluator's; please report it")
    certificate = plan.certificate()
    result = group.run(plan)
    ran = len(recording.calls)
    found = np.asarray(result)
    calls = recording.calls
    images = [_image(name, value.parts[0], asked) for name, value in (("a", left), ("b", right), ("c", result))]
    exchanges = named(calls[looked:], machine, recording.agents, [image.region for image in images], looked)
    tilings = _tilings(asked, graph)
    return Walk(
        product=asked,
        clusters=machine.count("MG", asked.mesh),
        plan=str(plan),
        graph=graph,
        obligations=tuple(Obligation(e.obligation, str(e.verdict), e.message) for e in certificate.entries),
        tilings=tilings,
        pictures=tuple(_picture(image, calls[looked:]) for image in images),
        programs=_programs(exchanges.kicks),
        exchanges=exchanges,
        discovery=Traffic.of(calls[:looked]),
        run=Traffic.of(calls[looked:ran]),
        back=Traffic.of(calls[ran:]),
        watched=watch.site,
        entries=_entries(watch, asked, calls[looked:]),
        sub_tile=sub_tile(watch.seen),
        comparison=compared(found, evaluated, a, b),
        stats=group.devices[asked.mesh].stats(),
    )


def _evaluated(asked: Product, a: NDArray[np.float16], b: NDArray[np.float16]) -> tuple[NDArray[np.float16], Graph]:
    """The bits that the stage graph means, and the graph."""
    group = MeshGroup.open(asked.machine, meshes=[asked.mesh])
    plan = group.plan_matmul(group.copy(a, name="a"), group.copy(b, name="b"))
    return np.asarray(group.run(plan)), plan.graph()


def _first_cluster(graph: Graph) -> Site:
    return next(graph.site(stage) for stage in graph.stages if isinstance(stage.kind, Compute))


class _Image(Struct, frozen=True):
    """Where a matrix lies, and how."""

    region: Region
    order: Order
    address: int


def _image(name: str, value: Value, asked: Product) -> _Image:
    """The image that units used: a value of this run has one."""
    ((order, span),) = memory_of(value.device).of(value).images.items()
    machine = asked.machine
    region = Region(name, machine.host_addr(asked.mesh, span.start), order.nbytes)
    return _Image(region, order, machine.global_addr(asked.mesh, span.start))


def _picture(image: _Image, calls: Sequence[Call]) -> Picture:
    region = image.region
    known = {
        block.address - region.host: block.data
        for call in calls
        if isinstance(call, (Submit, Collect))
        for block in call.blocks
        if region.host <= block.address < region.host + region.nbytes
    }
    return picture_of(region.name, image.order, image.address, region.host, known)


def _programs(kicks: Sequence[Kick]) -> tuple[UnitProgram, ...]:
    words: dict[Coord, list[int]] = {}
    for kick in kicks:
        words.setdefault(kick.at, []).extend(kick.words)
    return tuple(UnitProgram(at, Program.decode("MG", sent), tuple(sent)) for at, sent in words.items())


def _entries(watch: Watch, asked: Product, calls: Sequence[Call]) -> tuple[QuantisedEntry, ...]:
    """The first entry that was filled on each side."""
    machine = asked.machine
    written = {block.address: block for call in calls if isinstance(call, Submit) for block in call.blocks}
    firsts: dict[int, Filled] = {}
    for one in watch.seen:
        if isinstance(one, Filled):
            firsts.setdefault(one.word.sel, one)
    made: list[QuantisedEntry] = []
    for one in firsts.values():
        mesh, local = machine.split_addr(one.word.addr)
        made.append(quantised(one, _bytes(written, machine.host_addr(mesh, local))))
    return tuple(made)


def _bytes(written: Mapping[int, Block], address: int) -> bytes:
    """The bytes of an entry, as they were written."""
    for first, block in written.items():
        if first <= address < first + len(block.data):
            return block.data[address - first : address - first + ENTRY_BYTES]
    raise MeshwrightError(f"an entry was filled from {address:#x}, which this run never wrote; please report it")


def _tilings(asked: Product, graph: Graph) -> Tilings:
    machine, clusters = asked.machine, asked.machine.count("MG", asked.mesh)
    op = next(s.kind.op for s in graph.stages if isinstance(s.kind, Compute) and isinstance(s.kind.op, Matmul))
    m, n, k = op.block
    taken = Tiling(asked.m, asked.n, asked.k, m // SUB_TILE, n // SUB_TILE, k // K_BLOCK, Setting.of(machine, clusters))
    found = candidates(asked.m, asked.n, asked.k, machine, clusters)
    return Tilings(taken, ranked(found)[0], len(found))

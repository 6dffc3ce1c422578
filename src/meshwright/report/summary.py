"""What a graph is, gathered by site: the facts that the overview and the picture both show."""

from __future__ import annotations

from collections import Counter, defaultdict

from msgspec import Struct

from meshwright.errors import GraphError
from meshwright.ir.form import require_well_formed
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.records import Load, Role, Site
from meshwright.machine import MachineSpec
from meshwright.report.movement import ChipBytes, chip_bytes, edges, loaded_bytes, stored_bytes
from meshwright.report.words import printable, sizes, work_of
from meshwright.runtime.traffic import link_bytes

ROLES: tuple[Role, ...] = ("reader", "scalar", "compute", "link", "writer")
"""A site's engines, in the order in which blocks pass through them."""


class Held(Struct, frozen=True):
    """Buffers of a site that are alike, and how many there are."""

    format: ElementType
    block: tuple[int, ...]
    depth: int
    resident: bool
    count: int

    def __str__(self) -> str:
        several = f"{self.count} × " if self.count > 1 else ""
        kind = "accumulator " if self.resident else ""
        return f"{several}{kind}{self.format} {sizes(self.block)}, {self.depth} deep"


class Work(Struct, frozen=True):
    """Stages of a site that do the same, and how many there are."""

    role: Role
    text: str
    count: int

    def __str__(self) -> str:
        return self.text if self.count == 1 else f"{self.count} × {self.text}"


class SiteSummary(Struct, frozen=True):
    """What is at one site."""

    site: Site
    work: tuple[Work, ...]
    held: tuple[Held, ...]

    @property
    def fifos(self) -> int:
        """How many buffers there are."""
        return sum(held.count for held in self.held)


class Multicast(Struct, frozen=True):
    """Groups with the same sender and rectangle, and the names of what is sent to them."""

    sender: Site
    low: tuple[int, int]
    high: tuple[int, int]
    groups: tuple[int, ...]
    tensors: tuple[str, ...]


class Summary(Struct, frozen=True):
    """A graph by site.

    chips: those that take part, or all of the machine. links: pairs of chips joined by a link, or, without a machine,
    between which something moves. moved: bytes by (from chip, to chip); None where blocks don't balance, and `problem`
    says why. loaded, stored: bytes between DRAM and each chip's sites.
    """

    title: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    chips: tuple[int, ...]
    sites: tuple[SiteSummary, ...]
    multicasts: tuple[Multicast, ...]
    links: tuple[tuple[int, int], ...]
    moved: ChipBytes | None
    problem: str | None
    loaded: dict[int, int]
    stored: dict[int, int]


def summarise(graph: Graph, machine: MachineSpec | None = None) -> Summary:
    """The facts of `graph`; with a machine, its chips and links and the bytes over each of them.

    Raises `GraphError` for a graph that isn't well formed, and `PlacementError` or `MachineError` where the machine
    has no such chip or way.
    """
    require_well_formed(graph)
    sites = _sites(graph)
    used = {summary.site.chip for summary in sites} | {group.sender.chip for group in graph.groups}
    used |= {chip for tensor in graph.tensors for chip in tensor.chips}
    if machine is not None:
        for chip in sorted(used):
            machine.mesh(chip)
    moved, problem = _moved(graph, machine)
    chips = tuple(sorted(used)) if machine is None else machine.mesh_ids
    links = edges(moved or {}) if machine is None else [link.between for link in machine.links]
    return Summary(
        title=_title(graph, sites, len(used)),
        inputs=tuple(_tensor(graph, t) for t in graph.inputs()),
        outputs=tuple(_tensor(graph, t) for t in graph.outputs()),
        chips=chips,
        sites=sites,
        multicasts=_multicasts(graph),
        links=tuple(links),
        moved=moved,
        problem=problem,
        loaded=loaded_bytes(graph),
        stored=stored_bytes(graph),
    )


def _title(graph: Graph, sites: tuple[SiteSummary, ...], chips: int) -> str:
    counts = (
        (len(graph.stages), "stage", " at "),
        (len(sites), "site", " of "),
        (chips, "chip", "; "),
        (len(graph.buffers), "buffer", ", "),
        (len(graph.groups), "multicast group", ", "),
        (len(graph.tensors), "tensor", ""),
    )
    return "".join(f"{count} {what}{'s' if count != 1 else ''}{after}" for count, what, after in counts)


def _tensor(graph: Graph, number: int) -> str:
    tensor = graph.tensors[number]
    how = " x ".join(map(str, tensor.specs))
    chips = ", ".join(map(str, tensor.chips[:8])) + (", …" if len(tensor.chips) > 8 else "")
    return f"{printable(tensor.name)} {tensor.format}[{', '.join(map(str, tensor.shape))}] {how} on {chips}"


def _moved(graph: Graph, machine: MachineSpec | None) -> tuple[ChipBytes | None, str | None]:
    try:
        balanced = chip_bytes(graph)
    except GraphError as error:
        # What doesn't balance is looked at, too: it is shown without figures, and why.
        return None, printable(str(error), 400)
    return (balanced if machine is None else link_bytes(graph, machine)), None


def _sites(graph: Graph) -> tuple[SiteSummary, ...]:
    work: defaultdict[Site, Counter[tuple[Role, str]]] = defaultdict(Counter)
    held: defaultdict[Site, Counter[tuple[ElementType, tuple[int, ...], int, bool]]] = defaultdict(Counter)
    for buffer in graph.buffers:
        held[buffer.site][buffer.format, buffer.block, buffer.depth, buffer.resident] += 1
    for stage in graph.stages:
        work[graph.site(stage)][stage.role(), work_of(graph, stage)] += 1
    return tuple(
        SiteSummary(
            site,
            tuple(
                Work(role, text, count)
                for (role, text), count in sorted(work[site].items(), key=lambda item: ROLES.index(item[0][0]))
            ),
            tuple(Held(*alike, count) for alike, count in held[site].items()),
        )
        for site in sorted({*work, *held}, key=lambda s: (s.chip, s.y, s.x))
    )


def _multicasts(graph: Graph) -> tuple[Multicast, ...]:
    sent: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for stage in graph.stages:
        if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
            sent[stage.kind.multicast][printable(graph.tensors[stage.kind.tensor].name)] = None
    alike: defaultdict[tuple[Site, tuple[int, int], tuple[int, int]], list[int]] = defaultdict(list)
    for number, group in enumerate(graph.groups):
        alike[group.sender, group.low, group.high].append(number)
    return tuple(
        Multicast(sender, low, high, tuple(groups), tuple(dict.fromkeys(name for g in groups for name in sent[g])))
        for (sender, low, high), groups in alike.items()
    )

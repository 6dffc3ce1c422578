"""Machines as text: a table of all presets, and a picture of one machine with its links and figures."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.table import Table

from meshwright.machine.figures import BeatLink, FillCost, LinkKind, MemoryPortSpec
from meshwright.machine.files import load, presets
from meshwright.machine.mesh import Coord, LinkSpec, MeshSpec, listed
from meshwright.machine.spec import MachineSpec

_MARKS = {"port": "p", "agent": "a", "port+agent": "pa", "site": "S"}
_LEGENDS = {"MG": "MG matmul cluster", "VC": "VC vector core", "site": "S site"}
_GAP = 4  # columns between two meshes side by side


def machines_table(machines: Iterable[MachineSpec] | None = None) -> Table:
    """A table with a line a machine; by default of all presets."""
    table = Table(title="machines", title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("meshes", "units", "DRAM a mesh", "numerics", "what it is"):
        table.add_column(heading, overflow="fold")
    for machine in machines if machines is not None else [load(name) for name in presets()]:
        units = listed(f"{machine.count(kind)} {kind}" for kind in machine.unit_types)
        table.add_row(machine.name, _chain(machine), units, size(machine.dram.bytes), machine.numerics, machine.summary)
    return table


def describe(machine: MachineSpec, width: int = 100) -> str:
    """Name, picture, links and figures of one machine as plain text, pictures at most `width` columns wide."""
    parts = [f"{machine.name}: {machine.summary}", picture(machine, width), _links(machine), _figures(machine)]
    return "\n\n".join(part for part in parts if part) + "\n"


def picture(machine: MachineSpec, width: int = 100) -> str:
    """The meshes with what stands at each coordinate; x to the right, y down, linked meshes joined.

    Rows hold as many meshes as `width` columns take, one at least. Meshes of a grid stand at their places.
    """
    rows = _rows(machine, width)
    text = _row_of(machine, rows[0])
    for above, below in pairwise(rows):
        text += [_down(machine, above, below), *_row_of(machine, below)]
    return "\n".join(line.rstrip() for line in [*text, "", _legend(machine)])


def size(count: int) -> str:
    """Bytes in the largest binary unit that takes them whole, such as `4 GiB`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} bytes"


def rate(bytes_per_s: float) -> str:
    """Bytes a second in decimal units, such as `3.2 GB/s`."""
    for power, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= power:
            return f"{bytes_per_s / power:.4g} {unit}"
    return f"{bytes_per_s:.4g} B/s"


def _block(machine: MachineSpec, mesh: MeshSpec) -> list[str]:
    """One mesh as lines of equal width: a heading, the x axis, a line for every y.

    All meshes of a machine get the same rows, columns and width, so that equal places stand level.
    """
    span_x, span_y, cell = _span(machine)
    marks, routers = _marks(mesh)
    side = len(str(span_y[-1]))
    axis = " " * side + "".join(f"{x:>{cell}}" for x in span_x)
    body = [
        f"{y:>{side}}" + "".join(f"{marks.get((x, y), '.' if (x, y) in routers else ''):>{cell}}" for x in span_x)
        for y in span_y
    ]
    text = [f"mesh {mesh.id}", axis, *body]
    return [line.ljust(max(len(line) for line in text)) for line in text]


def _span(machine: MachineSpec) -> tuple[range, range, int]:
    """Columns, rows and cell width that every mesh of the machine is drawn with."""
    drawn = [_marks(mesh) for mesh in machine.meshes]
    places = [place for marks, routers in drawn for place in (*marks, *routers)]
    x0, y0 = (min(place[axis] for place in places) for axis in (0, 1))
    x1, y1 = (max(place[axis] for place in places) for axis in (0, 1))
    cell = max(len(text) for marks, _ in drawn for text in (*marks.values(), str(x1))) + 1
    return range(x0, x1 + 1), range(y0, y1 + 1), cell


def _marks(mesh: MeshSpec) -> tuple[dict[Coord, str], set[Coord]]:
    (x0, y0), (x1, y1) = mesh.routers
    routers = {(x, y) for y in range(y0, y1 + 1) for x in range(x0, x1 + 1)}
    return {at: _MARKS.get(what, what) for at, what in mesh.occupants().items()}, routers


def _rows(machine: MachineSpec, width: int) -> list[list[MeshSpec | None]]:
    """Meshes row by row; `None` is an empty place of a grid of meshes."""
    places = {mesh.at: mesh for mesh in machine.meshes if mesh.at is not None}
    if places:
        across, down = (max(place[axis] for place in places) + 1 for axis in (0, 1))
        return [[places.get((x, y)) for x in range(across)] for y in range(down)]
    each = _extent(machine)[0]
    fit = max(1, (width + _GAP) // (each + _GAP))
    meshes = [machine.mesh(mesh) for mesh in machine.mesh_ids]
    return [[*meshes[start : start + fit]] for start in range(0, len(meshes), fit)]


def _row_of(machine: MachineSpec, row: Sequence[MeshSpec | None]) -> list[str]:
    each, height = _extent(machine)
    blocks = [_block(machine, mesh) if mesh is not None else [] for mesh in row]
    padded = [[line.ljust(each) for line in block + [""] * (height - len(block))] for block in blocks]
    text = padded[0]
    for (left, right), block in zip(pairwise(row), padded[1:], strict=True):
        joint = "─" * (_GAP - 2) if _linked(machine, left, right) else ""
        gaps = [f" {joint} " if line == height // 2 else "" for line in range(height)]
        text = [a + gap.ljust(_GAP) + b for a, gap, b in zip(text, gaps, block, strict=True)]
    return text


def _down(machine: MachineSpec, above: Sequence[MeshSpec | None], below: Sequence[MeshSpec | None]) -> str:
    """The line between two rows of meshes: links downward in a grid, empty where a chain just goes on."""
    if machine.topology != "grid2d":
        return ""
    each, _ = _extent(machine)
    bars = ["│" if _linked(machine, a, b) else "" for a, b in zip(above, below, strict=True)]
    return (" " * _GAP).join(bar.center(each) for bar in bars)


def _extent(machine: MachineSpec) -> tuple[int, int]:
    blocks = [_block(machine, mesh) for mesh in machine.meshes]
    return max(len(block[0]) for block in blocks), len(blocks[0])


def _linked(machine: MachineSpec, a: MeshSpec | None, b: MeshSpec | None) -> bool:
    return a is not None and b is not None and b.id in machine.neighbours(a.id)


def _legend(machine: MachineSpec) -> str:
    found = {what for mesh in machine.meshes for what in mesh.occupants().values()}
    known = [_LEGENDS[kind] for kind in machine.unit_types]
    known += [". router"] if any(_marks(mesh)[1] - set(mesh.occupants()) for mesh in machine.meshes) else []
    if found & {"port", "port+agent"}:
        known.append("p memory port")
    if found & {"agent", "port+agent"}:
        known.append("a agent")
    return listed(known)


def _chain(machine: MachineSpec) -> str:
    joint = "-" if machine.topology in ("chain", "ring") and machine.links else " "
    ids = machine.mesh_ids
    linked = [joint if b in machine.neighbours(a) else " " for a, b in pairwise(ids)]
    return f"{len(ids)}: {ids[0]}" + "".join(f"{gap}{mesh}" for gap, mesh in zip(linked, ids[1:], strict=True))


def _links(machine: MachineSpec) -> str:
    if not machine.links:
        return ""
    lines = [
        f"links ({machine.topology}; {'each forwards' if machine.forwards else 'none forwards'}; "
        f"what crosses: {listed(machine.crosses) or 'nothing'})"
    ]
    lines += [f"  {link.between[0]} ── {link.between[1]}  {_link(machine, link)}" for link in machine.links]
    for kind in machine.link_kinds:
        lines.append(f"  {kind.name}: {_kind(kind)} [{kind.source}]")
    return "\n".join(lines)


def _link(machine: MachineSpec, link: LinkSpec) -> str:
    several = f"{link.count} x " if link.count > 1 else ""
    return f"{several}{link.kind}, at most {rate(machine.link_bytes_per_s(link))} each way"


def _kind(kind: LinkKind) -> str:
    if isinstance(kind, BeatLink):
        return (
            f"beats of {kind.beat_bytes} bytes; a packet of b (at most {kind.max_packet_beats}) leaves in "
            f"{kind.packet_start_cycles} + {kind.beat_cycles:g}b cycles"
        )
    return (
        f"{kind.hop_ns_line:g} ns a hop in a line, {kind.hop_ns_grid2d:g} in a grid; packets of "
        f"{kind.packet_bytes} bytes are {100 * kind.payload_efficiency():.1f} % payload"
    )


def _figures(machine: MachineSpec) -> str:
    dram = machine.dram
    lines = ["figures"]
    speed = f", {rate(dram.bytes_per_s)}, {100 * dram.reachable:g} % reachable" if dram.bytes_per_s else ""
    kept = f", top {size(dram.reserved_bytes)} reserved" if dram.reserved_bytes else ""
    lines.append(f"  DRAM a mesh   {size(dram.bytes)}{kept}{speed}; bursts of {dram.burst_bytes} bytes [{dram.source}]")
    if (port := machine.maybe_memory_port) is not None:
        lines.append(f"  memory port   {_port(port)} [{port.source}]")
    lines += _unit_figures(machine)
    if (dispatch := machine.maybe_dispatch) is not None:
        lines.append(
            f"  a round       {dispatch.staged_words} staged words, {dispatch.commands} commands; a unit queues "
            f"{dispatch.instruction_fifo} instructions [{dispatch.source}]"
        )
    if (address := machine.maybe_address) is not None:
        top = address.mesh_shift + address.mesh_bits - 1
        aperture = "" if address.aperture_bit is None else f", aperture in bit {address.aperture_bit}"
        lines.append(
            f"  addresses     {address.bits} bits, mesh in bits {top} to {address.mesh_shift}{aperture}; host "
            f"window of mesh m at (m + 1) << {address.host_window_shift} [{address.source}]"
        )
    rates = listed(f"{r.bytes_per_cycle:g} ({r.packet_bytes})" for r in machine.noc.rates)
    hop = f"{machine.noc.hop_cycles} cycles a router; " if machine.noc.hop_cycles is not None else ""
    lines.append(f"  network       {hop}bytes a cycle (packet bytes): {rates} [{machine.noc.source}]")
    lines.append(f"  clock         {machine.clock.hz / 1e6:g} MHz fabric [{machine.clock.source}]")
    lines += [f"  host          {_transport(machine, transport.name)}" for transport in machine.transports]
    return "\n".join(lines)


def _unit_figures(machine: MachineSpec) -> list[str]:
    lines: list[str] = []
    if (cluster := machine.maybe_cluster) is not None:
        lines.append(
            f"  MG            {cluster.macs_per_cycle} MAC a cycle, accumulator {cluster.accumulator_tiles} "
            f"sub-tiles of {cluster.sub_tile[0]}x{cluster.sub_tile[1]}, L1 {cluster.l1_sides} sides x "
            f"{cluster.l1_banks} banks x {cluster.l1_entries} entries [{cluster.source}]"
        )
    if (core := machine.maybe_vector_core) is not None:
        lines.append(
            f"  VC            {core.lanes} lanes, vectors to {core.vector_length}, L1 {core.l1_words} words, "
            f"{core.instructions} instructions [{core.source}]"
        )
    if (site := machine.maybe_site) is not None:
        products = listed(f"{entry.cycles} ({entry.fidelity})" for entry in site.tile_product)
        lines.append(
            f"  site          {size(site.memory_bytes)} of memory, {site.tile[0]}x{site.tile[1]} tiles, cycles a "
            f"tile product: {products} [{site.source}]"
        )
    return lines


def _port(port: MemoryPortSpec) -> str:
    def cost(name: str, fill: FillCost | None) -> str:
        return f"{fill.entry_cycles:g} {name}" if fill is not None else f"not known {name}"

    entries = listed(
        (cost("quantising", port.quantised), cost("quantised", port.prequantised), cost("staged", port.staged))
    )
    several = "s" if port.reads_in_flight > 1 else ""
    return (
        f"cycles an entry: {entries}; {port.reads_in_flight} read{several} in flight, latency "
        f"{port.latency_cycles}, {port.write_burst_cycles:g} a write burst"
    )


def _transport(machine: MachineSpec, name: str) -> str:
    transport = machine.transport(name)
    poll = f"{1e3 * transport.poll_s:g} ms a poll" if transport.poll_s is not None else "no polls"
    known = ((transport.write_bytes_per_s, "in"), (transport.read_bytes_per_s, "out"))
    rates = listed(f"{rate(speed)} {way}" for speed, way in known if speed is not None) or "rate not known"
    return f"{name}: {poll}, {rates} [{transport.source}]"

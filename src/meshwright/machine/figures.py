"""The figures of a machine: plain frozen records, one per part, each naming where its figures come from.

`source` of a group is free text such as "rtl" (read off simulation of the RTL), "silicon" (measured on the part),
"specification", or "vendor's published figures". Cycles are cycles of `ClockSpec.hz` unless a name says otherwise.
"""

from typing import Annotated, TypeAlias

import msgspec

from meshwright.errors import MachineError

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
"""A number of things, one at least."""
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Nought or more."""
Rate: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
"""A positive rate, period or number of cycles."""
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
"""Text that says something."""


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A matmul cluster, unit type `MG`."""

    source: Text
    sub_tile: tuple[Count, Count]
    """Rows and columns of the output sub-tile that one step produces, in elements."""
    k_block: Count
    """Contraction elements taken in one step."""
    l1_sides: Count
    """Operand memories, one for A and one for B."""
    l1_banks: Count
    """Banks of a side; a fill into one bank can run beside a sweep over another."""
    l1_entries: Count
    """Entries of a bank; an entry is `sub_tile[0]` rows by `k_block` of K."""
    accumulator_tiles: Count = 512
    """Sub-tiles that the accumulator holds; 512 on some builds, 256 on others."""

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates a cycle."""
        return self.sub_tile[0] * self.sub_tile[1] * self.k_block


class VectorCoreSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A vector core, unit type `VC`."""

    source: Text
    lanes: Count
    """Elements processed in one cycle; also the elements of one chunk."""
    vector_length: Count
    """Elements of the longest vector."""
    l1_words: Count
    """Words of local memory."""
    l1_safe_words: Count
    """Largest footprint in words, short of the whole memory, that was measured to be right."""
    word_bytes: Count
    """Bytes of a local memory word."""
    instructions: Count
    """Words of instruction memory."""
    descriptors: Count
    """Address descriptors."""
    walk_words: Count
    """Most words that one fill or drain may move."""
    loop_words: Count
    """Most instruction words in a loop body."""

    def footprint_is_safe(self, words: int) -> bool:
        """Whether a kernel may use `words` words of local memory.

        Between `l1_safe_words` and the whole memory a card gave wrong data and reported success (silicon), so
        only a footprint up to the former, or exactly the latter, is safe.
        """
        return 0 <= words <= self.l1_safe_words or words == self.l1_words


class FidelityCycles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one tile product costs at one fidelity of the matrix engine."""

    fidelity: Text
    cycles: Count


class SiteSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site of a grid machine, unit type `site`."""

    source: Text
    engines: tuple[Text, ...]
    """Engines that run beside each other: reader, matrix, vector, scalar, writer."""
    memory_bytes: Count
    """Bytes of site memory, shared by all the block FIFOs of the site."""
    tile: tuple[Count, Count]
    """Rows and columns of a tile, in elements."""
    tile_product: tuple[FidelityCycles, ...]
    """Cycles of one tile by tile product, lowest fidelity first."""

    def tile_product_cycles(self, fidelity: str) -> int:
        """Cycles of one tile by tile product at `fidelity`; MachineError names the fidelities there are."""
        for entry in self.tile_product:
            if entry.fidelity == fidelity:
                return entry.cycles
        known = ", ".join(entry.fidelity for entry in self.tile_product)
        raise MachineError(f"the matrix engine has no fidelity {fidelity!r}; it has {known}")


class DispatchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one round of dispatch through a mesh's agent."""

    source: Text
    staged_words: Count
    """Instruction words that the staging memory holds, over all units of a mesh."""
    commands: Count
    """Commands of one round."""
    instruction_fifo: Count
    """Instructions that one unit queues; more in flight than this wedges the unit."""


class AddressMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a global address says which mesh it is in: mesh field above the local bits, aperture bit on top."""

    source: Text
    bits: Count
    """Bits of an address."""
    mesh_shift: Count
    """Lowest bit of the mesh field, which is also the number of local bits."""
    mesh_bits: Count
    """Width of the mesh field."""
    host_window_shift: Count
    """From the host, mesh `m` is seen at `(m + 1) << host_window_shift`."""
    aperture_bit: Natural | None = None
    """Bit that selects special memory rather than DRAM; absent where an address can only mean DRAM."""


class DramSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DRAM of one mesh."""

    source: Text
    bytes: Count
    """Bytes populated, from local address 0."""
    burst_bytes: Count
    """Spans are aligned to this and rounded up to it."""
    reserved_bytes: Natural = 0
    """Bytes at the top that the driver keeps as scratch."""
    bytes_per_s: Rate | None = None
    """Peak rate of one mesh's DRAM in bytes a second; absent where `memory_port` says it in cycles."""
    reachable: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """The part of `bytes_per_s` that good code reaches."""

    @property
    def usable_bytes(self) -> int:
        """Bytes that values may occupy."""
        return self.bytes - self.reserved_bytes


class FillCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cycles of a fill of n entries: `start_cycles + n * entry_cycles`, memory latency not counted."""

    entry_cycles: Rate
    start_cycles: Natural = 0


class MemoryPortSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Timing of one memory port.

    With one read in flight the latency is paid once per entry; with more it is hidden behind `entry_cycles` after
    the first.
    """

    source: Text
    reads_in_flight: Count
    latency_cycles: Natural
    """From a read's address to its first data, and from the last write data to the response."""
    write_burst_cycles: Rate
    """Between two write bursts, memory latency not counted."""
    write_slots: Count
    """Writes that may be open at once."""
    queue_flits: Count
    """Flits queued on the way in."""
    quantised: FillCost | None = None
    """Operands quantised on the way in; absent where no figure is known."""
    prequantised: FillCost | None = None
    """Operands already quantised in memory."""
    staged: FillCost | None = None
    """Operands out of the agent's staging memory, which has no latency."""


class PacketRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an on-chip network sustains with packets of one size."""

    packet_bytes: Count
    bytes_per_cycle: Rate


class NocSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The on-chip network of a mesh."""

    source: Text
    multicast: bool
    """Whether one traversal delivers to every site of a rectangle."""
    rates: Annotated[tuple[PacketRate, ...], msgspec.Meta(min_length=1)]
    """Sustained rate by packet size, ascending."""
    hop_cycles: Natural | None = None
    """Cycles through one router; absent where no figure is known."""
    router_fifo_flits: Count | None = None
    """Depth of a router's input FIFO."""


class BeatLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="beats"):
    """A link that moves packets of beats, store and forward; figures in fabric cycles."""

    name: Text
    source: Text
    beat_bytes: Count
    packet_start_cycles: Natural
    beat_cycles: Rate
    """A packet of b payload beats leaves in `packet_start_cycles + b * beat_cycles`."""
    max_packet_beats: Count
    buffer_beats: Count
    """Beats buffered at the receiver, per traffic class."""
    mover_bytes_per_s: Rate | None = None
    """What the memory mover sustains across the link, in bytes a second."""

    def packet_cycles(self, payload_beats: int) -> float:
        """Cycles in which a packet with `payload_beats` beats of payload leaves the sender."""
        if not 1 <= payload_beats <= self.max_packet_beats:
            raise MachineError(
                f"link kind {self.name!r}: a packet of {payload_beats} payload beats; it carries 1 to "
                f"{self.max_packet_beats}"
            )
        return self.packet_start_cycles + self.beat_cycles * payload_beats


class FrameLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="frames"):
    """A serial link whose packets are cut into frames; figures in seconds and bytes."""

    name: Text
    source: Text
    bytes_per_s: Rate
    """Of one link in one direction."""
    hop_ns_line: Rate
    """Nanoseconds a hop where the meshes form a line or a ring."""
    hop_ns_grid2d: Rate
    """Nanoseconds a hop where the meshes form a grid."""
    packet_bytes: Count
    """Payload of the packets the tables were made with."""
    header_bytes: Natural
    frame_bytes: Count
    frame_overhead_bytes: Natural

    def payload_efficiency(self, packet_bytes: int | None = None) -> float:
        """Payload over bytes on the wire: P / (P + H + overhead * ceil((P + H) / frame)), P `packet_bytes`."""
        payload = self.packet_bytes if packet_bytes is None else packet_bytes
        if payload < 1:
            raise MachineError(f"link kind {self.name!r}: a packet of {payload} bytes; it carries 1 or more")
        framed = payload + self.header_bytes
        frames = -(-framed // self.frame_bytes)
        return payload / (framed + self.frame_overhead_bytes * frames)


class ClockProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting of the clocks, in hertz."""

    name: Text
    fabric_hz: Rate
    """Routers and units: the clock that cycles are counted in."""
    matrix_hz: Rate
    """The clock inside the matrix units; twice the fabric's where they are pumped."""
    vector_hz: Rate
    memory_hz: Rate
    """The memory agent."""


class ClockSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clocks; `profile` names the setting that the figures of this machine are read at."""

    source: Text
    profile: Text
    profiles: Annotated[tuple[ClockProfile, ...], msgspec.Meta(min_length=1)]

    @property
    def hz(self) -> float:
        """The fabric clock of the named profile, in hertz: the clock that cycles are counted in."""
        return next(p.fabric_hz for p in self.profiles if p.name == self.profile)


class TransportSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way from the host to the machine."""

    name: Text
    source: Text
    min_bytes: Count
    """Smallest transfer."""
    max_bytes: Count
    """Largest transfer in one call."""
    poll_s: Rate | None = None
    """Seconds of one register access; absent where the transport has no register access."""
    write_bytes_per_s: Rate | None = None
    """Host to machine; absent where no figure is known."""
    read_bytes_per_s: Rate | None = None
    """Machine to host; absent where no figure is known."""


LinkKind: TypeAlias = BeatLink | FrameLink

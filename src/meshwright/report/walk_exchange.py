"""What passed between host and card, by name: registers with their fields, staged flits, images, completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from meshwright.machine import Coord, MachineSpec
from meshwright.report.walk_transport import Block, Call, Collect, Poll, Submit
from meshwright.runtime.dispatch_rounds import status_of
from meshwright.runtime.transport import WORD, AgentWindow
from meshwright.simulator import registers as reg
from meshwright.simulator.unit import Signal
from meshwright.targets.ktpu.isa.flit import FLIT_WORDS, Flit

Kind = Literal["submit", "poll", "collect"]
_KINDS: Final[dict[type[Call], Kind]] = {Submit: "submit", Poll: "poll", Collect: "collect"}
_NAMES: Final = {
    reg.PROG_DST: "PROG_DST",
    reg.PROG_LEN: "PROG_LEN",
    reg.PROG_KICK: "PROG_KICK",
    reg.PROG_STAT: "PROG_STAT",
    reg.PROG_CRED: "PROG_CRED",
    reg.PROG_BASE: "PROG_BASE",
}


class Region(Struct, frozen=True):
    """Bytes of a mesh's DRAM with a name. host: the host address of the first."""

    name: str
    host: int
    nbytes: int


class Named(Struct, frozen=True):
    """A block of a call. what: the register or memory. value: as it was read or written. says: what that means."""

    what: str
    value: str
    says: str
    data: bytes


class Exchange(Struct, frozen=True):
    """A call of the transport; number: counted from the first of all."""

    number: int
    kind: Kind
    blocks: tuple[Named, ...]
    begins_round: bool = False


class Kick(Struct, frozen=True):
    """Flits that went to the unit at `at` of a mesh, from staging slot `first` on. call: the number of its exchange."""

    call: int
    round: int
    mesh: int
    at: Coord
    first: int
    flits: tuple[Flit, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """The instruction words."""
        return tuple(flit.payload for flit in self.flits)


class Exchanges(Struct, frozen=True):
    """Everything that passed, in order, and the kicks in it."""

    calls: tuple[Exchange, ...]
    kicks: tuple[Kick, ...]

    @property
    def rounds(self) -> int:
        """Rounds that were begun, of all meshes."""
        return sum(call.begins_round for call in self.calls)


def named(
    calls: Sequence[Call], machine: MachineSpec, agents: AgentWindow, regions: Sequence[Region], first: int
) -> Exchanges:
    """Names for what is in `calls`, the first of which has number `first`, for one mesh or several.

    Raises `InstructionError` for staging memory that holds no flits.
    """
    reader = _Reader(machine, agents, regions)
    exchanges = tuple(reader.exchange(number, call) for number, call in enumerate(calls, first))
    return Exchanges(exchanges, tuple(reader.kicks))


class _Reader:
    """Goes through the calls in order, and keeps what registers and staging memory hold."""

    def __init__(self, machine: MachineSpec, agents: AgentWindow, regions: Sequence[Region]) -> None:
        self._machine = machine
        self._agents = agents
        self._regions = regions
        self._latched: dict[tuple[int, int], int] = {}
        self._staged: dict[tuple[int, int], Flit] = {}
        self._rounds = 0
        self.kicks: list[Kick] = []

    def exchange(self, number: int, call: Call) -> Exchange:
        """A call, named."""
        before = self._rounds
        blocks = tuple(self._block(number, call, block) for block in call.blocks)
        return Exchange(number, _KINDS[type(call)], blocks, self._rounds > before)

    def _block(self, number: int, call: Call, block: Block) -> Named:
        wrote = isinstance(call, Submit)
        if block.address >> self._machine.address.host_window_shift:
            return self._memory(block)
        mesh, offset = divmod(block.address - self._agents.base, self._agents.stride)
        if wrote and offset >= reg.STAGE:
            return self._stage(mesh, offset, block)
        return self._register(number, mesh, offset, block, wrote=wrote)

    def _memory(self, block: Block) -> Named:
        mesh, local = self._machine.split_host_addr(block.address)
        size = f"{len(block.data):,} bytes"
        for region in self._regions:
            inside = block.address - region.host
            if inside >= 0 and inside + len(block.data) <= region.nbytes:
                whole = "the image" if len(block.data) == region.nbytes else f"from byte {inside:,} of the image"
                return Named(f"DRAM {local:#x}", size, f"{whole} of {region.name}, mesh {mesh}", block.data)
        return Named(f"DRAM {local:#x}", size, f"mesh {mesh}", block.data)

    def _stage(self, mesh: int, offset: int, block: Block) -> Named:
        first = (offset - reg.STAGE) // reg.SLOT_BYTES
        flits = list(_flits(block.data))
        self._staged.update({(mesh, first + at): flit for at, flit in enumerate(flits)})
        size = f"{len(block.data):,} bytes"
        return Named(
            f"STAGE {offset:#06x}", size, f"slots {first} to {first + len(flits) - 1}, a flit each", block.data
        )

    def _register(self, number: int, mesh: int, offset: int, block: Block, *, wrote: bool) -> Named:
        value = int.from_bytes(block.data[:WORD], "little")
        if offset in reg.NODE_STATUS:
            x, y = reg.place_of((offset - reg.NODE_STATUS.start) // WORD)
            return Named(f"NODE_STATUS ({x}, {y}) {offset:#06x}", f"{value:#018x}", completion(value), block.data)
        what = f"{_NAMES.get(offset, 'register')} {offset:#06x}"
        if not wrote:
            return Named(what, f"{value:#018x}", _status(value, mesh) if offset == reg.PROG_STAT else "", block.data)
        self._latched[mesh, offset] = value
        return Named(what, f"{value:#x}", self._written(number, mesh, offset, value), block.data)

    def _written(self, number: int, mesh: int, offset: int, value: int) -> str:
        match offset:
            case reg.PROG_CRED:
                self._rounds += 1
                return f"{value} credits: a round begins"
            case reg.PROG_DST:
                x, y = reg.place_of(value)
                return f"y << 4 | x: the unit at ({x}, {y})"
            case reg.PROG_BASE:
                return f"from slot {value}"
            case reg.PROG_LEN:
                return f"{value} flits"
            case reg.PROG_KICK:
                return self._kick(number, mesh)
            case _:
                return ""

    def _kick(self, number: int, mesh: int) -> str:
        at = reg.place_of(self._latched[mesh, reg.PROG_DST])
        first, count = self._latched[mesh, reg.PROG_BASE], self._latched[mesh, reg.PROG_LEN]
        flits = tuple(self._staged[mesh, slot] for slot in range(first, first + count))
        self.kicks.append(Kick(number, self._rounds, mesh, at, first, flits))
        return f"slots {first} to {first + count - 1} go to ({at[0]}, {at[1]}), as kick {flits[-1].txn}"


def _flits(data: bytes) -> Iterator[Flit]:
    for at in range(0, len(data), reg.SLOT_BYTES):
        words = [int.from_bytes(data[at + WORD * i : at + WORD * (i + 1)], "little") for i in range(FLIT_WORDS)]
        yield Flit.from_staged(words)


def completion(word: int) -> str:
    """A word of the completion mirror in words."""
    if not word:
        return "nothing counted yet"
    code, arg, count = word >> 56, word >> 24 & 0xFFFF_FFFF, word >> 8 & reg.SHORT
    name = Signal(code).name if code in Signal.__members__.values() else "unknown"
    return f"code {code} {name}, arg {arg}, count {count}, valid {word & 1}"


def _status(word: int, mesh: int) -> str:
    status = status_of(word, mesh)
    runs = "at work" if status.running else "not at work"
    return f"{runs}, {status.left} flits left, {status.credit} credits"

"""What every unit of a mesh is: a queue of instruction words, executed in order, and data that arrives from others.

A `Cluster` and a vector core are `Unit`s; a mesh knows them by this interface only. Time is not here: `execute` does
what an instruction does, and whoever puts the machine on a clock asks the instruction and the unit how long it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import ClassVar, Final, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.machine import Coord, MachineSpec
from meshwright.simulator.arithmetic import Kernels
from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.faults import not_modelled
from meshwright.simulator.memory import Bytes
from meshwright.simulator.operands import Segment
from meshwright.simulator.ordering import Event, Issue

GRANULE: Final = 32
"""Bytes of a granule, of a memory word, and of a sub-tile of fp16."""
BURST: Final = 8
"""Granules of a burst that a cluster drains: to memory, and to a unit, where each has its acknowledgement."""
LONGEST_FILL: Final = 255
"""L1 entries of a FILL: the request counts them in 8 bits."""


class Signal(IntEnum):
    """Code of a signal to the agent."""

    INST_COMPLETE = 0
    BATCH_COMPLETE = 1
    DATA_RECEIVED = 3
    FAULT = 4


class Completion(Struct, frozen=True):
    """How an instruction ended: `INST_COMPLETE` with its result, or `FAULT` with a code."""

    code: Signal = Signal.INST_COMPLETE
    arg: int = 0


DONE: Final = Completion()


class Queued(Struct, frozen=True):
    """An instruction word in a unit's queue.

    txn and last: of the flit that brought it. credited: whether its completion gives a credit back to the dispatcher.
    """

    word: int
    issue: Issue
    txn: int = 0
    last: bool = False
    credited: bool = True


class UnitData(Struct, frozen=True, eq=False):
    """A burst between units: a descriptor and `data` uint8 `[granules, 32]`, of 1 to 256 granules.

    source: mesh and place of the sender. mesh, dst: mesh and place of the receiver. port: the memory port of its own
    mesh that the sender gave it to, for a receiver in another mesh. ack: where the receiver acknowledges in its own
    mesh; (0, 0) is the sender. issue: when the sender's instruction was dispatched.
    """

    source: tuple[int, Coord]
    mesh: int
    dst: Coord
    data: NDArray[np.uint8]
    issue: Issue
    buffer: int = 0
    offset: int = 0
    signal: bool = False
    ack: Coord = (0, 0)
    port: Coord | None = None

    @property
    def origin(self) -> tuple[int, int, int]:
        """Mesh and place of the sender, flat."""
        return self.source[0], *self.source[1]


Run: TypeAlias = tuple[int, int, bool]
"""Entries that a FILL streams: address, how many, and whether they are quantised already."""
Write: TypeAlias = tuple[int, int]
"""Sub-tiles of fp16 that a DRAIN writes to its own mesh, in whole bursts: address, and how many."""


class Source(Protocol):
    """The segment that FILLs of a run leave in L1."""

    @property
    def segment(self) -> Segment:
        """Its entries."""
        ...

    def read(self, event: Event) -> Segment:
        """The segment, which an instruction reads."""
        ...


class Ahead(Struct, frozen=True):
    """What a unit did of its queue as a whole: how many instructions, and the events that anybody may ask for."""

    count: int
    events: list[Event]


class Wires(Protocol):
    """What a unit reaches outside itself. All addresses are global, as instructions carry them.

    Each method raises `Trouble` where the machine would give no trustworthy answer.
    """

    def read(self, address: int, count: int, issue: Issue, event: Event | None = None) -> Bytes:
        """`count` bytes of the unit's own mesh; reads do not cross.

        event: the completion of the reading instruction; without it nobody is told who overwrites what it reads.
        """
        ...

    def sources(self, runs: Sequence[Run], issue: Issue) -> list[Source]:
        """What FILLs of `runs` leave in L1, as far as none of them is in trouble: of the first runs, in their order."""
        ...

    def racing(self, writes: Sequence[Write], issue: Issue, unit: str) -> int | None:
        """The first write that `unit` can't do in order, as memory is now; None where it can do them all."""
        ...

    def store(self, writes: Sequence[Write], data: Sequence[Bytes], events: Sequence[Event]) -> None:
        """Do writes that aren't racing."""
        ...

    def fill(self, address: int, entries: int, prequantised: bool, issue: Issue, event: Event) -> Segment:
        """L1 entries out of the unit's own mesh, quantised on the way in unless they are already."""
        ...

    def write(self, address: int, data: Bytes, issue: Issue, event: Event) -> None:
        """Write bytes; `event` is the completion of the writing instruction."""
        ...

    def spoil(self, address: int, count: int, issue: Issue, event: Event) -> None:
        """Bytes that a write carries along, and of which nobody knows what they are."""
        ...

    def number(self) -> int:
        """A number for a new segment, of which the card has no other."""
        ...

    def send(self, burst: UnitData) -> None:
        """Hand a burst to the mesh."""
        ...


class Setting(Struct, frozen=True):
    """Where a unit stands and what it is connected to."""

    machine: MachineSpec
    assumptions: Assumptions
    mesh: int
    at: Coord
    wires: Wires
    kernels: Kernels


UnitFactory: TypeAlias = Callable[[Setting], "Unit"]


class Unit(ABC):
    """A unit at one place of a mesh. `label` names it: `MG (1, 2) of mesh 0`.

    `waiting` says what it waits for, for ever as far as the unit can tell; None while it can go on. `stopped`: it met a
    fault that the machine has no answer to, and does nothing any more. `retired` counts instructions.
    """

    kind: ClassVar[str]
    """Unit type of the machine description."""
    type_code: ClassVar[int]
    """What the unit publishes as its type."""
    buffers: ClassVar[int]
    """What it publishes as its number of buffers."""
    acknowledges_rejected: ClassVar[bool]
    """Whether a burst that it rejects is acknowledged all the same."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.label = f"{self.kind} ({setting.at[0]}, {setting.at[1]}) of mesh {setting.mesh}"
        self.queue: deque[Queued] = deque()
        self.waiting: str | None = None
        self.stopped = False
        self.started = 0
        self.retired = 0

    @abstractmethod
    def execute(self, queued: Queued, event: Event) -> Completion | None:
        """Execute one instruction whole.

        event: what its completion will be known as; whatever it writes or changes is registered under it. None where it
        never completes: `waiting` then says what for. Raises `Trouble`.
        """

    def execute_ahead(self) -> Ahead | None:
        """Execute some of the first instructions in the queue as a whole, where that is the same as one by one.

        None of them meets a trouble, waits, or signals anything but its completion. They stay in the queue: whoever
        calls retires them. None where there are none, or where it is not worth while.
        """
        return None

    @abstractmethod
    def receive(self, burst: UnitData, event: Event) -> None:
        """Take a burst in whole.

        event: what its acknowledgement will be known as. Raises `Rejected` for a burst that the unit counts out and
        drops, and `Trouble` for one whose effect nobody can tell.
        """

    @abstractmethod
    def shown(self, word: int) -> str:
        """The disassembly of an instruction word."""

    def take_fault(self) -> int | None:
        """Code of a fault that the unit has to signal at its next instruction boundary, once; None where none is."""
        return None


class Unmodelled(Unit):
    """A unit that stands on the machine and that the simulator can't execute: whatever reaches it is reported."""

    kind = "?"
    type_code = 0
    buffers = 0
    acknowledges_rejected = False

    def execute(self, queued: Queued, event: Event) -> Completion | None:
        """Raises `Trouble`."""
        raise not_modelled("no unit of this type is simulated; hand its class to Card(units=...)")

    def receive(self, burst: UnitData, event: Event) -> None:
        """Raises `Trouble`."""
        raise not_modelled("no unit of this type is simulated; hand its class to Card(units=...)")

    def shown(self, word: int) -> str:
        """The word itself."""
        return f"{word:#066x}"

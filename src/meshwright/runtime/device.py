"""`Device`: one mesh behind one interface, and `Tensor`, a value in its DRAM.

A device evaluates graphs, or it is one mesh of a card that runs programs: then the card has a `Backend`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct, structs

from meshwright import targets
from meshwright.errors import DeviceError
from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.storage import storage_dtype
from meshwright.evaluate.walk import Progress
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.machine import MachineSpec
from meshwright.runtime.arena import Arena, Span
from meshwright.runtime.dispatch_failures import Wedged


class Tensor(Struct, frozen=True, eq=False):
    """A value in one device's DRAM: a handle. The elements are fetched with `numpy()`."""

    device: Device
    span: Span
    shape: tuple[int, ...]
    format: ElementType

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.ceil(math.prod(self.shape) * self.format.bits / 8)

    def numpy(self) -> Array:
        """The elements, fetched from the device (and counted)."""
        return self.device.fetch(self)

    def __str__(self) -> str:
        return f"{self.format}[{', '.join(map(str, self.shape))}] on mesh {self.device.mesh}"


class Counted(Struct, frozen=True, kw_only=True):
    """What a mesh of a card that runs programs has done; nothing where graphs are evaluated.

    programs, words: sent to units, and instruction words in them. relayouts, relaid: how often a value that lay on the
    card was brought into another byte order, and the bytes written for it. carried: bytes of what the host copied in
    place of a memory agent.
    """

    programs: int = 0
    words: int = 0
    relayouts: int = 0
    relaid: int = 0
    carried: int = 0


def fetch_all(tensors: Sequence[Tensor]) -> list[Array]:
    """The elements of values, in order, fetched together where a card is behind a transport; raises as `numpy` does."""
    backends = {id(t.device.card.backend): t.device.card.backend for t in tensors}
    for backend in backends.values():
        if backend is not None:
            backend.bring([t for t in tensors if t.device.card.backend is backend])
    return [t.numpy() for t in tensors]


class Stats(Counted, frozen=True, kw_only=True):
    """What a device has done: bytes from and to the host, graphs run, bytes of DRAM in use."""

    sent: int
    fetched: int
    runs: int
    used: int


class Memory(Protocol):
    """Where the values of one device are, by the span that each was given."""

    def keep(self, tensor: Tensor, elements: Array) -> None:
        """Takes over the elements of a value from the host; nobody writes to the array any more."""
        ...

    def elements(self, tensor: Tensor) -> Array:
        """The elements, to be read only."""
        ...

    def drop(self, tensor: Tensor) -> None:
        """Lets go of a value."""
        ...

    def clear(self) -> None:
        """Lets go of all values."""
        ...

    def counted(self) -> Counted:
        """What has been done beside keeping values."""
        ...


class Backend(Protocol):
    """What runs graphs on the meshes of a card, where they are not evaluated."""

    @property
    def wedged(self) -> tuple[Wedged, ...]:
        """Units that stopped answering, and are used no more."""
        ...

    def arithmetic(self) -> Arithmetic:
        """What its results are in."""
        ...

    def memory(self, device: Device) -> Memory:
        """The memory of a device that is being opened."""
        ...

    def bring(self, tensors: Sequence[Tensor]) -> None:
        """Reads values that are about to be asked for, for the price of one call of a transport."""
        ...

    def run(
        self,
        graph: Graph,
        devices: Mapping[int, Device],
        inputs: Mapping[str, Sequence[Tensor]],
        keep: Sequence[str],
        progress: Progress | None,
    ) -> dict[str, tuple[Tensor, ...]]:
        """As `run_graph`, whose checks have been made."""
        ...

    def close(self) -> None:
        """Gives up what it holds."""
        ...


class Arrays:
    """The memory of a device that evaluates graphs."""

    def __init__(self) -> None:
        self._held: dict[int, Array] = {}

    def keep(self, tensor: Tensor, elements: Array) -> None:
        """Takes over the elements of a value."""
        self._held[tensor.span.start] = elements

    def elements(self, tensor: Tensor) -> Array:
        """The elements, to be read only."""
        return self._held[tensor.span.start]

    def drop(self, tensor: Tensor) -> None:
        """Lets go of a value."""
        del self._held[tensor.span.start]

    def clear(self) -> None:
        """Lets go of all values."""
        self._held.clear()

    def counted(self) -> Counted:
        """Nothing is sent, relaid or carried."""
        return Counted()


class Card:
    """The machine as opened by one program: which windows of each mesh's DRAM are claimed by which device.

    backend: what runs graphs there; None: they are evaluated. `cards.simulated` and `cards.connected` make cards that
    run programs.
    """

    def __init__(self, machine: MachineSpec, backend: Backend | None = None) -> None:
        self.machine = machine
        self.backend = backend
        self._claims: dict[int, list[tuple[int, int]]] = {}

    def claim(self, mesh: int, window: tuple[int, int] | None = None) -> tuple[int, int]:
        """Claims a window of a mesh's DRAM (all that a program may use, by default).

        Raises `DeviceError` where it overlaps one that is claimed already, or leaves the DRAM.
        """
        usable = self.machine.dram.usable_bytes
        first, after = (0, usable) if window is None else window
        self.machine.mesh(mesh)
        if not 0 <= first < after <= usable:
            raise DeviceError(
                f"window {first:#x} to {after:#x} is not inside the {usable:,} usable bytes of mesh {mesh}"
            )
        for start, stop in self._claims.get(mesh, ()):
            if first < stop and start < after:
                raise DeviceError(
                    f"mesh {mesh}: bytes {first:#x} to {after:#x} were asked for, and another device has "
                    f"{start:#x} to {stop:#x}: two devices on the same bytes. Give each a window of its own"
                )
        self._claims.setdefault(mesh, []).append((first, after))
        return first, after

    def release(self, mesh: int, window: tuple[int, int]) -> None:
        """Gives a claimed window back; `DeviceError` for one that isn't claimed."""
        if window not in self._claims.get(mesh, ()):
            raise DeviceError(f"mesh {mesh}: no device has the bytes {window[0]:#x} to {window[1]:#x} to give back")
        self._claims[mesh].remove(window)

    @property
    def wedged(self) -> tuple[Wedged, ...]:
        """Units that stopped answering; none where graphs are evaluated."""
        return () if self.backend is None else self.backend.wedged

    @property
    def working(self) -> MachineSpec:
        """The machine without the units that stopped answering: what is planned on it goes to the others."""
        machine = self.machine
        for one in self.wedged:
            if one.at is not None and one.at in machine.coords(one.mesh, one.kind):
                machine = machine.without_unit(one.mesh, one.at)
        return machine

    def close(self) -> None:
        """Gives up what runs programs; devices that are open can't run any more."""
        if self.backend is not None:
            self.backend.close()


class Device:
    """One mesh. It runs graphs, in the card's way, and holds values in its DRAM.

    arithmetic: of a card whose graphs are evaluated; the machine's own by default. Raises `DeviceError` for one that a
    card which runs programs doesn't compute in.
    """

    def __init__(
        self,
        card: Card,
        mesh: int,
        arithmetic: Arithmetic | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.card = card
        self.mesh = mesh
        self.arithmetic = _arithmetic(card, arithmetic)
        claimed = card.claim(mesh, window)
        self.arena = Arena(claimed, card.machine.dram.burst_bytes, f"DRAM of mesh {mesh} of {card.machine.name}")
        self.memory = Arrays() if card.backend is None else card.backend.memory(self)
        self._sent = 0
        self._fetched = 0
        self._closed = False
        self.runs = 0

    def put(self, values: Array, format: ElementType) -> Tensor:
        """A copy of elements (the numpy type of `format`) into DRAM; counted as sent by the host.

        Raises `EvaluationError` for another numpy type, and `DeviceError` where there is no room.
        """
        tensor = self.hold(self.arithmetic.ingest(np.asarray(values), format), format)
        self._sent += tensor.nbytes
        return tensor

    def hold(self, elements: Array, format: ElementType) -> Tensor:
        """A copy of elements that are in the device's arithmetic already; nothing is sent."""
        return self.adopt(elements.copy(order="C"), format)

    def adopt(self, elements: Array, format: ElementType) -> Tensor:
        """Takes over an array that nobody else holds, without a copy; it can't be written to from now on."""
        span = self.arena.allocate(math.ceil(math.prod(elements.shape) * format.bits / 8))
        elements.flags.writeable = False
        tensor = Tensor(self, span, tuple(elements.shape), format)
        self.memory.keep(tensor, elements)
        return tensor

    def held(self, tensor: Tensor) -> Array:
        """The elements where they are, to be read only.

        Raises `DeviceError` for a value of another device, a freed or a stale one.
        """
        self.check(tensor)
        return self.memory.elements(tensor)

    def check(self, tensor: Tensor) -> None:
        """Raises `DeviceError` for a value of another device, a freed or a stale one."""
        if tensor.device is not self:
            raise DeviceError(f"{tensor} is asked for on mesh {self.mesh}'s device; it is another device's value")
        self.arena.check(tensor.span)

    def fetch(self, tensor: Tensor) -> Array:
        """The elements as a fresh array; counted as fetched by the host."""
        values = self.held(tensor)
        self._fetched += tensor.nbytes
        return values.copy()

    def free(self, tensor: Tensor) -> None:
        """Gives the value's bytes back."""
        self.check(tensor)
        self.memory.drop(tensor)
        self.arena.release(tensor.span)

    def reset(self) -> None:
        """Forgets every value."""
        self.memory.clear()
        self.arena.reset()

    def stats(self) -> Stats:
        """Counters since the device was opened."""
        return Stats(
            sent=self._sent,
            fetched=self._fetched,
            runs=self.runs,
            used=self.arena.used_bytes,
            **structs.asdict(self.memory.counted()),
        )

    def close(self) -> None:
        """Forgets every value and gives the window back, once."""
        self.reset()
        if not self._closed:
            self.card.release(self.mesh, self.arena.window)
        self._closed = True

    @staticmethod
    def dtype(format: ElementType) -> np.dtype[np.generic]:
        """The numpy type that elements of `format` come and go in."""
        return storage_dtype(format)


def _arithmetic(card: Card, asked: Arithmetic | None) -> Arithmetic:
    if card.backend is None:
        return asked or targets.arithmetic(card.machine)
    own = card.backend.arithmetic()
    if asked is not None and asked.name != own.name:
        raise DeviceError(
            f"a device of {card.machine.name} was asked to compute in {asked.name}; this card runs programs, in "
            f'{own.name}. Open one that evaluates graphs: backend="evaluator"'
        )
    return own

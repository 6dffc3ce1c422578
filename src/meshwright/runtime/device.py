"""`Device`: one mesh behind one interface, and `Tensor`, a value in its DRAM."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from meshwright import targets
from meshwright.errors import DeviceError
from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.storage import storage_dtype
from meshwright.ir.formats import ElementType
from meshwright.machine import MachineSpec
from meshwright.runtime.arena import Arena, Span


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


class Stats(Struct, frozen=True):
    """What a device has done: bytes from and to the host, graphs run, bytes of DRAM in use."""

    sent: int
    fetched: int
    runs: int
    used: int


class Card:
    """The machine as opened by one program: which windows of each mesh's DRAM are claimed by which device."""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
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


class Device:
    """One mesh. It evaluates graphs in its arithmetic and holds values in its DRAM."""

    def __init__(
        self,
        card: Card,
        mesh: int,
        arithmetic: Arithmetic | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.card = card
        self.mesh = mesh
        self.arithmetic = arithmetic or targets.arithmetic(card.machine)
        claimed = card.claim(mesh, window)
        self.arena = Arena(claimed, card.machine.dram.burst_bytes, f"DRAM of mesh {mesh} of {card.machine.name}")
        self._contents: dict[int, Array] = {}
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
        self._contents[span.start] = elements
        return Tensor(self, span, tuple(elements.shape), format)

    def held(self, tensor: Tensor) -> Array:
        """The elements where they are, to be read only.

        Raises `DeviceError` for a value of another device, a freed or a stale one.
        """
        if tensor.device is not self:
            raise DeviceError(f"{tensor} is asked for on mesh {self.mesh}'s device; it is another device's value")
        self.arena.check(tensor.span)
        return self._contents[tensor.span.start]

    def fetch(self, tensor: Tensor) -> Array:
        """The elements as a fresh array; counted as fetched by the host."""
        values = self.held(tensor)
        self._fetched += tensor.nbytes
        return values.copy()

    def free(self, tensor: Tensor) -> None:
        """Gives the value's bytes back."""
        self.held(tensor)
        self.arena.release(tensor.span)
        del self._contents[tensor.span.start]

    def reset(self) -> None:
        """Forgets every value."""
        self.arena.reset()
        self._contents.clear()

    def stats(self) -> Stats:
        """Counters since the device was opened."""
        return Stats(self._sent, self._fetched, self.runs, self.arena.used_bytes)

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

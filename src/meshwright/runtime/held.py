"""Values on a card that runs programs: each lies in DRAM in as many byte orders as units have asked for.

A value from the host is written when a program first needs it, in the order that the program reads; until then, and
after it has been read back, the host has its elements. So nothing is sent twice, and nothing that no unit reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import DeviceError
from meshwright.evaluate.arithmetic import Array
from meshwright.machine import MachineSpec
from meshwright.runtime.arena import Span
from meshwright.runtime.device import Counted, Device, Tensor
from meshwright.runtime.jobs import Span as HostSpan
from meshwright.runtime.transport import WORD, Transport
from meshwright.targets.ktpu.orders import Bytes, Order


class Held:
    """One piece: its elements where the host has them, and its images in DRAM by byte order."""

    def __init__(self, elements: Array | None = None) -> None:
        self.elements = elements
        self.images: dict[Order, Span] = {}


class Reading(Struct, frozen=True, eq=False):
    """A piece that is about to be read from its image in `order`; spans: host addresses, none where it needn't be."""

    held: Held
    order: Order | None
    spans: tuple[HostSpan, ...]

    def take(self, found: Sequence[bytes]) -> None:
        """Keeps what the spans hold."""
        if self.order is not None:
            self.held.elements = unpacked(self.order, found)


class CardMemory:
    """The memory of one device of a card that runs programs."""

    def __init__(self, device: Device, machine: MachineSpec, transport: Transport) -> None:
        self.device = device
        self._machine = machine
        self._transport = transport
        self._held: dict[int, Held] = {}
        self._counted = Counted()

    # As `Device` asks.

    def keep(self, tensor: Tensor, elements: Array) -> None:
        """Takes over the elements of a value from the host; nothing is sent yet."""
        self._held[tensor.span.start] = Held(elements)

    def adopt(self, tensor: Tensor, held: Held) -> None:
        """Takes over a value that units have made."""
        self._held[tensor.span.start] = held

    def of(self, tensor: Tensor) -> Held:
        """What is known of a value; raises as `Device.check` does."""
        self.device.check(tensor)
        return self._held[tensor.span.start]

    def elements(self, tensor: Tensor) -> Array:
        """The elements, read from the card where the host hasn't got them."""
        reading = self.reading(tensor)
        reading.take(self._transport.collect(reading.spans))
        elements = self.of(tensor).elements
        assert elements is not None
        return elements

    def reading(self, tensor: Tensor) -> Reading:
        """What has to be read so that the host has a value; raises as `Device.check` does."""
        return self.reading_of(self.of(tensor))

    def reading_of(self, held: Held) -> Reading:
        """What has to be read so that the host has a piece: nothing where it has it, else the first of its images."""
        if held.elements is not None:
            return Reading(held, None, ())
        order, span = next(iter(held.images.items()))
        return Reading(held, order, self.host_spans(span, order))

    def drop(self, tensor: Tensor) -> None:
        """Lets go of a value and of every image of it but the one in its own span."""
        held = self._held.pop(tensor.span.start)
        for span in held.images.values():
            if span != tensor.span:
                self.device.arena.release(span)

    def clear(self) -> None:
        """Lets go of all values."""
        self._held.clear()

    def counted(self) -> Counted:
        """Programs, relayouts and what the host carried."""
        return self._counted

    # As a run asks.

    def count(self, *, programs: int = 0, words: int = 0, relaid: int | None = None, carried: int = 0) -> None:
        """Adds to what is counted; relaid: bytes of one relayout."""
        so_far = self._counted
        self._counted = Counted(
            programs=so_far.programs + programs,
            words=so_far.words + words,
            relayouts=so_far.relayouts + (relaid is not None),
            relaid=so_far.relaid + (relaid or 0),
            carried=so_far.carried + carried,
        )

    def room(self, order: Order, tensor: Tensor | None = None) -> Span:
        """Where an image may go: into the value's own span if nothing is there and it fits, else a new span.

        Raises `DeviceError` where there is no room.
        """
        if tensor is not None:
            held = self.of(tensor)
            if tensor.span not in held.images.values() and order.nbytes <= tensor.span.size:
                return tensor.span
        return self.device.arena.allocate(order.nbytes)

    def address(self, span: Span) -> int:
        """Global byte address of a span, as instructions have it."""
        return self._machine.global_addr(self.device.mesh, span.start)

    def host_spans(self, span: Span, order: Order) -> tuple[HostSpan, ...]:
        """The host's addresses of what says something in an image."""
        base = self._machine.host_addr(self.device.mesh, span.start)
        return tuple((base + first, -(-count // WORD) * WORD) for first, count in order.spans())

    def writes(self, span: Span, image: Bytes) -> Sequence[tuple[int, Bytes]]:
        """The one write of an image."""
        return ((self._machine.host_addr(self.device.mesh, span.start), image),)


def unpacked(order: Order, found: Sequence[bytes]) -> Array:
    """The elements of an image of which the spans that say something have been read; not to be written to."""
    image = bytearray(order.nbytes)
    for (first, count), data in zip(order.spans(), found, strict=True):
        image[first : first + count] = data[:count]
    elements = order.unpack(bytes(image))
    elements.flags.writeable = False
    return elements


def memory_of(device: Device) -> CardMemory:
    """The memory of a device of a card that runs programs; `DeviceError` for another device."""
    if not isinstance(device.memory, CardMemory):
        raise DeviceError(f"the device of mesh {device.mesh} evaluates graphs; it is on no card that runs programs")
    return device.memory

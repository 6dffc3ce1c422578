"""`Transport`: a card as its host sees it, 64-bit words and blocks at addresses, whatever lies between the two."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from meshwright.errors import TransportError
from meshwright.simulator import Assumptions, Card

WORD: Final = 8
_SPACE: Final = 1 << 64
_ASSUMED: Final = Assumptions()
_CARRIED_OUT: Final = "carried_out"

Bytes: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[np.uint8]"

_E = TypeVar("_E", bound=BaseException)


class AgentWindow(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a host sees the registers of each mesh's agent.

    base: host address of the registers of mesh 0. stride: bytes from one mesh's to the next one's. The defaults are
    those of `simulator.Assumptions`.
    """

    base: Annotated[int, Meta(ge=0)] = _ASSUMED.control_base
    stride: Annotated[int, Meta(gt=0)] = _ASSUMED.control_stride

    def register(self, mesh: int, offset: int) -> int:
        """Host address of the register at `offset` bytes in a mesh's window; `TransportError` where it isn't in it."""
        if mesh < 0 or not 0 <= offset < self.stride:
            raise TransportError(
                f"register {offset:#x} of mesh {mesh}: meshes count from 0, and registers are at offsets 0 to "
                f"{self.stride - 1:#x} of each"
            )
        return self.base + mesh * self.stride + offset


class Transport(Protocol):
    """A byte-addressed window of 64-bit words, little-endian: registers and DRAM at host addresses.

    A block equals accesses to its words in ascending order; its address and size are multiples of 8. Every call has
    taken effect when it returns. All raise `TransportError` for what can't be carried, for a connection or channel that
    is lost and after `close`; a simulator behind it raises `MachineError` and `MachineFault` besides, wherever it runs.

    An empty `poll`, `submit` or `collect` does nothing and costs nothing.
    """

    @property
    def agents(self) -> AgentWindow:
        """Where the registers of the meshes' agents are."""
        ...

    def read64(self, address: int) -> int:
        """The word at an address."""
        ...

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address; value: 0 to 2^64 - 1."""
        ...

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on."""
        ...

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on."""
        ...

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses, read in the order given, for the price of one call where that is possible."""
        ...

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes (address, bytes) blocks in the order given, for the price of one call where that is possible.

        A batch with a write that can't be carried is refused as a whole. Where one fails, the later ones are not
        tried, and `carried_out` of the exception tells how many were done before it.
        """
        ...

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many (address, byte count) blocks, read in the order given, for the price of one call."""
        ...

    def close(self) -> None:
        """Gives up what it holds; a second call does nothing."""
        ...


def check_block(what: str, address: int, count: int) -> None:
    """Raises `TransportError` unless `count` bytes at `address` are whole words inside the 64-bit space."""
    if count <= 0 or address % WORD or count % WORD:
        raise TransportError(
            f"{what} of {count} bytes at {address:#x}: a transport moves 64-bit words, so the address and the size (at "
            f"least one word) are multiples of {WORD}"
        )
    if address < 0 or address + count > _SPACE:
        raise TransportError(f"{what} of {count} bytes at {address:#x}: host addresses are 0 to 2^64 - 1")


def check_value(address: int, value: int) -> None:
    """Raises `TransportError` unless `value` fits the word at `address`."""
    check_block("write", address, WORD)
    if not 0 <= value < _SPACE:
        raise TransportError(f"write of {value:#x} at {address:#x}: a word is 0 to 2^64 - 1")


def view(address: int, data: Bytes) -> memoryview:
    """The bytes of a block that is to be written at `address`; `TransportError` for one that can't be."""
    try:
        content = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
    except TypeError as problem:
        raise TransportError(f"write at {address:#x}: the data are no run of bytes ({problem})") from None
    check_block("write", address, len(content))
    return content


def views(writes: Sequence[tuple[int, Bytes]]) -> list[tuple[int, memoryview]]:
    """The writes of a `submit`, with the bytes of each; `TransportError` where one of them can't be carried."""
    try:
        return [(address, view(address, data)) for address, data in writes]
    except TransportError as problem:
        raise stopped(problem, 0, len(writes)) from None


def check_spans(spans: Sequence[tuple[int, int]]) -> None:
    """Raises `TransportError` where a span of a `collect` can't be carried."""
    for address, count in spans:
        check_block("read", address, count)


def stopped(error: _E, done: int, total: int) -> _E:
    """The exception that stopped a `submit`, which says from now on that `done` of its writes were carried out."""
    vars(error)[_CARRIED_OUT] = done
    error.__notes__ = [f"{done} of {total} writes were carried out"]
    return error


def carried_out(error: BaseException) -> int | None:
    """How many writes of a `submit` were carried out before this exception; None where that can't be known.

    The one that failed may have been carried out in part, and is not counted.
    """
    return vars(error).get(_CARRIED_OUT)


class InProcess:
    """The transport to a `simulator.Card` in this process; not to be used by two threads at once."""

    def __init__(self, card: Card) -> None:
        self._card: Card | None = card
        self._agents = _agents(card)

    @property
    def agents(self) -> AgentWindow:
        """Where the card has the registers of its agents."""
        return self._agents

    def _open(self) -> Card:
        if self._card is None:
            raise TransportError("this transport is closed: make another one on the card, InProcess(card)")
        return self._card

    def read64(self, address: int) -> int:
        """The word at an address."""
        check_block("read", address, WORD)
        return self._open().read64(address)

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address."""
        check_value(address, value)
        self._open().write64(address, value)

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on."""
        check_block("read", address, count)
        return self._open().read_block(address, count)

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on."""
        self._open().write_block(address, view(address, data))

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses."""
        for address in addresses:
            check_block("read", address, WORD)
        return tuple(self._open().read64(address) for address in addresses)

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes many blocks, in order."""
        for done, (address, content) in enumerate(views(writes)):
            try:
                self._open().write_block(address, content)
            except Exception as problem:
                # Of whatever kind it is: the count is added, and it is raised again.
                stopped(problem, done, len(writes))
                raise

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many blocks."""
        check_spans(spans)
        return tuple(self._open().read_block(address, count) for address, count in spans)

    def close(self) -> None:
        """Lets go of the card, which stays as it is."""
        self._card = None


def _agents(card: Card) -> AgentWindow:
    """The window of a card, from two of its agents; of one alone no stride is seen, nor does it matter."""
    first, *others = card.machine.mesh_ids
    stride = (card.control(others[0]) - card.control(first)) // (others[0] - first) if others else AgentWindow().stride
    return AgentWindow(card.control(first) - first * stride, stride)


class Delayed:
    """Another transport, with a latency charged to every call: for trials of what dispatch costs on a slow one.

    seconds_per_call: slept before each call, whether it is one word, a block or a batch of many; an empty batch is no
    call. calls: how many there have been. The word access of the card over JTAG takes about 0.013 s
    (docs/ktpu/transports.md).
    """

    def __init__(self, transport: Transport, seconds_per_call: float) -> None:
        self.transport = transport
        self.seconds_per_call = seconds_per_call
        self.calls = 0

    @property
    def agents(self) -> AgentWindow:
        """Where the registers of the meshes' agents are, by the other transport; free of charge."""
        return self.transport.agents

    def _charge(self) -> Transport:
        self.calls += 1
        time.sleep(self.seconds_per_call)
        return self.transport

    def read64(self, address: int) -> int:
        """The word at an address, late."""
        return self._charge().read64(address)

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address, late."""
        self._charge().write64(address, value)

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on, late."""
        return self._charge().read_block(address, count)

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on, late."""
        self._charge().write_block(address, data)

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses, late once for all of them."""
        return self._charge().poll(addresses) if addresses else ()

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes many blocks, late once for all of them."""
        if writes:
            self._charge().submit(writes)

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many blocks, late once for all of them."""
        return self._charge().collect(spans) if spans else ()

    def close(self) -> None:
        """Closes the other transport; free of charge."""
        self.transport.close()

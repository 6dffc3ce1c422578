"""`Transport`: a card as its host sees it, 64-bit words and blocks at addresses, whatever lies between the two."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from meshwright.errors import TransportError
from meshwright.simulator import Card

WORD: Final = 8
_SPACE: Final = 1 << 64

Bytes: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[np.uint8]"


class Transport(Protocol):
    """A byte-addressed window of 64-bit words, little-endian: registers and DRAM at host addresses.

    A block equals accesses to its words in ascending order; its address and size are multiples of 8. Every call has
    taken effect when it returns. All raise `TransportError` for what can't be carried, for a connection or channel that
    is lost and after `close`; a simulator behind it raises `MachineError` and `MachineFault` besides, wherever it runs.
    """

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


class InProcess:
    """The transport to a `simulator.Card` in this process; not to be used by two threads at once."""

    def __init__(self, card: Card) -> None:
        self._card: Card | None = card

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
        return tuple(self.read64(address) for address in addresses)

    def close(self) -> None:
        """Lets go of the card, which stays as it is."""
        self._card = None


class Delayed:
    """Another transport, with a latency charged to every call: for trials of what dispatch costs on a slow one.

    seconds_per_call: slept before each call, whether it is one word, a block or a poll of many words. calls: how many
    there have been. The word access of the card over JTAG takes about 0.013 s (docs/ktpu/transports.md).
    """

    def __init__(self, transport: Transport, seconds_per_call: float) -> None:
        self.transport = transport
        self.seconds_per_call = seconds_per_call
        self.calls = 0

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
        return self._charge().poll(addresses)

    def close(self) -> None:
        """Closes the other transport; free of charge."""
        self.transport.close()

"""`CharacterDevices`: a card over PCIe, by the files of a DMA driver.

Tested against plain files; not yet run on a card (docs/ktpu/transports.md).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from meshwright.errors import TransportError
from meshwright.runtime.transport import Bytes, Transport, check_block, check_value, view

FLOOR: Final = 64
"""Bytes; a transfer of less than a beat returns nothing, or takes the host down."""
CEILING: Final = 8 << 20
"""Bytes; 16 MiB in one transfer failed on the card."""

_OFFSETS: Final = 1 << 63

_Transfer: TypeAlias = Callable[[int, list[memoryview], int], int]


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Start and size of the transfers of a block of `count` bytes: 8 MiB at most, and none under 64 bytes."""
    start = 0
    while count - start > CEILING:
        # What is left over must not become a transfer that is too small.
        size = CEILING if count - start - CEILING >= FLOOR else CEILING - FLOOR
        yield start, size
        start += size
    yield start, count - start


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as problem:
        raise TransportError(f"{path} can't be opened: {problem.strerror}") from None


class CharacterDevices:
    """Blocks through one file to the card and one from it, words and small blocks through another transport.

    h2c, c2h: the driver's files, such as `/dev/xdma0_h2c_0` and `/dev/xdma0_c2h_0`; the offset in them is the host
    address. control: what carries words, polls and blocks of less than 64 bytes; it is closed along with this one.
    Blocks are cut into transfers of 64 bytes to 8 MiB, through one page-aligned buffer. A transfer that fails or falls
    short leaves the channel in an unknown state, so blocks are refused from then on. A transfer can't be timed out:
    the driver decides how long it waits. Not to be used by two threads at once.

    Raises `TransportError` where a file can't be opened.
    """

    def __init__(self, h2c: str | Path, c2h: str | Path, control: Transport) -> None:
        self._paths = (str(h2c), str(c2h))
        self._control = control
        self._failed: str | None = None
        self._files: tuple[int, int] | None = None
        to_card = _opened(self._paths[0], os.O_WRONLY)
        try:
            self._files = (to_card, _opened(self._paths[1], os.O_RDONLY))
        except TransportError:
            os.close(to_card)
            raise
        self._buffer = mmap.mmap(-1, CEILING)

    def _open(self) -> tuple[int, int]:
        if self._files is None:
            raise TransportError(f"the transport over {self._paths[0]} is closed: open another one")
        return self._files

    def _channels(self, address: int, count: int) -> tuple[int, int]:
        files = self._open()
        if address + count > _OFFSETS:
            raise TransportError(f"a block of {count:,} bytes at {address:#x}: offsets in a file end at 2^63")
        if self._failed is not None:
            raise TransportError(
                f"{self._failed}; no block is moved from then on, for a channel that met an error is stuck until the "
                "device is reset. Reset it, then open the transport again"
            )
        return files

    def read64(self, address: int) -> int:
        """The word at an address, through the control transport."""
        self._open()
        return self._control.read64(address)

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address, through the control transport."""
        self._open()
        check_value(address, value)
        self._control.write64(address, value)

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on. DRAM that was never written must not be read: it stalls the channel."""
        check_block("read", address, count)
        _, c2h = self._channels(address, count)
        if count < FLOOR:
            return self._control.read_block(address, count)
        result = bytearray(count)
        for start, size in pieces(count):
            with memoryview(self._buffer) as buffer, buffer[:size] as part:
                self._moved(os.preadv, c2h, part, address + start, self._paths[1])
                result[start : start + size] = part
        return bytes(result)

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on."""
        content = view(address, data)
        h2c, _ = self._channels(address, len(content))
        if len(content) < FLOOR:
            self._control.write_block(address, content)
            return
        for start, size in pieces(len(content)):
            with memoryview(self._buffer) as buffer, buffer[:size] as part:
                part[:] = content[start : start + size]
                self._moved(os.pwritev, h2c, part, address + start, self._paths[0])

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses, through the control transport."""
        self._open()
        return self._control.poll(addresses)

    def close(self) -> None:
        """Closes the files and the control transport."""
        files, self._files = self._files, None
        if files is None:
            return
        for file in files:
            os.close(file)
        self._buffer.close()
        self._control.close()

    def _moved(self, transfer: _Transfer, file: int, part: memoryview, address: int, path: str) -> None:
        try:
            moved = transfer(file, [part], address)
            problem = None if moved == len(part) else f"{moved:,} bytes were moved"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem is not None:
            self._failed = f"{path}: a transfer of {len(part):,} bytes at {address:#x} failed: {problem}"
            raise TransportError(f"{self._failed}. Reset the device, then open the transport again")

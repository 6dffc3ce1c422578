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
from meshwright.runtime.transport import (
    WORD,
    AgentWindow,
    Bytes,
    Transport,
    carried_out,
    check_block,
    check_spans,
    check_value,
    stopped,
    view,
    views,
)

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


def runs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of what goes together of a batch: neighbours of less than 64 bytes, and each larger block alone."""
    start = 0
    for at, size in enumerate(sizes):
        if size >= FLOOR:
            if start < at:
                yield start, at
            yield at, at + 1
            start = at + 1
    if start < len(sizes):
        yield start, len(sizes)


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as problem:
        raise TransportError(f"{path} can't be opened: {problem.strerror}") from None


class CharacterDevices:
    """Blocks through one file to the card and one from it, words and small blocks through another transport.

    h2c, c2h: the driver's files, such as `/dev/xdma0_h2c_0` and `/dev/xdma0_c2h_0`; the offset in them is the host
    address. control: what carries words, polls and blocks of less than 64 bytes; it is closed along with this one.
    agents: where the registers of the meshes' agents are; None takes what the control transport says.
    Blocks are cut into transfers of 64 bytes to 8 MiB, through one page-aligned buffer. A transfer that fails or falls
    short leaves the channel in an unknown state, so blocks are refused from then on. A transfer can't be timed out:
    the driver decides how long it waits. Not to be used by two threads at once.

    Raises `TransportError` where a file can't be opened.
    """

    def __init__(
        self, h2c: str | Path, c2h: str | Path, control: Transport, *, agents: AgentWindow | None = None
    ) -> None:
        self._paths = (str(h2c), str(c2h))
        self._control = control
        self._agents = control.agents if agents is None else agents
        self._failed: str | None = None
        self._files: tuple[int, int] | None = None
        to_card = _opened(self._paths[0], os.O_WRONLY)
        try:
            self._files = (to_card, _opened(self._paths[1], os.O_RDONLY))
        except TransportError:
            os.close(to_card)
            raise
        self._buffer = mmap.mmap(-1, CEILING)

    @property
    def agents(self) -> AgentWindow:
        """Where the registers of the meshes' agents are."""
        return self._agents

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
        return self._from_card(c2h, address, count)

    def _from_card(self, c2h: int, address: int, count: int) -> bytes:
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
        self._to_card(h2c, address, content)

    def _to_card(self, h2c: int, address: int, content: memoryview) -> None:
        for start, size in pieces(len(content)):
            with memoryview(self._buffer) as buffer, buffer[:size] as part:
                part[:] = content[start : start + size]
                self._moved(os.pwritev, h2c, part, address + start, self._paths[0])

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses, through the control transport."""
        self._open()
        return self._control.poll(addresses)

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes many blocks in order; neighbours of less than 64 bytes are one `submit` of the control transport.

        One of 8 bytes is a word, and so goes through where blocks are refused.
        """
        contents = views(writes)
        if not contents:
            return
        h2c, _ = self._batch([(address, len(content)) for address, content in contents])
        for start, end in runs([len(content) for _, content in contents]):
            small = len(contents[start][1]) < FLOOR
            try:
                if small:
                    self._control.submit(contents[start:end])
                else:
                    self._to_card(h2c, *contents[start])
            except Exception as problem:
                # Of whatever kind it is: the count becomes that of the whole batch, and it is raised again.
                done = carried_out(problem) if small else 0
                if done is not None:
                    stopped(problem, start + done, len(writes))
                raise

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many blocks; neighbours of less than 64 bytes are one `collect` of the control transport.

        One of 8 bytes is a word, and so is read where blocks are refused.
        """
        check_spans(spans)
        if not spans:
            return ()
        _, c2h = self._batch(spans)
        found: list[bytes] = []
        for start, end in runs([count for _, count in spans]):
            small = spans[start][1] < FLOOR
            found += self._control.collect(spans[start:end]) if small else [self._from_card(c2h, *spans[start])]
        return tuple(found)

    def _batch(self, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The files, where all of a batch can be carried."""
        for address, count in spans:
            if count != WORD:
                self._channels(address, count)
        return self._open()

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

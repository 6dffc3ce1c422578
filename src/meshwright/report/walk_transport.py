"""A transport that writes down what passes through it, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from meshwright.runtime.transport import WORD, AgentWindow, Bytes, Transport, views


class Block(Struct, frozen=True):
    """Bytes that were at a host address, or were written there."""

    address: int
    data: bytes


class Submit(Struct, frozen=True):
    """A call that wrote."""

    blocks: tuple[Block, ...]


class Poll(Struct, frozen=True):
    """A call that read words."""

    blocks: tuple[Block, ...]


class Collect(Struct, frozen=True):
    """A call that read blocks."""

    blocks: tuple[Block, ...]


Call: TypeAlias = Submit | Poll | Collect


class Recording:
    """Another transport, whose calls are written down in `calls`: those that came back without an error.

    A single word or block is written down as the batch of one that it is; an empty batch is no call.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.calls: list[Call] = []

    @property
    def agents(self) -> AgentWindow:
        """Where the registers of the meshes' agents are, by the other transport."""
        return self.transport.agents

    def read64(self, address: int) -> int:
        """The word at an address."""
        value = self.transport.read64(address)
        self.calls.append(Poll((_word(address, value),)))
        return value

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address."""
        self.transport.write64(address, value)
        self.calls.append(Submit((_word(address, value),)))

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on."""
        data = self.transport.read_block(address, count)
        self.calls.append(Collect((Block(address, data),)))
        return data

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on."""
        self.submit([(address, data)])

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses."""
        values = self.transport.poll(addresses)
        if addresses:
            self.calls.append(Poll(tuple(map(_word, addresses, values))))
        return values

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes many blocks, in order."""
        self.transport.submit(writes)
        if writes:
            self.calls.append(Submit(tuple(Block(address, bytes(data)) for address, data in views(writes))))

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many blocks."""
        found = self.transport.collect(spans)
        if spans:
            self.calls.append(
                Collect(tuple(Block(address, data) for (address, _), data in zip(spans, found, strict=True)))
            )
        return found

    def close(self) -> None:
        """Closes the other transport."""
        self.transport.close()


def _word(address: int, value: int) -> Block:
    return Block(address, value.to_bytes(WORD, "little"))


class Traffic(Struct, frozen=True):
    """Calls of each kind, and bytes in each direction. written, read: bytes by the host."""

    submits: int
    polls: int
    collects: int
    written: int
    read: int

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Traffic:
        """What these calls amount to."""
        kinds = [type(call) for call in calls]
        sizes = [(isinstance(call, Submit), sum(len(block.data) for block in call.blocks)) for call in calls]
        return cls(
            kinds.count(Submit),
            kinds.count(Poll),
            kinds.count(Collect),
            sum(size for wrote, size in sizes if wrote),
            sum(size for wrote, size in sizes if not wrote),
        )

    @property
    def calls(self) -> int:
        """Calls of the transport."""
        return self.submits + self.polls + self.collects

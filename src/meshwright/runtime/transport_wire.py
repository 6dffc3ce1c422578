"""What goes over a socket between a host and a card: the messages, and frames that carry one each.

A frame is the size of its body and a CRC-32 of that size and the body, both 32 bits, big-endian; then the body, one
MessagePack message. A stream that breaks any rule is given up: nothing in it is trusted from then on. The CRC is
against faults, not against an adversary; only loopback addresses are used.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshwright.errors import TransportError
from meshwright.runtime.transport import AgentWindow
from meshwright.simulator import Report

VERSION: Final = 2
MOST_BODY: Final = 8 << 20
"""Bytes of the largest body that is sent or taken in."""
MOST_BLOCK: Final = 2 << 20
"""Bytes of a block, and of all blocks of a batch, in one message; larger ones are cut up.

The copies of a message that are made on its way stay in the caches: 32 MiB in one go took twice as long.
"""
MOST_WORDS: Final = 1 << 16
"""Addresses in one poll; more are cut up."""
MOST_BLOCKS: Final = 1 << 16
"""Blocks of a batch in one message; more are cut up."""
_HEADER: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_MOST_PATH: Final = 103
"""Bytes of a Unix socket's path, on the systems that allow least."""

Unsigned: TypeAlias = Annotated[int, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_BLOCK)]


class Message(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message; the name of its class goes with it."""


class Hello(Message, frozen=True):
    """A host's first message."""

    version: Unsigned


class Welcome(Message, frozen=True):
    """The answer to `Hello`; machine: the machine description, as JSON. agents: where its agents' registers are.

    Version 1 had no agents; its welcome can be read, so that the reason for refusing it can be the version.
    """

    version: Unsigned
    machine: bytes
    agents: AgentWindow | None = None


class Request(Message, frozen=True):
    """What a host asks for; ids ascend within a connection."""

    id: Unsigned


class Poll(Request, frozen=True):
    """Read words, in this order."""

    addresses: Annotated[tuple[Unsigned, ...], Meta(max_length=MOST_WORDS)]


class WriteWord(Request, frozen=True):
    """Write one word."""

    address: Unsigned
    value: Unsigned


class ReadBlock(Request, frozen=True):
    """Read a block."""

    address: Unsigned
    count: Count


class WriteBlock(Request, frozen=True):
    """Write a block."""

    address: Unsigned
    data: bytes


class Submit(Request, frozen=True):
    """Write blocks, in this order."""

    writes: Annotated[tuple[tuple[Unsigned, bytes], ...], Meta(max_length=MOST_BLOCKS)]

    def __post_init__(self) -> None:
        _check_batch(sum(len(data) for _, data in self.writes))


class Collect(Request, frozen=True):
    """Read blocks, in this order."""

    spans: Annotated[tuple[tuple[Unsigned, Count], ...], Meta(max_length=MOST_BLOCKS)]

    def __post_init__(self) -> None:
        _check_batch(sum(count for _, count in self.spans))


def _check_batch(count: int) -> None:
    if count > MOST_BLOCK:
        # Where a message is decoded, this becomes the error of one that is none of the protocol.
        raise ValueError(f"a batch of {count:,} bytes; the most is {MOST_BLOCK:,}")


class Reply(Message, frozen=True):
    """The answer to the request with this id."""

    id: Unsigned


class Words(Reply, frozen=True):
    """The words of a `Poll`."""

    values: tuple[Unsigned, ...]


class Data(Reply, frozen=True):
    """The bytes of a `ReadBlock`."""

    data: bytes


class Blocks(Reply, frozen=True):
    """The blocks of a `Collect`."""

    data: tuple[bytes, ...]


class Done(Reply, frozen=True):
    """All that was to be written has taken effect."""


class Refused(Reply, frozen=True):
    """It was not done, and why. With id 0 the connection is given up."""

    kind: Literal["machine", "transport", "defect"]
    message: str


class Fault(Reply, frozen=True):
    """The simulated machine met a fault."""

    report: Report


class Stopped(Reply, frozen=True):
    """A `Submit` stopped at a write that failed with `error`; carried_out: how many were done before it."""

    carried_out: Unsigned
    error: Refused | Fault


AnyRequest: TypeAlias = Poll | WriteWord | ReadBlock | WriteBlock | Submit | Collect
AnyReply: TypeAlias = Words | Data | Blocks | Done | Refused | Fault | Stopped

HELLO: Final = msgspec.msgpack.Decoder(Hello)
ANSWER: Final = msgspec.msgpack.Decoder(Welcome | Refused)
REQUEST: Final[msgspec.msgpack.Decoder[AnyRequest]] = msgspec.msgpack.Decoder(AnyRequest)
REPLY: Final[msgspec.msgpack.Decoder[AnyReply]] = msgspec.msgpack.Decoder(AnyReply)

_T = TypeVar("_T")


class Ended(TransportError):  # noqa: N818
    """The other side closed the connection between two frames."""


def frame(message: Message) -> bytes:
    """The frame of a message; `TransportError` for one that is too large."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MOST_BODY:
        raise TransportError(f"a message of {len(body):,} bytes is more than the {MOST_BODY:,} that a frame carries")
    return _HEADER.pack(len(body), _checksum(body)) + body


def batches(sizes: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Cuts blocks of these many bytes into pieces, and gives those of one message at a time, all in order.

    A piece is which block it is of, where in it the piece starts, and the bytes it has. Only blocks of more than 2 MiB
    are cut.
    """
    batch: list[tuple[int, int, int]] = []
    count = 0
    for block, whole in enumerate(sizes):
        for start in range(0, whole, MOST_BLOCK):
            size = min(MOST_BLOCK, whole - start)
            if batch and (count + size > MOST_BLOCK or len(batch) == MOST_BLOCKS):
                yield batch
                batch, count = [], 0
            batch.append((block, start, size))
            count += size
    if batch:
        yield batch


def _checksum(body: bytes | bytearray) -> int:
    return zlib.crc32(body, zlib.crc32(_SIZE.pack(len(body))))


def send(connection: socket.socket, message: Message, seconds: float) -> None:
    """Send a message within so many seconds, or raise `TransportError`."""
    content = frame(message)
    try:
        connection.settimeout(seconds)
        connection.sendall(content)
    except TimeoutError:
        raise TransportError(f"nobody took a message of {len(content):,} bytes within {seconds:g} s") from None
    except OSError as problem:
        raise TransportError(f"the connection is lost ({problem.strerror or problem})") from None


def receive(
    connection: socket.socket, decoder: msgspec.msgpack.Decoder[_T], seconds: float, *, wait: bool = False
) -> _T:
    """Receive a message within so many seconds; with `wait`, of its first byte, which may take any time.

    Raises `Ended` where the stream ends before it, `TransportError` for everything else that is not a good frame.
    """
    header = bytearray(_HEADER.size)
    if wait:
        _fill(connection, memoryview(header)[:1], None, seconds, start=True)
    deadline = time.monotonic() + seconds
    _fill(connection, memoryview(header)[int(wait) :], deadline, seconds, start=not wait)
    size, checksum = _HEADER.unpack(header)
    if size > MOST_BODY:
        raise TransportError(f"a frame of {size:,} bytes was announced; the most is {MOST_BODY:,}")
    body = bytearray(size)
    _fill(connection, memoryview(body), deadline, seconds)
    if _checksum(body) != checksum:
        raise TransportError(f"a frame of {size:,} bytes arrived corrupted (its checksum differs)")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as problem:
        raise TransportError(f"a message of {size:,} bytes is none of this protocol ({problem})") from None


def _fill(
    connection: socket.socket, into: memoryview, deadline: float | None, seconds: float, *, start: bool = False
) -> None:
    done = 0
    while done < len(into):
        left = None if deadline is None else deadline - time.monotonic()
        try:
            if left is not None and left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            count = connection.recv_into(into[done:])
        except TimeoutError:
            raise TransportError(f"no whole answer within {seconds:g} s") from None
        except OSError as problem:
            raise TransportError(f"the connection is lost ({problem.strerror or problem})") from None
        if not count:
            if start and not done:
                raise Ended("the other side closed the connection")
            raise TransportError("the connection ended in the middle of a message")
        done += count


# Addresses


class UnixAddress(Struct, frozen=True):
    """A Unix socket, by its path."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


class TcpAddress(Struct, frozen=True):
    """A TCP port of a loopback address; port 0, to listen at, takes any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


Address: TypeAlias = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """The address `unix:PATH` or `tcp:127.0.0.1:PORT`; `TransportError` for others and for what isn't loopback."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        if len(str(Path(rest)).encode()) > _MOST_PATH:
            raise TransportError(f"{text}: the path of a Unix socket has {_MOST_PATH} bytes at most; use a shorter one")
        return UnixAddress(rest)
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise TransportError(f"{text!r} is no address: write unix:PATH, or tcp:127.0.0.1:PORT with a port up to 65535")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise TransportError(
            f"{text}: {host} is no loopback address. Whoever reaches the port has the whole card, so only 127.0.0.1 "
            "(or ::1) is used; reach another computer through a tunnel that asks who you are"
        )
    return TcpAddress(host, int(port))


def endpoint(address: Address) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """What the socket module calls an address."""
    if isinstance(address, UnixAddress):
        return socket.AF_UNIX, address.path
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return family, (address.host, address.port)

"""Jobs: what is sent to units and moved by the host, and what has to be complete before. Data only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from meshwright.ir.records import Site
from meshwright.runtime.transport import Bytes
from meshwright.targets.ktpu.emit_matrix import Arrival
from meshwright.targets.ktpu.isa.program import Program

Span: TypeAlias = tuple[int, int]
"""Host address and number of bytes, both multiples of 8."""


class UnitJob(Struct, frozen=True):
    """A program for the unit at `site`; complete when each of its words is, and all `arrivals` are.

    what: for messages, such as `matmul s3`. after: positions of the jobs that have to have been seen complete before
    it is sent. arrivals: signals that other units give because of it, besides the completions of their own words.
    """

    site: Site
    program: Program
    what: str
    after: tuple[int, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


class HostJob(Struct, frozen=True, eq=False):
    """Bytes that the host moves: it reads, and writes what it makes of them.

    reads: what is read first. make: from the bytes of each to (host address, bytes) of what is written then.
    """

    what: str
    reads: tuple[Span, ...]
    make: Callable[[Sequence[bytes]], Sequence[tuple[int, Bytes]]]
    after: tuple[int, ...] = ()


Job: TypeAlias = UnitJob | HostJob

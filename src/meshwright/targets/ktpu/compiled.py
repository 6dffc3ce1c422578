"""What a stage graph is compiled to: programs of units and what the host does between them. Data only.

Works are in an order in which they can run; each says by position what it waits for. Addresses are not chosen yet:
programs refer to images by number.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from meshwright.ir.graph import Graph
from meshwright.ir.ids import TensorId
from meshwright.ir.records import Site
from meshwright.targets.ktpu.emit_matrix import Arrival
from meshwright.targets.ktpu.orders import Order
from meshwright.targets.ktpu.relocate import Relocatable

Piece: TypeAlias = tuple[TensorId, int]
"""Tensor and rank, in the tables of the compiled graph."""


class Image(Struct, frozen=True):
    """A piece in a byte order."""

    piece: Piece
    order: Order


class UnitWork(Struct, frozen=True):
    """One program of one unit. what: for messages. arrivals: signals that other units give because of it."""

    site: Site
    code: Relocatable
    what: str
    after: tuple[int, ...]
    arrivals: tuple[Arrival, ...] = ()


class Fetch(Struct, frozen=True):
    """The host reads a piece that units stored, or that was given and lies on the card."""

    piece: Piece
    after: tuple[int, ...] = ()


class Place(Struct, frozen=True):
    """The host writes a piece that it has as `image`, for units to read."""

    image: int
    after: tuple[int, ...]


class Carry(Struct, frozen=True):
    """The host does what the memory agent would: loads, permutes and stores of `graph`, without arithmetic.

    takes, gives: by tensor name in `graph`, the pieces read and the whole pieces that come out.
    """

    graph: Graph
    takes: tuple[tuple[str, Piece], ...]
    gives: tuple[tuple[str, Piece], ...]
    after: tuple[int, ...]


Work: TypeAlias = UnitWork | Fetch | Place | Carry


class Compiled(Struct, frozen=True):
    """Works, and the images that programs refer to.

    graph: the one that was given, with what had to go through memory cut. stored: for each piece that units store
    the number of its image; others that are stored are the host's.
    """

    graph: Graph
    images: tuple[Image, ...]
    works: tuple[Work, ...]
    stored: tuple[tuple[Piece, int], ...]

    @property
    def programs(self) -> tuple[UnitWork, ...]:
        """The works of units."""
        return tuple(work for work in self.works if isinstance(work, UnitWork))

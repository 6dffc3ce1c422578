"""The records of a stage graph's tables: tensors, buffers, groups, stages and precedences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from meshwright.errors import GraphError
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId, TensorId
from meshwright.ir.operation import ComputeOp, Generic, Matmul
from meshwright.ir.pattern import AccessPattern, Gather
from meshwright.ir.pool import Pool
from meshwright.ir.scalar import ScalarBody
from meshwright.ir.spec import COPIED, Spec


class _Data(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings that all of a graph's records share."""


_COPIED_ALONE = (COPIED,)


class Tensor(_Data, frozen=True):
    """A value in DRAM.

    shape: of the whole value. chips: whose DRAM holds it, one a rank. specs: how the pieces relate, one for each axis
    of the rank grid. grid: the extents of the rank grid (row-major over `chips`); empty for a single axis.
    """

    name: str
    shape: tuple[int, ...]
    format: ElementType
    chips: tuple[ChipId, ...]
    specs: tuple[Spec, ...] = _COPIED_ALONE
    grid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.specs == _COPIED_ALONE:
            # What equals the default is left out of files only where it is that very object; equal tensors have to
            # give equal bytes.
            force_setattr(self, "specs", _COPIED_ALONE)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The extents of the rank grid, written out."""
        return self.grid or (len(self.chips),)

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of the piece that each chip holds; `SplitError` if the split doesn't divide."""
        shape = self.shape
        for spec, count in zip(self.specs, self.ranks, strict=True):
            shape = spec.local(shape, count)
        return shape


class Site(_Data, frozen=True):
    """A place on a machine: a chip and a unit's coordinates on it."""

    chip: ChipId
    x: int
    y: int

    def __str__(self) -> str:
        return f"{self.chip}:({self.x},{self.y})"


class Buffer(_Data, frozen=True):
    """A block FIFO at one site; or, with `resident`, an accumulator, which is opened before it is added to.

    block: the shape of a block. depth: how many blocks it holds.
    """

    site: Site
    block: tuple[int, ...]
    format: ElementType
    depth: int
    resident: bool = False

    @property
    def elements(self) -> int:
        """How many elements a block has."""
        return math.prod(self.block)


class Group(_Data, frozen=True):
    """A multicast rectangle on one chip, corners included, and the site that sends to it.

    A rectangle can't name a set of chips, and is not stretched to.
    """

    sender: Site
    low: tuple[int, int]
    high: tuple[int, int]

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site of the rectangle, row by row."""
        (x0, y0), (x1, y1) = self.low, self.high
        return tuple(Site(self.sender.chip, x, y) for y in range(y0, y1 + 1) for x in range(x0, x1 + 1))

    def holds(self, site: Site) -> bool:
        """Whether `site` is in the rectangle."""
        (x0, y0), (x1, y1) = self.low, self.high
        return site.chip == self.sender.chip and x0 <= site.x <= x1 and y0 <= site.y <= y1


class _Kind(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    pass


class Load(_Kind, frozen=True, tag="load"):
    """DRAM to a buffer, block after block as `pattern` says.

    multicast: the same block lands in the receive buffer of every other site of the group; the sender has an output
    buffer of its own if it is inside the rectangle. rank: whose piece is read; None: that of the site's own chip.
    """

    tensor: TensorId
    pattern: AccessPattern
    num_blocks: int
    multicast: GroupId | None = None
    rank: int | None = None


class Recv(_Kind, frozen=True, tag="recv"):
    """The receiver side of a multicast: its output buffer is filled by the group's sender."""

    group: GroupId


class Store(_Kind, frozen=True, tag="store"):
    """A buffer to DRAM; `pattern` says where each block goes.

    sub_blocks: (rows, columns) of the sub-blocks in whose order the block was produced, so that the store can undo it;
    None: the block is in row-major order. rank: whose piece is written; None: that of the site's own chip.
    """

    tensor: TensorId
    pattern: AccessPattern
    sub_blocks: tuple[int, int] | None = None
    rank: int | None = None


class AllReduce(_Kind, frozen=True, tag="all_reduce"):
    """Folds partials of `tensor` that live on several chips.

    Every input chip holds a whole-shaped contribution, summed over its slice of the contraction only. `combine` is an
    ordinary elementwise fold over the inputs in port order; what is new is only where its operands live. The chips
    taking part are the sites of `ins`. One output: a rooted reduce. One output a chip: an all-reduce.
    """

    pool: Pool
    tensor: TensorId
    combine: Generic


class Compute(_Kind, frozen=True, tag="compute"):
    """One operation of the compute algebra, firing once for each block (or group of blocks) it produces."""

    op: ComputeOp


class Scalar(_Kind, frozen=True, tag="scalar"):
    """A bounded integer program, firing once for each block."""

    body: ScalarBody


StageKind = Load | Recv | Store | AllReduce | Compute | Scalar
Role = Literal["reader", "compute", "writer", "scalar", "link"]


class Stage(_Data, frozen=True):
    """A kind with its input and output buffers, in port order."""

    kind: StageKind
    ins: tuple[BufferId, ...] = ()
    outs: tuple[BufferId, ...] = ()

    def role(self) -> Role:
        """Which of a site's engines runs it."""
        match self.kind:
            case Load() | Recv():
                return "reader"
            case Store():
                return "writer"
            case AllReduce():
                return "link"
            case Compute():
                return "compute"
            case Scalar():
                return "scalar"

    def hidden(self) -> tuple[BufferId, ...]:
        """Buffers named inside the kind rather than as ports: a gather's index, a matmul's bias and spill."""
        match self.kind:
            case Load(pattern=Gather(index=index)) | Store(pattern=Gather(index=index)):
                return (index,)
            case Compute(Matmul(bias=bias, spill=spill)):
                return tuple(b for b in (bias, spill) if b is not None)
            case _:
                return ()

    def takes(self) -> tuple[BufferId, ...]:
        """Every buffer filled by another stage that it reads: `ins`, a gather's index, a bias (not its own spill)."""
        if isinstance(self.kind, Compute) and isinstance(self.kind.op, Matmul):
            return self.ins if self.kind.op.bias is None else (*self.ins, self.kind.op.bias)
        return (*self.ins, *self.hidden())

    def remap_buffers(self, f: Callable[[BufferId], BufferId]) -> Stage:
        """The same stage with *every* buffer it names renamed: ports and those inside the kind."""
        return Stage(_remap_kind(self.kind, f), tuple(map(f, self.ins)), tuple(map(f, self.outs)))


def _remap_kind(kind: StageKind, f: Callable[[BufferId], BufferId]) -> StageKind:
    match kind:
        case Load(pattern=Gather() as pattern) | Store(pattern=Gather() as pattern):
            return msgspec.structs.replace(kind, pattern=msgspec.structs.replace(pattern, index=f(pattern.index)))
        case Compute(Matmul() as op):
            bias = None if op.bias is None else f(op.bias)
            spill = None if op.spill is None else f(op.spill)
            return Compute(msgspec.structs.replace(op, bias=bias, spill=spill))
        case _:
            return kind


class Precedence(_Data, frozen=True):
    """`before` has finished when `after` begins; said where memory, not a buffer, joins them."""

    before: StageId
    after: StageId


def stage_site(buffers: Sequence[Buffer], groups: Sequence[Group], stage: Stage) -> Site:
    """Where the stage runs; `Graph.site` says by which rule. Raises `GraphError` for a stage that names no buffer."""
    ports = (*stage.ins, *stage.outs)
    if ports:
        return buffers[ports[0]].site
    if isinstance(stage.kind, Load) and stage.kind.multicast is not None:
        return groups[stage.kind.multicast].sender
    raise GraphError(f"a {type(stage.kind).__name__} without buffers has no site")

"""`GraphBuilder`: collects records and hands back a frozen, well-formed graph. The only mutable thing in this room."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import GraphError
from meshwright.ir.form import require_well_formed
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId, TensorId
from meshwright.ir.operation import ComputeOp
from meshwright.ir.pattern import AccessPattern, Affine
from meshwright.ir.records import (
    Buffer,
    Compute,
    Group,
    Load,
    Precedence,
    Recv,
    Site,
    Stage,
    StageKind,
    Store,
    Tensor,
)
from meshwright.ir.spec import COPIED, Spec


class GraphBuilder:
    """Adds tensors, buffers, groups and stages one by one; each call gives the id of what it added."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._buffers: list[Buffer] = []
        self._groups: list[Group] = []
        self._stages: list[Stage] = []
        self._precedences: list[Precedence] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        format: ElementType,
        chips: Sequence[int],
        specs: Spec | Sequence[Spec] = COPIED,
        grid: Sequence[int] = (),
    ) -> TensorId:
        """A value in the DRAM of `chips`. Raises `GraphError` where the name is taken."""
        if any(tensor.name == name for tensor in self._tensors):
            raise GraphError(f"a tensor called {name!r} is there already; names tell tensors apart")
        relation = (specs,) if isinstance(specs, Spec) else tuple(specs)
        self._tensors.append(Tensor(name, tuple(shape), format, tuple(map(ChipId, chips)), relation, tuple(grid)))
        return TensorId(len(self._tensors) - 1)

    def scratch(self, name: str, shape: Sequence[int], format: ElementType, chip: int) -> TensorId:
        """A value of one chip's DRAM that only this graph's own stages touch; numbered, so that names may repeat."""
        return self.tensor(f"{name}~{len(self._tensors)}", shape, format, (chip,))

    def fifo(self, site: Site, block: Sequence[int], format: ElementType, depth: int = 2) -> BufferId:
        """A block FIFO at `site`; two blocks deep unless said otherwise, so that filling and taking overlap."""
        return self._buffer(Buffer(site, tuple(block), format, depth))

    def accumulator(self, site: Site, block: Sequence[int], depth: int = 1) -> BufferId:
        """A resident accumulator of `depth` blocks at `site`."""
        return self._buffer(Buffer(site, tuple(block), ElementType.FP22, depth, resident=True))

    def _buffer(self, buffer: Buffer) -> BufferId:
        self._buffers.append(buffer)
        return BufferId(len(self._buffers) - 1)

    def element_type(self, tensor: TensorId) -> ElementType:
        """The element type of a tensor added before."""
        return self._tensors[tensor].format

    def place(self, buffer: BufferId) -> Site:
        """Where a buffer added before is."""
        return self._buffers[buffer].site

    def block(self, buffer: BufferId) -> tuple[int, ...]:
        """The block shape of a buffer added before."""
        return self._buffers[buffer].block

    def group(self, sender: Site, low: tuple[int, int], high: tuple[int, int]) -> GroupId:
        """A multicast rectangle, corners included, with its sender."""
        self._groups.append(Group(sender, low, high))
        return GroupId(len(self._groups) - 1)

    def stage(self, kind: StageKind, ins: Sequence[BufferId] = (), outs: Sequence[BufferId] = ()) -> StageId:
        """Any stage."""
        self._stages.append(Stage(kind, tuple(ins), tuple(outs)))
        return StageId(len(self._stages) - 1)

    def load(
        self,
        tensor: TensorId,
        pattern: AccessPattern,
        out: BufferId,
        rank: int | None = None,
        after: Sequence[StageId] = (),
    ) -> StageId:
        """A load of all blocks of `pattern`, once the stages `after` (the stores of the tensor) have finished."""
        stage = self.stage(Load(tensor, pattern, pattern.num_blocks, rank=rank), outs=(out,))
        for before in after:
            self.precede(before, stage)
        return stage

    def multicast(
        self, tensor: TensorId, pattern: AccessPattern, group: GroupId, receivers: Sequence[BufferId]
    ) -> StageId:
        """A load that fills the buffers of every site of `group`, one receive stage for each but the sender's own.

        receivers: one buffer a site of the rectangle, in any order. Raises `GraphError` where the sites don't match.
        """
        rectangle = self._groups[group]
        at = {self._buffers[b].site: b for b in receivers}
        if set(at) != set(rectangle.sites) or len(at) != len(receivers):
            raise GraphError(
                f"multicast to g{group}: its rectangle has {len(rectangle.sites)} sites, the {len(receivers)} receive "
                "buffers are not one at each of them"
            )
        own = at.pop(rectangle.sender, None)
        kind = Load(tensor, pattern, pattern.num_blocks, multicast=group)
        stage = self.stage(kind, outs=() if own is None else (own,))
        for buffer in at.values():
            self.stage(Recv(group), outs=(buffer,))
        return stage

    def store(
        self,
        tensor: TensorId,
        pattern: AccessPattern,
        source: BufferId,
        rank: int | None = None,
        sub_blocks: tuple[int, int] | None = None,
    ) -> StageId:
        """A store of blocks from `source`."""
        return self.stage(Store(tensor, pattern, sub_blocks, rank), ins=(source,))

    def compute(self, op: ComputeOp, ins: Sequence[BufferId], outs: Sequence[BufferId]) -> StageId:
        """A compute stage."""
        return self.stage(Compute(op), ins, outs)

    def precede(self, before: StageId, after: StageId) -> None:
        """Says that `before` has finished when `after` begins."""
        self._precedences.append(Precedence(before, after))

    def graph(self) -> Graph:
        """The frozen graph; `GraphError` with stage and reason where it isn't well formed."""
        made = Graph(
            tuple(self._tensors),
            tuple(self._buffers),
            tuple(self._groups),
            tuple(self._stages),
            tuple(dict.fromkeys(self._precedences)),
        )
        require_well_formed(made)
        return made


def whole(shape: Sequence[int]) -> Affine:
    """The pattern of one block that is the whole tensor."""
    return Affine(offset=(0,) * len(shape), box=tuple(shape))

"""Stage graphs rewritten so that units can run them: what a unit can't do itself goes through memory.

A load or store whose boxes no byte order holds is cut in two at a scratch tensor of whole blocks: the unit keeps one
half, and the other is a copy at the memory agent. A Matmul with a bias or an epilogue is cut where its sum is drained,
which is where it is rounded to f16 anyway: a vector core of the same mesh does the rest. What a graph means stays the
same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.ir.expression import Binary, BinaryOp, Expr, Operand, substitute
from meshwright.ir.flow import block_counts
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Gather, Loop
from meshwright.ir.records import Buffer, Compute, Load, Precedence, Site, Stage, Store, Tensor
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu.placement import KtpuPlacement

_DRAINED: Final = ElementType.F16


def through_memory(
    graph: Graph, stages: Collection[StageId], machine: MachineSpec, joined: Mapping[StageId, int] | None = None
) -> Graph:
    """`graph` with the loads and stores `stages` cut in two; they keep their ids, the copies come after all others.

    joined: for loads of those that are folded over several blocks how many: these then lie side by side, as one row.
    Raises `PlacementError` for positions that are looked up by a unit.
    """
    draft = _Draft(graph, machine)
    for stage in sorted(stages):
        draft.cut(stage, (joined or {}).get(stage, 1))
    return draft.graph()


def epilogues_apart(graph: Graph, machine: MachineSpec) -> Graph:
    """`graph` with every bias and epilogue of a cluster's Matmul on a vector core of its mesh; ids stay.

    Raises `PlacementError` where the mesh has no vector core.
    """
    found = [
        StageId(number)
        for number, stage in enumerate(graph.stages)
        if isinstance(stage.kind, Compute)
        and isinstance(stage.kind.op, Matmul)
        and (stage.kind.op.bias is not None or stage.kind.op.epilogue is not None)
    ]
    if not found:
        return graph
    draft = _Draft(graph, machine)
    for number, stage in enumerate(found):
        draft.separate(stage, number)
    return draft.graph()


class _Draft:
    """A graph's tables while they are added to."""

    def __init__(self, graph: Graph, machine: MachineSpec) -> None:
        self._given = graph
        self._machine = machine
        self._tensors = list(graph.tensors)
        self._buffers = list(graph.buffers)
        self._stages = list(graph.stages)
        self._precedences = list(graph.precedences)

    def graph(self) -> Graph:
        """What has been made of it."""
        return Graph(
            tuple(self._tensors),
            tuple(self._buffers),
            self._given.groups,
            tuple(self._stages),
            tuple(dict.fromkeys(self._precedences)),
        )

    def cut(self, number: StageId, parts: int = 1) -> None:
        """Cuts a load or a store in two."""
        stage = self._stages[number]
        match stage.kind:
            case Load(pattern=Affine(), multicast=None) as kind:
                self._cut_load(number, kind, stage.outs[0], parts)
            case Store(pattern=Affine()) as kind:
                self._cut_store(number, kind, stage.ins[0])
            case Load() | Store():
                what = "looks positions up" if isinstance(stage.kind.pattern, Gather) else "sends to several sites"
                raise PlacementError(f"stage s{number} {what}, and a unit of this machine can't: only copies do")
            case _:
                raise TypeError(f"s{number} is a {type(stage.kind).__name__}; loads and stores go through memory")

    def _cut_load(self, number: StageId, kind: Load, buffer: BufferId, parts: int) -> None:
        assert isinstance(kind.pattern, Affine)
        moving = _moving(kind.pattern, parts) if kind.num_blocks == kind.pattern.num_blocks else None
        # Where the front of a nest is loaded, or a nest that doesn't make up rows, every block is another one.
        count = kind.num_blocks if moving is None else math.prod(loop.extent for loop in moving)
        format, block = self._tensors[kind.tensor].format, self._buffers[buffer].block
        scratch, blocks = self._scratch(number, buffer, count, format, parts)
        rank = self._given.rank_of(self._stages[number])
        copied, again = kind.pattern, blocks
        if moving is not None and count < kind.num_blocks:
            copied = msgspec.structs.replace(kind.pattern, loops=moving)
            again = _again(kind.pattern, moving, blocks, parts, block)
        first, last = self._copy(Load(kind.tensor, copied, count, rank=rank), Store(scratch, blocks, rank=0), buffer)
        self._stages[number] = Stage(Load(scratch, again, kind.num_blocks, rank=0), outs=(buffer,))
        # What had to come before the load now comes before the copy; what waited for it to have read, for the copy.
        moved = (Precedence(e.before, first) if e.after == number else e for e in self._precedences)
        self._precedences = [Precedence(first, e.after) if e.before == number else e for e in moved]
        self._precedences.append(Precedence(last, number))

    def _cut_store(self, number: StageId, kind: Store, buffer: BufferId) -> None:
        pattern = kind.pattern
        scratch, blocks = self._scratch(number, buffer, pattern.num_blocks, self._tensors[kind.tensor].format)
        rank = self._given.rank_of(self._stages[number])
        first, last = self._copy(
            Load(scratch, blocks, pattern.num_blocks, rank=0),
            Store(kind.tensor, pattern, kind.sub_blocks, rank),
            buffer,
        )
        self._stages[number] = Stage(Store(scratch, blocks, rank=0), ins=(buffer,))
        self._precedences = [Precedence(last, e.after) if e.before == number else e for e in self._precedences]
        self._precedences.append(Precedence(number, first))

    def _scratch(
        self, number: StageId, buffer: BufferId, count: int, format: ElementType, parts: int = 1
    ) -> tuple[TensorId, Affine]:
        """A tensor of the buffer's blocks, one after the other, in the mesh of its site, and the pattern of them.

        parts: so many at a time lie side by side along the last axis.
        """
        record = self._buffers[buffer]
        name = f"blocks of s{number}~{len(self._tensors)}"
        *rows, row = record.block or (1,)
        self._tensors.append(Tensor(name, (count // parts, *rows, parts * row), format, (record.site.chip,)))
        loops = Loop(count // parts, (1, *(0 for _ in rows), 0)), Loop(parts, (0, *(0 for _ in rows), row))
        pattern = Affine((0,) * (2 + len(rows)), (1, *rows, row), loops[: 1 + (parts > 1)])
        return TensorId(len(self._tensors) - 1), pattern

    def _copy(self, load: Load, store: Store, like: BufferId) -> tuple[StageId, StageId]:
        """A load and a store at the memory agent of the chip that the load's piece is on."""
        source = self._tensors[load.tensor]
        assert load.rank is not None
        site = KtpuPlacement(self._machine, source.chips[load.rank]).mover_site()
        fifo = self._buffer(Buffer(site, self._buffers[like].block, source.format, 2))
        return self._stage(Stage(load, outs=(fifo,))), self._stage(Stage(store, ins=(fifo,)))

    def _buffer(self, record: Buffer) -> BufferId:
        self._buffers.append(record)
        return BufferId(len(self._buffers) - 1)

    def _stage(self, record: Stage) -> StageId:
        self._stages.append(record)
        return StageId(len(self._stages) - 1)

    # Epilogues.

    def separate(self, number: StageId, turn: int) -> None:
        """Puts what follows the sum of a Matmul on a vector core: the `turn`-th of those that do such work."""
        stage = self._stages[number]
        assert isinstance(stage.kind, Compute)
        op = stage.kind.op
        assert isinstance(op, Matmul)
        (out,) = stage.outs
        finished = self._buffers[out]
        core = self._core(number, finished.site, turn)
        drained = self._buffer(Buffer(finished.site, finished.block, _DRAINED, finished.depth))
        plain = msgspec.structs.replace(op, bias=None, epilogue=None)
        self._stages[number] = Stage(Compute(plain), stage.ins, (drained,))
        count = block_counts(self._given)[out]
        scratch, blocks = self._scratch(number, drained, count, _DRAINED)
        stored = self._stage(Stage(Store(scratch, blocks, rank=0), ins=(drained,)))
        operands = [self._buffer(Buffer(core, finished.block, _DRAINED, finished.depth))]
        loaded = self._stage(Stage(Load(scratch, blocks, count, rank=0), outs=tuple(operands)))
        self._precedences.append(Precedence(stored, loaded))
        if op.bias is not None:
            operands.append(op.bias)
            self._move(op.bias, core)
        self._move(out, core)
        self._stage(Stage(Compute(_after_sum(op, len(finished.block))), tuple(operands), (out,)))

    def _core(self, number: StageId, site: Site, turn: int) -> Site:
        place = KtpuPlacement(self._machine, site.chip)
        if not place.has_vector_units:
            raise PlacementError(
                f"stage s{number} has a bias or an epilogue, which a vector core does, and mesh {site.chip} of "
                f"{self._machine.name} has none: put it into a step of its own, on a mesh that has"
            )
        cores = place.vector_sites()
        return cores[turn % len(cores)]

    def _move(self, buffer: BufferId, site: Site) -> None:
        """A buffer, and with it the stages at either end of it, is elsewhere from now on."""
        self._buffers[buffer] = msgspec.structs.replace(self._buffers[buffer], site=site)


def _moving(pattern: Affine, parts: int) -> tuple[Loop, ...] | None:
    """The loops that reach another block when they turn; None where the innermost doesn't make up rows of `parts`."""
    turning = [loop for loop in pattern.loops if loop.extent > 1]
    moving = tuple(loop for loop in turning if any(loop.stride))
    if parts > 1 and not (moving and turning[-1] is moving[-1] and moving[-1].extent % parts == 0):
        return None
    return moving


def _again(pattern: Affine, moving: tuple[Loop, ...], blocks: Affine, parts: int, block: tuple[int, ...]) -> Affine:
    """The blocks of scratch, each as often and in the order in which `pattern` has it.

    blocks: each once, `parts` at a time side by side along the last axis.
    """
    still = (0,) * len(blocks.box)
    loops: list[Loop] = []
    step = math.prod(loop.extent for loop in moving)
    for loop in pattern.loops:
        if loop not in moving:
            loops.append(Loop(loop.extent, still))
            continue
        step //= loop.extent
        if step >= parts:
            loops.append(Loop(loop.extent, (step // parts, *still[1:])))
            continue
        loops.append(Loop(loop.extent // parts, (1, *still[1:])))
        loops.append(Loop(parts, (*still[:-1], block[-1] if block else 1)))
    return msgspec.structs.replace(blocks, loops=tuple(loops))


def _after_sum(op: Matmul, axes: int) -> Generic:
    total: Expr = Operand(0) if op.bias is None else Binary(BinaryOp.ADD, Operand(0), Operand(1))
    expr = total if op.epilogue is None else substitute(op.epilogue, lambda _: total)
    return Generic.elementwise(expr, 1 if op.bias is None else 2, axes)


class Part(Struct, frozen=True):
    """Some stages of a graph alone, every piece that they touch a tensor of its own with one chip.

    pieces: for each tensor of `graph` the piece (tensor, rank) that it is.
    """

    graph: Graph
    pieces: tuple[tuple[TensorId, int], ...]

    @property
    def reads(self) -> tuple[tuple[str, tuple[TensorId, int]], ...]:
        """Names in `graph`, and the pieces, of what is loaded and not stored."""
        return tuple((self.graph.tensors[t].name, self.pieces[t]) for t in self.graph.inputs())

    @property
    def writes(self) -> tuple[tuple[str, tuple[TensorId, int]], ...]:
        """Names in `graph`, and the pieces, of what is stored."""
        return tuple((self.graph.tensors[t].name, self.pieces[t]) for t in sorted(self.graph.stored()))


def part_of(graph: Graph, stages: Sequence[StageId], at: Site | None = None) -> Part:
    """The part of a graph that is `stages`, in the order given, with the precedences among them.

    at: as if everything were at this site and its chip. Parts that are alike but for ids are then equal graphs.
    """
    names: dict[tuple[TensorId, int], TensorId] = {}
    tensors: list[Tensor] = []
    made: list[Stage] = []
    for number in stages:
        stage = graph.stages[number]
        kind = stage.kind
        if isinstance(kind, (Load, Store)):
            piece = kind.tensor, graph.rank_of(stage)
            if piece not in names:
                names[piece] = TensorId(len(tensors))
                record = graph.tensors[kind.tensor]
                chip = record.chips[piece[1]] if at is None else at.chip
                tensors.append(Tensor(str(len(tensors)), record.local, record.format, (chip,)))
            kind = msgspec.structs.replace(kind, tensor=names[piece], rank=0)
        made.append(Stage(kind, stage.ins, stage.outs))
    used = sorted({b for stage in made for b in (*stage.ins, *stage.outs, *stage.hidden())})
    buffers = (graph.buffers[b] for b in used)
    position = {b: BufferId(index) for index, b in enumerate(used)}
    numbers = {stage: StageId(index) for index, stage in enumerate(stages)}
    kept = (e for e in graph.precedences if e.before in numbers and e.after in numbers)
    alone = Graph(
        tuple(tensors),
        tuple(b if at is None else msgspec.structs.replace(b, site=at) for b in buffers),
        (),
        tuple(stage.remap_buffers(position.__getitem__) for stage in made),
        tuple(Precedence(numbers[e.before], numbers[e.after]) for e in kept),
    )
    return Part(alone, tuple(names))

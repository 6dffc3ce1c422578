"""`evaluate`: the one walk over a graph, stage after stage, each with all its blocks at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from meshwright.errors import EvaluationError, GraphError, NumericsError
from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.boxes import Boxes
from meshwright.evaluate.memory import Memory
from meshwright.evaluate.stages import Port, compute, generic, out_of_sub_blocks, positions, scalar
from meshwright.evaluate.stream import Stream
from meshwright.ir.flow import block_counts, stage_order
from meshwright.ir.form import require_well_formed
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId, StageId, TensorId
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine, Gather, affine_of
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store

Progress = Callable[[int, int], None]
"""Called with (stages done, stages in all) after each stage."""


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Sequence[Array]],
    arithmetic: Arithmetic,
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, tuple[Array, ...]]:
    """What `graph` computes from `inputs` in `arithmetic`.

    inputs: for each tensor that is loaded and never stored its pieces, one a rank, of the tensor's local shape; a
    tensor that is also stored may be given its first content. Returns the pieces of every tensor that is
    stored and not loaded again, and of those named in `keep`.

    Raises `GraphError` where the graph is malformed or its blocks don't balance (before anything is computed), and
    `EvaluationError` where the inputs don't fit, memory is touched in no stated order, or a format is lacking.
    """
    require_well_formed(graph)
    block_counts(graph)
    kept = {*graph.outputs(), *(_known(graph, name) for name in keep)}
    walk = _Walk(graph, Memory(graph, inputs, arithmetic), arithmetic)
    order = stage_order(graph)
    for done, stage_id in enumerate(order, start=1):
        try:
            walk.run(stage_id)
        except (EvaluationError, NumericsError) as error:
            raise EvaluationError(f"stage s{stage_id} of {arithmetic.name} evaluation: {error}") from error
        if progress is not None:
            progress(done, len(order))
    return {graph.tensors[t].name: walk.memory.result(t) for t in sorted(kept)}


def _known(graph: Graph, name: str) -> TensorId:
    try:
        tensor = graph.tensor_id(name)
    except KeyError:
        raise GraphError(f"there is no tensor {name!r} to keep") from None
    if tensor not in graph.stored():
        raise GraphError(f"tensor {name!r} is an input; only what is stored can be kept")
    return tensor


class _Walk:
    """The state of one evaluation: what is in memory, and the streams that are still to be taken."""

    def __init__(self, graph: Graph, memory: Memory, arithmetic: Arithmetic) -> None:
        self.graph = graph
        self.memory = memory
        self.arithmetic = arithmetic
        self.streams: dict[BufferId, Stream] = {}
        self.sent: dict[GroupId, Stream] = {}
        self._known_boxes: dict[tuple[Affine, tuple[int, ...], int], Boxes] = {}
        self.to_take = Counter(b for s in graph.stages for b in s.takes())

    def run(self, stage_id: StageId) -> None:
        """Runs one stage with all its blocks."""
        stage = self.graph.stages[stage_id]
        match stage.kind:
            case Load():
                self._load(stage_id, stage, stage.kind)
            case Recv(group):
                self.streams[stage.outs[0]] = self.sent[group]
            case Store():
                self._store(stage_id, stage, stage.kind)
            case AllReduce(combine=combine):
                ins, outs = self._ins(stage), self._outs(stage)
                each = len(combine.exprs)
                known: dict[tuple[ElementType, ...], list[Stream]] = {}
                for first in range(0, len(outs), each):
                    here = outs[first : first + each]
                    formats = tuple(port.format for port in here)
                    # Every chip of an all-reduce gets the same fold; it is computed once.
                    if formats not in known:
                        made = generic(combine, ins, here, self.arithmetic)
                        known[formats] = [Stream.of(blocks) for blocks in made]
                    self._put(stage.outs[first : first + each], known[formats])
            case Compute(op):
                bias = self._named(op.bias) if isinstance(op, Matmul) else None
                spill = self._spill(op.spill) if isinstance(op, Matmul) else None
                self._put(stage.outs, compute(op, self._ins(stage), self._outs(stage), bias, spill, self.arithmetic))
            case Scalar(body):
                self._put(stage.outs, scalar(body, self._ins(stage), self._outs(stage), self.arithmetic))
        self._drop(stage)

    def _ins(self, stage: Stage) -> list[Port]:
        return [Port(self.graph.buffers[b], self.streams.get(b)) for b in stage.ins]

    def _outs(self, stage: Stage) -> list[Port]:
        return [Port(self.graph.buffers[b]) for b in stage.outs]

    def _named(self, buffer: BufferId | None) -> Port | None:
        return None if buffer is None else Port(self.graph.buffers[buffer], self.streams.get(buffer))

    def _spill(self, buffer: BufferId | None) -> Port | None:
        return None if buffer is None else Port(self.graph.buffers[buffer])

    def _put(self, buffers: Sequence[BufferId], streams: Sequence[Stream]) -> None:
        self.streams.update(zip(buffers, streams, strict=True))

    def _drop(self, stage: Stage) -> None:
        """Lets go of streams that nobody will take any more."""
        for buffer in stage.takes():
            self.to_take[buffer] -= 1
            if self.to_take[buffer] == 0 and buffer not in stage.outs:
                self.streams.pop(buffer, None)

    def _boxes(self, stage: Stage, kind: Load | Store) -> Boxes:
        record = self.graph.tensors[kind.tensor]
        pattern = kind.pattern
        what = f"{'load' if isinstance(kind, Load) else 'store'} of {record.name!r}"
        if not isinstance(pattern, Gather):
            key = pattern, record.local, self._touched(kind)
            if key not in self._known_boxes:
                self._known_boxes[key] = Boxes(pattern, record.local, what, count=key[2])
            return self._known_boxes[key]
        index = self._named(pattern.index)
        assert index is not None
        looked_up = positions(index, pattern.origin, self.arithmetic)
        return Boxes(affine_of(pattern), record.local, what, pattern.axis, looked_up, self._touched(kind))

    @staticmethod
    def _touched(kind: Load | Store) -> int:
        return kind.num_blocks if isinstance(kind, Load) else kind.pattern.num_blocks

    def _load(self, stage_id: StageId, stage: Stage, kind: Load) -> None:
        receiver = stage.outs[0] if stage.outs else self._receiver(kind.multicast)
        block = self.graph.buffers[receiver].block
        boxes = self._boxes(stage, kind)
        stream = self.memory.load(stage_id, kind.tensor, self.graph.rank_of(stage), boxes, block)
        self._put(stage.outs, [stream] * len(stage.outs))
        if kind.multicast is not None:
            self.sent[kind.multicast] = stream

    def _receiver(self, group: GroupId | None) -> BufferId:
        return next(s.outs[0] for s in self.graph.stages if isinstance(s.kind, Recv) and s.kind.group == group)

    def _store(self, stage_id: StageId, stage: Stage, kind: Store) -> None:
        blocks = self.streams[stage.ins[0]].all()
        if kind.sub_blocks is not None:
            blocks = out_of_sub_blocks(blocks, kind.sub_blocks)
        self.memory.store(stage_id, kind.tensor, self.graph.rank_of(stage), self._boxes(stage, kind), blocks)

"""The DRAM of an evaluation: pieces of tensors, who wrote what, and whether every access was in a stated order.

Nothing but what the graph says orders two accesses to memory. An access that could meet another one in either order,
or that reads what nobody wrote, is refused: its result would depend on the machine's mood.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import rustworkx as rx
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.boxes import Boxes
from meshwright.evaluate.stream import Stream
from meshwright.ir.flow import order_graph
from meshwright.ir.graph import Graph
from meshwright.ir.ids import StageId, TensorId
from meshwright.ir.pattern import Affine
from meshwright.ir.records import Load, Store, Tensor

_UNWRITTEN, _GIVEN = -1, -2


class _Piece:
    """One rank's piece of a tensor that stages store to, with who stored what to it and who loaded what from it."""

    def __init__(self, array: Array, given: bool) -> None:
        self.array = array
        self.given = given
        self.writes: list[tuple[StageId, Boxes]] = []
        self.writers: set[StageId] = set()
        self.readers: list[tuple[StageId, Boxes]] = []
        self._writer: NDArray[np.int32] | None = None
        self._replayed = 0
        self._apart = True
        self._count = 0

    def add(self, stage: StageId, boxes: Boxes) -> None:
        """Notes that `stage` has stored the boxes."""
        self._apart = self._apart and all(boxes.obviously_apart_from(other) for _, other in self.writes)
        self._count += boxes.touched_count
        self.writes.append((stage, boxes))
        self.writers.add(stage)

    def writer(self) -> NDArray[np.int32]:
        """For every element the stage that wrote it last. Built where it is asked for: few graphs need it."""
        if self._writer is None:
            self._writer = np.full(self.array.shape, _GIVEN if self.given else _UNWRITTEN, dtype=np.int32)
        for stage, boxes in self.writes[self._replayed :]:
            boxes.write(self._writer, np.full((len(boxes.index), *boxes.pattern.box), stage, dtype=np.int32))
        self._replayed = len(self.writes)
        return self._writer

    def unwritten(self) -> int:
        """How many elements have been neither given nor written."""
        if self.given:
            return 0
        if self._apart:
            return self.array.size - self._count
        return int((self.writer() == _UNWRITTEN).sum())


class Memory:
    """All pieces that a graph touches. Inputs are taken by reference and never written to."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Sequence[Array]], arithmetic: Arithmetic) -> None:
        self._graph = graph
        self._arithmetic = arithmetic
        self._given = _ingested(graph, inputs, arithmetic)
        self._stored: dict[tuple[TensorId, int], _Piece] = {}
        self._ancestors: dict[StageId, set[int]] = {}
        self._finished: dict[StageId, set[int]] = {}
        self._shared: dict[_Reading, Stream] = {}
        self._awaited = _readings(graph)
        self._writes = {(s.kind.tensor, graph.rank_of(s)) for s in graph.stages if isinstance(s.kind, Store)}

    @cached_property
    def _order(self) -> rx.PyDiGraph[StageId, None]:
        return order_graph(self._graph)

    def _before(self, stage: StageId) -> set[int]:
        if stage not in self._ancestors:
            self._ancestors[stage] = rx.ancestors(self._order, stage)
        return self._ancestors[stage]

    def _finished_before(self, stage: StageId) -> set[int]:
        """The stages that have finished when `stage` begins.

        A FIFO alone doesn't say so: it passes block after block, and both its ends work at the same time. A stated
        precedence does, for all that its first stage waited for.
        """
        if stage not in self._finished:
            upstream = self._before(stage) | {stage}
            waited = {edge.before for edge in self._graph.precedences if edge.after in upstream}
            self._finished[stage] = waited.union(*(self._before(before) for before in waited))
        return self._finished[stage]

    def load(self, stage: StageId, tensor: TensorId, rank: int, boxes: Boxes, block: tuple[int, ...]) -> Stream:
        """The blocks that a load reads; `EvaluationError` for what nobody wrote, or wrote in no stated order."""
        pattern = boxes.pattern
        record = self._graph.tensors[tensor]
        pad = self._arithmetic.constant(0.0 if pattern.pad is None else pattern.pad, record.format)
        if (tensor, rank) not in self._writes:
            return self._read_given((tensor, rank, pattern, len(boxes.index), block), boxes, pad)
        piece = self._piece(tensor, rank)
        if piece.unwritten() or not piece.writers <= self._before(stage):
            self._refuse_unordered(stage, record, piece, boxes, block)
        piece.readers.append((stage, boxes))
        stream = boxes.read(piece.array, pad, block)
        if np.may_share_memory(stream.unique, piece.array):
            # Blocks in a buffer are what they were when they were loaded, whatever is stored later.
            stream = Stream(stream.unique.copy(), stream.index)
        return stream

    def _read_given(self, reading: _Reading, boxes: Boxes, pad: Array) -> Stream:
        """A stream of a tensor that nobody stores to; loads of the same blocks share it, and the last lets go of it."""
        tensor, rank, _, _, block = reading
        if reading not in self._awaited:  # A gather: what it reads is up to its indices.
            return boxes.read(self._given[tensor][rank], pad, block)
        stream = self._shared.get(reading) or boxes.read(self._given[tensor][rank], pad, block)
        self._awaited[reading] -= 1
        if self._awaited[reading]:
            self._shared[reading] = stream
        else:
            self._shared.pop(reading, None)
        return stream

    def _refuse_unordered(
        self, stage: StageId, record: Tensor, piece: _Piece, boxes: Boxes, block: tuple[int, ...]
    ) -> None:
        writers = set(np.unique(boxes.read(piece.writer(), np.asarray(_GIVEN, np.int32), block).unique).tolist())
        if _UNWRITTEN in writers:
            raise EvaluationError(
                f"ReadAfterWrite: stage s{stage} loads elements of {record.name!r} that nothing has written before it: "
                "store them first, and state the precedence of that store"
            )
        for writer in sorted(writers - {_GIVEN} - self._before(stage)):
            raise EvaluationError(
                f"ReadAfterWrite: stage s{stage} loads what s{writer} stores to {record.name!r}, and nothing says that "
                f"s{writer} comes first: add the precedence (s{writer}, s{stage})"
            )

    def store(self, stage: StageId, tensor: TensorId, rank: int, boxes: Boxes, blocks: Array) -> None:
        """Writes blocks; `EvaluationError` where an element is written twice, or in no stated order."""
        record = self._graph.tensors[tensor]
        if boxes.overlapping():
            raise EvaluationError(f"WrittenOnce: stage s{stage} writes elements of {record.name!r} more than once")
        piece = self._piece(tensor, rank)
        before = self._before(stage)
        self._refuse_racing(stage, record, piece, boxes, before)
        boxes.write(piece.array, blocks)
        piece.add(stage, boxes)

    def _refuse_racing(self, stage: StageId, record: Tensor, piece: _Piece, boxes: Boxes, before: set[int]) -> None:
        writers = {s for s, other in piece.writes if s not in before and not boxes.obviously_apart_from(other)}
        # Most pieces are written before anything reads them; what has finished by then is dear to know.
        finished = self._finished_before(stage) if piece.readers else frozenset[int]()
        readers = [(s, r) for s, r in piece.readers if s not in finished and not boxes.obviously_apart_from(r)]
        if not writers and not readers:
            return
        mine = boxes.touched()
        for other in sorted(writers.intersection(np.unique(piece.writer().reshape(-1)[mine]).tolist())):
            raise EvaluationError(
                f"WrittenOnce: stages s{other} and s{stage} both store to elements of {record.name!r}, and nothing "
                f"says which comes last: add a precedence between them"
            )
        for reader, read in readers:
            if reader in before:
                self._refuse_overtaking(stage, record, boxes, (reader, read))
            elif np.intersect1d(mine, read.touched()).size:
                raise EvaluationError(
                    f"NoLiveOverwrite: stage s{stage} overwrites what s{reader} loads from {record.name!r}, and "
                    f"nothing says which comes first: add the precedence (s{reader}, s{stage})"
                )

    @staticmethod
    def _refuse_overtaking(stage: StageId, record: Tensor, boxes: Boxes, reading: tuple[StageId, Boxes]) -> None:
        """A store fed by a load through FIFOs may overwrite what that has read already, block by block, and no more."""
        reader, read = reading
        if boxes.pattern == read.pattern and len(boxes.index) == len(read.index):
            return  # What doesn't overlap itself writes each element in the block that read it.
        read_in, written_in = read.last_touches(), boxes.last_touches()
        # When store block t is put, this many blocks at least have been loaded: stages take and give in fixed numbers.
        loaded = -(-(written_in + 1) * len(read.index) // max(len(boxes.index), 1))
        overtaken = np.flatnonzero((written_in >= 0) & (read_in >= loaded))
        if overtaken.size:
            first = overtaken[0]
            raise EvaluationError(
                f"NoLiveOverwrite: stage s{stage} overwrites elements of {record.name!r} in its block "
                f"{written_in[first]} that s{reader}, which feeds it, may load only later, in block {read_in[first]}: "
                "store to another tensor"
            )

    def _piece(self, tensor: TensorId, rank: int) -> _Piece:
        key = (tensor, rank)
        if key not in self._stored:
            record = self._graph.tensors[tensor]
            if tensor in self._given:
                self._stored[key] = _Piece(self._given[tensor][rank].copy(), given=True)
            else:
                zero = self._arithmetic.constant(0.0, record.format)
                self._stored[key] = _Piece(np.zeros(record.local, zero.dtype), given=False)
        return self._stored[key]

    def result(self, tensor: TensorId) -> tuple[Array, ...]:
        """Every rank's piece of a stored tensor; `EvaluationError` if an element was never written."""
        record = self._graph.tensors[tensor]
        pieces: list[Array] = []
        for rank in range(len(record.chips)):
            piece = self._stored.get((tensor, rank))
            if piece is None and tensor in self._given:
                piece = self._piece(tensor, rank)
            missing = math.prod(record.local) if piece is None else piece.unwritten()
            if missing:
                raise EvaluationError(
                    f"Covered: {missing} of {math.prod(record.local)} elements of rank {rank}'s piece of "
                    f"{record.name!r} were never stored: store them, or give the tensor a first content"
                )
            pieces.append(self._piece(tensor, rank).array)
        return tuple(pieces)


_Reading = tuple[TensorId, int, Affine, int, tuple[int, ...]]
"""What a load reads: tensor, rank, pattern, number of blocks, block shape."""


def _readings(graph: Graph) -> Counter[_Reading]:
    """How often each reading is loaded."""
    found = Counter[_Reading]()
    for stage in graph.stages:
        if isinstance(stage.kind, Load) and isinstance(stage.kind.pattern, Affine) and stage.outs:
            kind, block = stage.kind, graph.buffers[stage.outs[0]].block
            found[kind.tensor, graph.rank_of(stage), stage.kind.pattern, kind.num_blocks, block] += 1
    return found


def _ingested(
    graph: Graph, inputs: Mapping[str, Sequence[Array]], arithmetic: Arithmetic
) -> dict[TensorId, tuple[Array, ...]]:
    names = {tensor.name for tensor in graph.tensors}
    for name in inputs:
        if name not in names:
            raise EvaluationError(f"there is no tensor {name!r} in this graph; it has {', '.join(sorted(names))}")
    for tensor in graph.inputs():
        if graph.tensors[tensor].name not in inputs:
            record = graph.tensors[tensor]
            raise EvaluationError(f"input {record.name!r} ({record.format}{list(record.shape)}) is missing")
    return {
        TensorId(i): _pieces(t, inputs[t.name], arithmetic) for i, t in enumerate(graph.tensors) if t.name in inputs
    }


def _pieces(record: Tensor, pieces: Sequence[Array], arithmetic: Arithmetic) -> tuple[Array, ...]:
    if len(pieces) != len(record.chips):
        raise EvaluationError(f"{record.name!r} is on {len(record.chips)} chips, and {len(pieces)} pieces are given")
    for piece in pieces:
        if piece.shape != record.local:
            raise EvaluationError(
                f"a piece of {record.name!r} has shape {piece.shape}; {record.shape} "
                f"({', '.join(map(str, record.specs))}) over {len(record.chips)} chips has pieces of {record.local}"
            )
    # The same array given for several ranks (a copied value) is converted once.
    known = {id(piece): arithmetic.ingest(piece, record.format) for piece in {id(p): p for p in pieces}.values()}
    return tuple(known[id(piece)] for piece in pieces)

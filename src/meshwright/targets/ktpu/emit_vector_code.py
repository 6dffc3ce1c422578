"""The rows of a chain as code of a vector core, before its registers are chosen.

A row is worked on when it is asked for: a store asks for a piece of its buffer, a fold for each piece of what it folds.
So what is alive at once stays small. Between stages values stay in registers, in the lane's own format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from meshwright.errors import PlacementError
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId
from meshwright.ir.operation import Generic, Reduce
from meshwright.ir.pool import Pool
from meshwright.ir.records import Compute, Stage
from meshwright.numerics.lane_instructions import COMPARISONS, Instruction, Predicate, Program, Register
from meshwright.numerics.lane_instructions import Constant as LaneConstant
from meshwright.numerics.lane_instructions import Input as LaneInput
from meshwright.targets.ktpu.emit_vector_layout import LANES, VECTOR
from meshwright.targets.ktpu.emit_vector_moves import refusal
from meshwright.targets.ktpu.emit_vector_stages import Chain
from meshwright.targets.ktpu.emit_vector_tree import folded
from meshwright.targets.ktpu.emit_vector_values import Counter, Operation, Place, Value
from meshwright.targets.ktpu.lane_code import code_of, compile_expressions

JOINS: Final = {Pool.SUM: "add", Pool.MAX: "max", Pool.MIN: "min"}
_ZERO: Final = Value("constant", 0)

Keeping = Literal["all", "folds", "nothing"]
"""What stays in registers until its last use: every value; every value up to the next fold; statistics only."""


class Row:
    """The code of one row of a chain.

    length: elements. places: for each load or store, and piece of the row, where that is. packing: words that are
    being put together of one element a row; rows come last to first.
    """

    def __init__(
        self,
        graph: Graph,
        chain: Chain,
        length: int,
        places: Callable[[int, int], Place],
        keeping: Keeping,
        counter: Counter,
        packing: dict[tuple[int, int], Value],
    ) -> None:
        self.operations: list[Operation] = []
        self._graph = graph
        self._chain = chain
        self._length = length
        self._places = places
        self._keeping = keeping
        self._counter = counter
        self._packing = packing
        self._pieces = -(-length // VECTOR)
        self._loads = {move.buffer: number for number, move in enumerate(chain.loads)}
        self._makers: dict[BufferId, Stage] = {b: graph.stages[s] for s in chain.computes for b in graph.stages[s].outs}
        self._vectors: dict[tuple[BufferId, int], Value] = {}
        self._scalars: dict[BufferId, Value] = {}
        self._rounded: set[tuple[BufferId, int]] = set()

    def emit(self) -> None:
        """Adds everything that ends in a store."""
        for number, move in enumerate(self._chain.stores, len(self._chain.loads)):
            if self._places(number, 0).single:
                self._store_single(self._scalar(move.buffer), number)
                continue
            for piece in self._stored(move.buffer):
                value = self._in_vector(self._get(move.buffer, piece, rounded=False), piece)
                place = self._places(number, piece)
                self._add(Operation("store", self._whole(piece), None, (value,), move=number, offset=place.word))

    def _stored(self, buffer: BufferId) -> range:
        """The pieces that a store of the buffer has."""
        return range(self._pieces)

    def _store_single(self, value: Value, number: int) -> None:
        """One number of this row: into a word of its own, or into that of 16 rows, from the last of them down.

        A vector of n elements writes the first n: each row overwrites what the rows after it put below them.
        """
        place = self._places(number, 0)
        lane, key = place.lane, (number, place.word)
        target = self._packing.get(key)
        if lane is None or target is None:
            target = self._copied(value, LANES)
        else:
            self._copied(value, lane + 1, target)
        self._packing[key] = target
        if not lane:
            self._add(Operation("store", LANES, None, (self._packing.pop(key),), move=number, offset=place.word))

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def _size(self, piece: int) -> int:
        """Elements of a piece."""
        return min(VECTOR, self._length - piece * VECTOR)

    def _whole(self, piece: int) -> int:
        """The vector length for a piece: whole chunks, so that every element that moves is one that was set."""
        return -(-self._size(piece) // LANES) * LANES

    def _is_vector(self, buffer: BufferId) -> bool:
        """Whether a buffer has a whole row; otherwise it has one number for each row."""
        if buffer in self._loads:
            return not self._places(self._loads[buffer], 0).single
        if self._chain.folded:
            return buffer in self._chain.spanning
        ins = self._makers[buffer].ins
        return not ins or any(self._is_vector(taken) for taken in ins)

    def _get(self, buffer: BufferId, piece: int, *, rounded: bool = True) -> Value:
        """Where a piece of a buffer's row is; computes it where it isn't anywhere. rounded: as the buffer holds it."""
        key = buffer, piece
        if not self._is_vector(buffer):
            return self._scalar(buffer)
        if key not in self._vectors:
            if buffer in self._loads:
                self._vectors[key] = self._loaded(buffer, piece)
            else:
                stage = self._makers[buffer]
                self._compute(stage, piece)
        if rounded and buffer not in self._loads and key not in self._rounded:
            self._round(buffer, piece)
        value = self._vectors[key]
        if self._keeping == "nothing":
            self._forget()
        return value

    def _forget(self) -> None:
        self._vectors.clear()
        self._rounded.clear()

    def _loaded(self, buffer: BufferId, piece: int) -> Value:
        number = self._loads[buffer]
        place = self._places(number, piece)
        if place.single:
            return self._picked(buffer, piece)
        wide = self._graph.buffers[buffer].format is ElementType.F32
        target = self._counter.vector()
        self._add(Operation("load", self._whole(piece), target, move=number, offset=place.word, wide=wide))
        return target

    def _round(self, buffer: BufferId, piece: int) -> None:
        """A value that passes an f16 FIFO is rounded by being stored to L1 and loaded again."""
        self._rounded.add((buffer, piece))
        format = self._graph.buffers[buffer].format
        if format is ElementType.E8M15:
            return
        if format is not ElementType.F16:
            stage = next(s for s in self._chain.computes if buffer in self._graph.stages[s].outs)
            raise refusal(stage, f"its result goes on as {format}; between stages a core has e8m15 and f16")
        value = self._in_vector(self._vectors[buffer, piece], piece)
        self._vectors[buffer, piece] = self._through_half(value, self._whole(piece))

    def _through_half(self, value: Value, length: int) -> Value:
        target = self._counter.vector()
        self._add(Operation("store", length, None, (value,)))
        self._add(Operation("load", length, target))
        return target

    def _in_vector(self, value: Value, piece: int) -> Value:
        if value.kind == "vector":
            return value
        target = self._counter.vector()
        self._add(Operation("spread", self._whole(piece), target, (value,)))
        return target

    # Computing.

    def _compute(self, stage: Stage, piece: int) -> None:
        """All outputs of a stage, for one piece."""
        results = self._results(stage, [self._asked(b, piece) for b in stage.ins], self._whole(piece))
        for buffer, value in zip(stage.outs, results, strict=True):
            self._vectors[buffer, piece] = value
            self._rounded.discard((buffer, piece))

    def _asked(self, buffer: BufferId, piece: int) -> Callable[[], Value]:
        """Gives an operand when it is needed: what is loaded then takes no register before."""
        if buffer in self._loads:
            return partial(self._get, buffer, piece)
        value = self._get(buffer, piece)
        return lambda: value

    def _results(self, stage: Stage, inputs: Sequence[Callable[[], Value]], length: int) -> list[Value]:
        """Of a Generic, or of a fold of one element, which goes through its tree like any other."""
        pool = _pool(stage)
        if pool is None:
            return self._run(_program(stage), inputs, length)
        return [folded(pool, 1, lambda _: inputs[0](), lambda left, right: self._node(pool, left, right, length))]

    def _node(self, pool: Pool, left: Value, right: Value, length: int) -> Value:
        """One node of a fold that goes across vectors."""
        made = self._counter.vector()
        self._add(Operation(JOINS[pool], length, made, (left, right)))
        return made

    def _run(self, program: Program, inputs: Sequence[Callable[[], Value]], length: int) -> list[Value]:
        taken: dict[int, Value] = {}
        registers: dict[int, Value] = {}
        predicates: dict[int, int] = {}

        def value(source: LaneInput | Register | LaneConstant) -> Value:
            match source:
                case LaneInput(index):
                    if index not in taken:
                        taken[index] = inputs[index]()
                    return taken[index]
                case Register(index):
                    return registers[index]
                case LaneConstant(code):
                    return Value("constant", code)

        for step in program.instructions:
            sources = tuple(value(source) for source in step.sources())
            if step.op in COMPARISONS:
                predicates[step.dst] = self._counter.predicate()
                self._add(Operation(step.op, length, None, sources, predicate=predicates[step.dst]))
            elif step.op.startswith("round_"):
                registers[step.dst] = self._rounding(step, sources[0], length)
            elif step.predicate is None:
                registers[step.dst] = self._counter.vector()
                self._add(Operation(step.op, length, registers[step.dst], sources))
            else:
                mask, target = predicates[step.predicate], registers[step.dst]
                self._add(Operation(step.op, length, target, sources, mask, step.when, partial=True))
        return [value(output.source) for output in program.outputs if not isinstance(output.source, Predicate)]

    def _rounding(self, step: Instruction, source: Value, length: int) -> Value:
        if step.op == "round_fp32":
            raise PlacementError("a cast to f32 makes NaNs quiet, and a vector core has nothing that does only that")
        if source.kind != "vector":
            spread = self._counter.vector()
            self._add(Operation("spread", length, spread, (source,)))
            source = spread
        return self._through_half(source, length)

    # Folding.

    def _scalar(self, buffer: BufferId) -> Value:
        if buffer in self._scalars:
            return self._scalars[buffer]
        if buffer in self._loads:
            self._scalars[buffer] = self._loaded(buffer, 0)
            return self._scalars[buffer]
        stage = self._makers[buffer]
        pool = _pool(stage)
        if pool is not None and stage.ins[0] in self._chain.spanning:
            results = [self._fold(pool, stage.ins[0])]
        else:
            results = self._results(stage, [partial(self._scalar, b) for b in stage.ins], self._whole(0))
        for out, value in zip(stage.outs, results, strict=True):
            self._scalars[out] = self._statistic(out, value)
        return self._scalars[buffer]

    def _picked(self, buffer: BufferId, piece: int) -> Value:
        """The one element that a load has for this piece of the row."""
        number = self._loads[buffer]
        place = self._places(number, piece)
        word, result = self._counter.vector(), self._counter.scalar()
        wide = self._graph.buffers[buffer].format is ElementType.F32
        self._add(Operation("load", LANES, word, move=number, offset=place.word, wide=wide))
        if place.lane:
            turned = self._counter.vector()
            self._add(Operation("shuffle", LANES, turned, (word, Value("constant", place.lane))))
            word = turned
        self._add(Operation("pick", LANES, result, (word,)))
        return result

    def _statistic(self, buffer: BufferId, value: Value) -> Value:
        """A statistic as its FIFO holds it."""
        format = self._graph.buffers[buffer].format
        if not any(buffer in self._graph.stages[s].ins for s in self._chain.computes):
            return value
        if format is ElementType.F16:
            return self._through_half(self._in_vector(value, 0), self._whole(0))
        if format is not ElementType.E8M15:
            raise refusal(self._chain.stages[0], f"a statistic goes on as {format}; a core has e8m15 and f16")
        return value

    def _fold(self, pool: Pool, buffer: BufferId) -> Value:
        """A statistic of the row: pieces are joined element by element, filled up with the identity, and folded."""
        total, length = self._joined(pool, buffer) if self._pieces > 1 else self._filled(pool, buffer)
        result = self._counter.scalar()
        self._add(Operation("reduce", length, result, (total,), pool=pool))
        if self._keeping != "all":
            self._forget()
        return result

    def _copied(self, value: Value, length: int, target: Value | None = None) -> Value:
        """0 + value: a move would lose the sign of a zero."""
        made = target or self._counter.vector()
        self._add(Operation("add", length, made, (_ZERO, value), partial=target is not None))
        return made

    def _filled(self, pool: Pool, buffer: BufferId) -> tuple[Value, int]:
        value = self._in_vector(self._get(buffer, 0), 0)
        if self._length % LANES == 0:
            return value, self._whole(0)
        (identity,) = pool.identity
        target = self._counter.vector()
        self._add(Operation("spread", self._whole(0), target, (Value("constant", code_of(float(identity))),)))
        return self._copied(value, self._length, target), self._whole(0)

    def _joined(self, pool: Pool, buffer: BufferId) -> tuple[Value, int]:
        total: Value | None = None
        first = self._in_vector(self._get(buffer, 0), 0)
        for piece in range(1, self._pieces):
            size = self._size(piece)
            part = self._get(buffer, piece)
            if total is None and size == VECTOR:
                total = self._counter.vector()
                self._add(Operation(JOINS[pool], VECTOR, total, (first, part)))
                continue
            if total is None:
                total = self._copied(first, VECTOR)
            self._add(Operation(JOINS[pool], size, total, (total, part), partial=size < VECTOR))
        assert total is not None
        return total, VECTOR


def _pool(stage: Stage) -> Pool | None:
    """What a stage folds with; None for a Generic."""
    assert isinstance(stage.kind, Compute)
    return stage.kind.op.pool if isinstance(stage.kind.op, Reduce) else None


def _program(stage: Stage) -> Program:
    """A Generic in the lane's format throughout: what a FIFO rounds is rounded where it is taken out."""
    assert isinstance(stage.kind, Compute)
    assert isinstance(stage.kind.op, Generic)
    formats = (ElementType.E8M15,)
    return compile_expressions(stage.kind.op.exprs, formats * len(stage.ins), formats * len(stage.outs))

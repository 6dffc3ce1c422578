"""Registers for a core's code, and its instructions: vector length, scalars, predicates that are read late enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from meshwright.ir.pool import Pool
from meshwright.numerics.lane_instructions import COMPARISONS
from meshwright.targets.ktpu.emit_vector_values import Operation, Value, slots_of
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.vector_formats import DType, Mask, Mode, Reduction, Source

RECORDED: Final = {Pool.SUM: Reduction.SUM, Pool.MAX: Reduction.MAX, Pool.MIN: Reduction.MIN}
VECTORS: Final = 16
SCALARS: Final = 16
PREDICATES: Final = 4
L1_WALKER: Final = 0
"""The descriptor that every load and store goes through: word after word from the offset on."""
_CONSTANTS: Final = {0x000000: 0, 0x3F8000: 1, 0xBF8000: 2}
"""The words that K0 to K2 hold."""
_TRANSIENT: Final = 3
"""Scalar registers for constants that have none of their own: an operation has at most three operands."""
SCALAR_ONLY: Final = frozenset({"spread", "shuffle"})
"""Operations whose constant operand has to be in a scalar register."""
_LONG: Final = 64
_MNEMONICS: Final = {"lt": "VCMPLT", "gt": "VCMPGT", "eq": "VCMPEQ"}


class OutOfRegistersError(Exception):
    """More values are alive at once than there are registers of a kind."""


def _last_uses(operations: Sequence[Operation]) -> tuple[dict[Value, int], dict[int, int]]:
    values: dict[Value, int] = {}
    predicates: dict[int, int] = {}
    for at, operation in enumerate(operations):
        for value in (*operation.sources, *([operation.dst] if operation.dst is not None else [])):
            values[value] = at
        if operation.predicate is not None:
            predicates[operation.predicate] = at
    return values, predicates


class _Pool:
    """Registers of one kind: taken where a value is made, given back after its last use."""

    def __init__(self, what: str, numbers: Sequence[int]) -> None:
        self._what = what
        self._free = list(reversed(numbers))
        self._count = len(numbers)
        self.most = 0
        self.taken: dict[int, int] = {}

    def take(self, value: int) -> int:
        if value not in self.taken:
            if not self._free:
                raise OutOfRegistersError(f"more than {self._count} {self._what} are alive at once")
            self.taken[value] = self._free.pop()
            self.most = max(self.most, len(self.taken))
        return self.taken[value]

    def give_back(self, value: int) -> None:
        self._free.append(self.taken.pop(value))


def _statistics(operations: Sequence[Operation]) -> int:
    """The most scalar values that are alive at once."""
    last, _ = _last_uses(operations)
    pool = _Pool("statistics", range(len(operations)))
    for at, operation in enumerate(operations):
        if operation.dst is not None and operation.dst.kind == "scalar":
            pool.take(operation.dst.number)
        for value in set(operation.sources) | ({operation.dst} if operation.dst is not None else set[Value]()):
            if value.kind == "scalar" and last[value] == at:
                pool.give_back(value.number)
    return pool.most


def _scalar_words(operations: Sequence[Operation]) -> list[int]:
    """Lengths and constants that come out of scalar registers, the most used first."""
    counted: Counter[int] = Counter()
    length: int | None = None
    for operation in operations:
        if operation.length != length:
            length = operation.length
            counted[length] += 1
        for value in operation.sources:
            if value.kind == "constant" and (value.number not in _CONSTANTS or operation.op in SCALAR_ONLY):
                counted[value.number] += 1
    return [word for word, _ in counted.most_common()]


class Coded(Struct, frozen=True):
    """An operation's instructions: those that set the vector length where it changes, constants, and its own.

    A load or store of L1 has the offset of the operation.
    """

    operation: Operation
    code: tuple[isa.VectorInstruction, ...]


class Assembly:
    """Instructions of `operations`. `preamble` sets scalars; `coded` does the work, operation by operation.

    Registers and the vector length stay from one run to the next, so runs can end between any two operations.

    Raises `OutOfRegistersError`.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.preamble: list[isa.VectorInstruction] = []
        self.coded: list[Coded] = []
        self._code: list[isa.VectorInstruction] = []
        words = _scalar_words(operations)
        statistics = _statistics(operations)
        own = SCALARS - statistics
        fixed = words if len(words) <= own else words[: max(own - _TRANSIENT, 0)]
        if len(fixed) < len(words) and own < _TRANSIENT:
            raise OutOfRegistersError(f"{statistics} statistics leave no scalar registers for lengths and constants")
        self._fixed = {word: number for number, word in enumerate(fixed)}
        first = len(fixed)
        self._transient = range(SCALARS - _TRANSIENT, SCALARS)
        self._scalars = _Pool("statistics", range(first, first + statistics))
        self._vectors = _Pool("vectors", range(VECTORS))
        self._predicates = _Pool("predicates", range(PREDICATES))
        self._length: int | None = None
        self._pending: dict[int, int] = {}
        self.preamble += [isa.SetImmediate(vd_sreg=register, imm=word) for word, register in self._fixed.items()]
        self.preamble.append(isa.SetMode(mode=Mode.FLAT))
        last, last_predicate = _last_uses(operations)
        for at, operation in enumerate(operations):
            self._operation(operation, at, last, last_predicate)
            self.coded.append(Coded(operation, tuple(self._code)))
            self._code.clear()

    def _operation(self, operation: Operation, at: int, last: dict[Value, int], last_predicate: dict[int, int]) -> None:
        if operation.length != self._length:
            self._length = operation.length
            self._code.append(isa.SetLength(va_sreg=self._scalar_word(operation.length, 0)))
        sources = [self._source(value, number) for number, value in enumerate(operation.sources)]
        for value in dict.fromkeys(operation.sources):
            if last[value] == at and value != operation.dst:
                self._give_back(value)
        dst = self._target(operation.dst)
        predicate = None if operation.predicate is None else self._predicates.take(operation.predicate)
        self._instruct(operation, sources, dst, predicate)
        if operation.dst is not None and last[operation.dst] == at:
            self._give_back(operation.dst)
        if operation.predicate is not None and last_predicate[operation.predicate] == at:
            self._predicates.give_back(operation.predicate)

    def _source(self, value: Value, number: int) -> tuple[Source, int]:
        match value.kind:
            case "vector":
                return Source.V, self._vectors.taken[value.number]
            case "scalar":
                return Source.S, self._scalars.taken[value.number]
            case "constant":
                if value.number in _CONSTANTS and value.number not in self._fixed:
                    return Source.K, _CONSTANTS[value.number]
                return Source.S, self._scalar_word(value.number, number)

    def _scalar_word(self, word: int, number: int) -> int:
        """A scalar register that holds `word`: its own, or the transient one of that number, set now."""
        if word in self._fixed:
            return self._fixed[word]
        register = self._transient[number]
        self._code.append(isa.SetImmediate(vd_sreg=register, imm=word))
        return register

    def _give_back(self, value: Value) -> None:
        if value.kind == "vector":
            self._vectors.give_back(value.number)
        elif value.kind == "scalar":
            self._scalars.give_back(value.number)

    def _target(self, value: Value | None) -> int:
        if value is None:
            return 0
        return (self._scalars if value.kind == "scalar" else self._vectors).take(value.number)

    def _instruct(
        self, operation: Operation, sources: list[tuple[Source, int]], dst: int, predicate: int | None
    ) -> None:
        drains = True
        match operation.op:
            case "load":
                dtype = DType.FP32 if operation.wide else DType.FP16
                self._code.append(isa.Load(dtype=dtype, ad=L1_WALKER, vd=dst, offset=operation.offset))
            case "store":
                self._code.append(isa.Store(ad=L1_WALKER, vd=sources[0][1], offset=operation.offset))
            case "spread":
                self._code.append(isa.Broadcast(sa=Source.S, vd=dst, va_sreg=self._in_scalar(operation, sources, 0)))
            case "shuffle":
                turn = self._in_scalar(operation, sources, 1)
                self._code.append(isa.Shuffle(vd=dst, va=sources[0][1], vb_sreg=turn))
            case "pick":
                self._code.append(isa.Broadcast(sa=Source.V, vd=dst, va_sreg=sources[0][1]))
            case "reduce":
                register = sources[0][1]
                kind = RECORDED[operation.pool]
                self._code += [
                    isa.SetMode(mode=Mode.TREE),
                    isa.Reduce(vd_sreg=dst, va=register, vb=register, kind=kind),
                    isa.SetMode(mode=Mode.FLAT),
                ]
            case _:
                drains = False
                self._alu(operation, sources, dst, predicate)
        if drains:
            self._pending = {}

    def _in_scalar(self, operation: Operation, sources: list[tuple[Source, int]], number: int) -> int:
        """The scalar register of an operand that can't come out of K."""
        selector, register = sources[number]
        return register if selector == Source.S else self._scalar_word(operation.sources[number].number, number)

    def _alu(self, operation: Operation, sources: list[tuple[Source, int]], dst: int, predicate: int | None) -> None:
        compare = operation.op in COMPARISONS
        mask = Mask.ALL
        if predicate is not None and not compare:
            mask = Mask.SET if operation.when else Mask.CLEAR
            if self._pending.get(predicate):
                # Nothing in the machine waits for a compare: an empty pipe does.
                self._code.append(isa.SetMode(mode=Mode.FLAT))
                self._pending = {}
        fields: dict[str, int] = {}
        for slot, (selector, register) in zip(slots_of(operation), sources, strict=True):
            fields |= {f"s{slot}": selector, f"v{slot}": register}
        op = _MNEMONICS.get(operation.op, f"V{operation.op.upper()}")
        self._code.append(isa.Alu(op=op, vd=dst, pr=predicate or 0, pm=mask, **fields))
        self._pending = {number: wait - 1 for number, wait in self._pending.items() if wait > 1}
        if compare and predicate is not None:
            self._pending[predicate] = 1 if operation.length >= _LONG else 2

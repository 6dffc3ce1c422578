"""`KtpuArithmetic`: what the card's silicon gives, bit for bit.

Products: operands quantised to MXFP7 blocks of 32 along K, sums in FP22. Elementwise work and folds: the E8M15 lane.
Sums over chips: the accumulator's own adder. An accumulator's words reach anything else only by draining, as
saturating fp16. Everything computed is computed by `meshwright.numerics`, which is held to the card's vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array, Products, Typed
from meshwright.evaluate.expression import evaluate_trees
from meshwright.evaluate.storage import checked_storage, storage_dtype, to_i32
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool
from meshwright.numerics import fp22, lane
from meshwright.numerics.lane_program import execute
from meshwright.numerics.product import matmul, matmul_fp16
from meshwright.targets.ktpu.lane_code import INPUTS, code_of, compile_expressions

VECTOR_LENGTH: Final = 128
"""Elements that one reduction of the vector core takes at most."""
LANES: Final = 16
_SAME: Final = Operand(0)
_FOLDS: Final[dict[Pool, lane.ReduceKind]] = {Pool.SUM: "sum", Pool.MAX: "max", Pool.MIN: "min"}
_JOINS: Final[dict[Pool, str]] = {Pool.SUM: "add", Pool.MAX: "max", Pool.MIN: "min"}


class KtpuArithmetic:
    """The card's number formats. f16 are numpy halves, fp22 and e8m15 codes in uint32."""

    @property
    def name(self) -> str:
        """The machine family."""
        return "ktpu"

    @property
    def accumulator(self) -> ElementType:
        """Sums stay in FP22."""
        return ElementType.FP22

    @property
    def drained(self) -> ElementType:
        """A drain gives saturating fp16."""
        return ElementType.F16

    def ingest(self, values: Array, format: ElementType) -> Array:
        """Elements as they are; `EvaluationError` where the dtype isn't the element type's."""
        self._known(format)
        return checked_storage(values, format)

    def _known(self, format: ElementType) -> None:
        if format is ElementType.BF16:
            raise EvaluationError("the ktpu machine has no bf16; use f16 or f32")

    def constant(self, value: float, format: ElementType) -> Array:
        """The value rounded into the element type."""
        return self.encode(np.asarray(value), format)

    def numbers(self, array: Array, format: ElementType) -> NDArray[np.float64] | NDArray[np.int64]:
        """The numbers that the elements stand for."""
        if format is ElementType.FP22:
            return fp22.decode(array)
        if format is ElementType.E8M15:
            return lane.decode(array)
        return array.astype(np.int64) if format.is_integer else array.astype(np.float64)

    def encode(self, numbers: Array, format: ElementType) -> Array:
        """Numbers rounded into the element type, nearest even."""
        self._known(format)
        if format is ElementType.FP22:
            return fp22.encode(numbers)
        if format.is_integer:
            return to_i32(numbers)
        if format is ElementType.E8M15:
            return lane.from_fp32(numbers.astype(np.float32))
        with np.errstate(over="ignore"):
            return numbers.astype(storage_dtype(format))

    def products(self, request: Products) -> Array:
        """Products of fp16 operands, quantised on their way in; FP22 words, or drained to fp16."""
        for operand in (request.a, request.b):
            if operand.format is not ElementType.F16:
                raise EvaluationError(f"a cluster multiplies f16 operands, not {operand.format}")
        a, b, pairs = request.a.array, request.b.array, (request.a_index, request.b_index)
        if request.out is ElementType.FP22:
            return matmul(a, b, start=request.start, pairs=pairs)
        if request.out is ElementType.F16:
            return matmul_fp16(a, b, start=request.start, pairs=pairs)
        raise EvaluationError(
            f"a cluster keeps sums in fp22 and drains f16; {request.out} takes a Compute stage on a vector core "
            "after it"
        )

    def elementwise(
        self, exprs: Sequence[Expr], operands: Sequence[Typed], outs: Sequence[ElementType], unit: Unit
    ) -> list[Array]:
        """Expressions on the vector lane, or sums in the accumulator."""
        if unit is Unit.ACCUMULATOR:
            words = [o.array for o in operands]
            return evaluate_trees(exprs, words, lambda _, sides: fp22.add(sides[0], sides[1]))
        drained = [self._drained(o) for o in operands]
        program = compile_expressions(tuple(exprs), tuple(o.format for o in drained), tuple(outs))
        return list(execute(program, tuple(o.array for o in drained)))

    def _drained(self, operand: Typed) -> Typed:
        if operand.format is not ElementType.FP22:
            return operand
        return Typed(fp22.drain(operand.array), ElementType.F16)

    def fold(self, pool: Pool, values: Typed, outs: Sequence[ElementType]) -> list[Array]:
        """Folds in the vector core's tree order.

        A row of more than 128 elements is folded element by element, 128 at a time from the front, into one of 128
        before the tree; the rest of the last part leaves the other elements alone. A row that isn't a multiple of 16
        is filled up with the pool's identity.
        """
        if pool not in _FOLDS:
            raise EvaluationError(f"the vector core has no {pool.value} reduction; it has sum, max and min")
        source = self._drained(values)
        if source.format not in INPUTS:
            raise EvaluationError(f"the vector core can't load {source.format}")
        row, format = self._one_vector(pool, source)
        missing = -row.shape[-1] % LANES
        if missing:
            filler = self._identity(pool, format)
            row = np.concatenate([row, np.full((*row.shape[:-1], missing), filler, row.dtype)], axis=-1)
        total = lane.reduce(_FOLDS[pool], row, format=INPUTS[format])
        return [self._converted(total, ElementType.E8M15, out) for out in outs]

    def _identity(self, pool: Pool, format: ElementType) -> Array:
        (identity,) = pool.identity
        code = np.asarray(code_of(float(identity)), dtype=np.uint32)
        return self._converted(code, ElementType.E8M15, format)

    def _one_vector(self, pool: Pool, source: Typed) -> tuple[Array, ElementType]:
        length = source.array.shape[-1]
        if length <= VECTOR_LENGTH:
            return source.array, source.format
        codes = self._converted(source.array, source.format, ElementType.E8M15)
        total = codes[..., :VECTOR_LENGTH].copy()
        for start in range(VECTOR_LENGTH, length, VECTOR_LENGTH):
            part = codes[..., start : start + VECTOR_LENGTH]
            size = part.shape[-1]
            # The lane adds slots a and c, and compares slots a and b.
            total[..., :size] = lane.apply(_JOINS[pool], total[..., :size], part, part)
        return total, ElementType.E8M15

    def _converted(self, array: Array, source: ElementType, target: ElementType) -> Array:
        if source is target:
            return array
        return self.elementwise([_SAME], [Typed(array, source)], [target], Unit.VECTOR)[0]

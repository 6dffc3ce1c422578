"""The numpy types that elements come and go in, and numbers rounded into whole ones."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Array
from meshwright.ir.formats import ElementType

_STORAGE: Final[dict[ElementType, np.dtype[Any]]] = {
    ElementType.F16: np.dtype(np.float16),
    ElementType.BF16: np.dtype(ml_dtypes.bfloat16),
    ElementType.F32: np.dtype(np.float32),
    ElementType.FP22: np.dtype(np.uint32),
    ElementType.E8M15: np.dtype(np.uint32),
    ElementType.I32: np.dtype(np.int32),
}
_I32: Final = np.iinfo(np.int32)


def storage_dtype(format: ElementType) -> np.dtype[Any]:
    """The numpy type that elements of `format` come and go in; accumulator and lane words are uint32 codes."""
    return _STORAGE[format]


def checked_storage(values: Array, format: ElementType) -> Array:
    """`values` as they are; `EvaluationError` where they haven't got the numpy type of `format`."""
    if values.dtype != storage_dtype(format):
        raise EvaluationError(
            f"{format} elements come as {storage_dtype(format)}, found {values.dtype}; round them first, for "
            "example with .astype"
        )
    return values


def to_i32(numbers: Array) -> NDArray[np.int32]:
    """Numbers toward zero into i32; `EvaluationError` for one that i32 hasn't got: it would wrap silently."""
    whole = np.trunc(numbers) if numbers.dtype.kind == "f" else numbers
    outside = ~((whole >= _I32.min) & (whole <= _I32.max))
    if outside.any():
        raise EvaluationError(f"{whole[outside].reshape(-1)[0]} doesn't fit i32, which ends at {_I32.max}")
    return whole.astype(np.int32)

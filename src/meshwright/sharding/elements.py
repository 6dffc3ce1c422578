"""From arrays of the host to elements that a machine holds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import SplitError
from meshwright.evaluate.storage import storage_dtype
from meshwright.ir.formats import ElementType

_MOST: Final = {
    ElementType.F16: 65504.0,
    ElementType.BF16: (2 - 2.0**-7) * 2.0**127,
    ElementType.F32: (2 - 2.0**-23) * 2.0**127,
}
"""The largest number of each type that values of a machine have."""


def as_elements(values: NDArray[Any], floats: ElementType) -> tuple[NDArray[Any], ElementType]:
    """Floats rounded to the element type `floats`, whole numbers as i32.

    Raises `SplitError` for a number that doesn't fit, and for what is neither.
    """
    if values.dtype.kind in "iu":
        if values.size and (values.min() < -(2**31) or values.max() >= 2**31):
            raise SplitError(
                f"whole numbers from {values.min()} to {values.max()} don't fit i32; put them as floats: "
                "values.astype(numpy.float32)"
            )
        return values.astype(np.int32), ElementType.I32
    if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
        raise SplitError(
            f"an array of {values.dtype} can't be put on a machine, which holds floats ({floats}) and whole numbers "
            "(i32); convert it: values.astype(numpy.float32)"
        )
    with np.errstate(over="ignore"):
        rounded = values.astype(storage_dtype(floats))
    whole = np.isfinite(rounded)
    if not whole.all():
        wrong: float = values[~whole].reshape(-1)[0].item()
        raise SplitError(
            f"a value of {wrong:g} doesn't fit {floats}, which ends at {_MOST[floats]:g} and here has no infinities "
            "and no nan; scale the values first"
        )
    return rounded, floats

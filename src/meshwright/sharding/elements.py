"""From arrays of the host to elements that a machine holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import SplitError
from meshwright.ir.formats import ElementType


def as_elements(values: NDArray[Any]) -> tuple[NDArray[Any], ElementType]:
    """Floats rounded to f16, whole numbers as i32; `SplitError` for a number that doesn't fit, and other types."""
    if values.dtype.kind in "iu":
        if values.size and (values.min() < -(2**31) or values.max() >= 2**31):
            raise SplitError(
                f"whole numbers from {values.min()} to {values.max()} don't fit i32; put them as floats: "
                "values.astype(numpy.float16)"
            )
        return values.astype(np.int32), ElementType.I32
    if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
        raise SplitError(
            f"an array of {values.dtype} can't be put on a machine, which holds floats (f16) and whole numbers (i32); "
            "convert it: values.astype(numpy.float16)"
        )
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        wrong = np.asarray(values[~np.isfinite(halves)]).reshape(-1)[0]
        raise SplitError(
            f"a value of {float(wrong):g} doesn't fit f16, which ends at 65504 and here has no infinities and no nan; "
            "scale the values first"
        )
    return halves, ElementType.F16

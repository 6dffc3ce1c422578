"""Kernels that are several: named steps, each an ordinary kernel that is split and placed by itself.

Units differ from mesh to mesh, so what needs matrix units and vector units is no single kernel: a mesh without
vector cores would have to refuse the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from meshwright.errors import KernelError
from meshwright.kernels.kernel import Kernel

Value = TypeVar("Value")


class Call(Struct, frozen=True):
    """One kernel on named values; its result gets a name as well."""

    result: str
    kernel: Kernel
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.result} = {self.kernel.name}({', '.join(self.operands)})"


class Composition(Struct, frozen=True):
    """Calls in order. The last one's result is the composition's."""

    name: str
    inputs: tuple[str, ...]
    calls: tuple[Call, ...]

    def through(self, run: Callable[..., Value], *values: Value) -> Value:
        """Runs the calls by `run(kernel, *operands)`, for example a group's `each`, over `values` in input order.

        Raises `KernelError` for another number of values.
        """
        if len(values) != len(self.inputs):
            raise KernelError(f"{self.name} takes {', '.join(self.inputs)}; {len(values)} values are given")
        known = dict(zip(self.inputs, values, strict=True))
        for call in self.calls:
            known[call.result] = run(call.kernel, *(known[name] for name in call.operands))
        return known[self.calls[-1].result]

    def __str__(self) -> str:
        lines = (f"  {call}" for call in self.calls)
        return "\n".join((f"{self.name}({', '.join(self.inputs)}):", *lines))

"""Element types: what one element of a tensor or a block is. What is computed in is the machine's."""

from __future__ import annotations

from enum import StrEnum


class ElementType(StrEnum):
    """The type of an element, by the name that printed shapes use: `f16[32, 384]`."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    FP22 = "fp22"
    """The matmul accumulator's `{sign, E7, M14}`; lives in accumulators and on links, not in DRAM."""
    E8M15 = "e8m15"
    """The vector lane's `{sign, e8, m15}`; lives in vector registers."""
    I32 = "i32"

    @property
    def bits(self) -> int:
        """How many bits an element takes where it is stored or sent."""
        return _BITS[self]

    @property
    def is_integer(self) -> bool:
        """Whether values are whole numbers (indices, counts)."""
        return self is ElementType.I32

    @property
    def in_memory(self) -> bool:
        """Whether DRAM can hold it (the unit-internal formats can't be stored)."""
        return self not in (ElementType.FP22, ElementType.E8M15)

    def __str__(self) -> str:
        return self.value


_BITS = {
    ElementType.F16: 16,
    ElementType.BF16: 16,
    ElementType.F32: 32,
    ElementType.FP22: 22,
    ElementType.E8M15: 24,
    ElementType.I32: 32,
}

"""Field tables: what the bits of a word mean, declared once, and the encoder and decoder that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from meshwright.errors import MeshwrightError


class InstructionError(MeshwrightError, ValueError):
    """An instruction word that the machine has not got, or one that it would take for another."""


class Field(Struct, frozen=True):
    """Bits `[hi:lo]` of a word.

    default: the value where none is given; None where one must be. const: the only value that the bits may have.
    signed: two's complement. upper: bits `(hi, lo)` where the part of the value that `[hi:lo]` has no room for goes
    on. names: names of the values 0, 1, ..., as assembler text writes them. text: one line for the documentation.
    """

    name: str
    hi: int
    lo: int
    default: int | None = 0
    const: int | None = None
    signed: bool = False
    upper: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    text: str = ""

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """`(hi, lo)` of each run of bits, the low bits of the value first."""
        return ((self.hi, self.lo),) if self.upper is None else ((self.hi, self.lo), self.upper)

    @property
    def width(self) -> int:
        """Bits of the value."""
        return sum(hi - lo + 1 for hi, lo in self.parts)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value."""
        if self.signed:
            return -(1 << self.width - 1), (1 << self.width - 1) - 1
        return 0, (1 << self.width) - 1

    @property
    def bits(self) -> str:
        """`[hi:lo]`, or `[bit]`, of every part, high bits of the value first."""
        return "".join(f"[{hi}:{lo}]" if hi != lo else f"[{hi}]" for hi, lo in reversed(self.parts))

    def insert(self, value: int) -> int:
        """The value's bits at their place in the word."""
        word, rest = 0, value & (1 << self.width) - 1
        for hi, lo in self.parts:
            size = hi - lo + 1
            word |= (rest & (1 << size) - 1) << lo
            rest >>= size
        return word

    def extract(self, word: int) -> int:
        """The value of the bits in `word`."""
        value, at = 0, 0
        for hi, lo in self.parts:
            size = hi - lo + 1
            value |= (word >> lo & (1 << size) - 1) << at
            at += size
        return value - (1 << self.width) if self.signed and value >> self.width - 1 else value


class Format:
    """The fields of one kind of word, `bits` wide; bits of no field are reserved and zero.

    Raises `InstructionError` where fields overlap, leave the word, share a name, or have a default or constant that
    they can't hold.
    """

    def __init__(self, name: str, bits: int, fields: tuple[Field, ...]) -> None:
        self.name, self.bits, self.fields = name, bits, fields
        taken: dict[int, str] = {}
        seen: set[str] = set()
        for field in fields:
            if field.name in seen:
                raise InstructionError(f"format {name}: two fields are called {field.name}")
            seen.add(field.name)
            for bit in self._bits_of(field):
                if bit in taken:
                    raise InstructionError(f"format {name}: bit {bit} is in both {taken[bit]} and {field.name}")
                taken[bit] = field.name
            for what, value in (("default", field.default), ("constant", field.const)):
                low, high = field.limits
                if value is not None and not low <= value <= high:
                    raise InstructionError(
                        f"format {name}: {what} {value} of field {field.name} does not fit its {field.width} bits "
                        f"{field.bits}: {low} to {high}"
                    )
        self.reserved = (1 << bits) - 1 & ~sum(1 << bit for bit in taken)
        """Mask of the bits that belong to no field."""

    def _bits_of(self, field: Field) -> Iterator[int]:
        for hi, lo in field.parts:
            if not 0 <= lo <= hi < self.bits:
                raise InstructionError(
                    f"format {self.name}: field {field.name} is at [{hi}:{lo}]; the word has bits [{self.bits - 1}:0]"
                )
            yield from range(lo, hi + 1)

    @cached_property
    def free(self) -> dict[str, Field]:
        """The fields that an instruction states, by name: all but the constant ones."""
        return {field.name: field for field in self.fields if field.const is None}

    def check(self, values: Mapping[str, int]) -> None:
        """`InstructionError` for an unknown field, a missing one, or a value that its field can't hold.

        The hardware would keep the low bits of such a value and say nothing.
        """
        for name in values:
            if name not in self.free:
                raise InstructionError(f"{self.name} has no field {name!r}; it has {', '.join(self.free) or 'none'}")
        for field in self.free.values():
            value = values.get(field.name, field.default)
            low, high = field.limits
            if value is None:
                raise InstructionError(f"{self.name}: field {field.name} is missing, and it has no default")
            if not low <= value <= high:
                wraps = field.extract(field.insert(value))
                raise InstructionError(
                    f"{self.name}: {field.name} = {value} does not fit its {field.width} bits {field.bits}: "
                    f"{low} to {high}; the machine would read {wraps}"
                )

    def pack(self, values: Mapping[str, int]) -> int:
        """The word with these fields, others at their default; raises as `check` does."""
        self.check(values)
        word = 0
        for field in self.fields:
            value = field.const if field.const is not None else values.get(field.name, field.default)
            word |= field.insert(value or 0)
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """Field values of a word.

        Raises `InstructionError` where the word is wider than the format, a constant field has another value, or a
        reserved bit is set.
        """
        shown = f"{self.name}: word {word:#0{self.bits // 4 + 2}x}"
        if not 0 <= word < 1 << self.bits:
            raise InstructionError(f"{shown} is not of {self.bits} bits")
        for field in self.fields:
            if field.const is not None and field.extract(word) != field.const:
                raise InstructionError(
                    f"{shown} has {field.extract(word)} in {field.name} {field.bits}, which is {field.const} in every "
                    f"{self.name}"
                )
        if extra := word & self.reserved:
            raise InstructionError(f"{shown} sets reserved bits {_runs(extra)}, which are zero in every {self.name}")
        return {field.name: field.extract(word) for field in self.free.values()}


def _runs(mask: int) -> str:
    """`[7:5] [0]`: the set bits of a mask, highest first."""
    found: list[str] = []
    while mask:
        hi = mask.bit_length() - 1
        lo = hi
        while lo and mask >> lo - 1 & 1:
            lo -= 1
        found.append(f"[{hi}:{lo}]" if hi != lo else f"[{hi}]")
        mask &= (1 << lo) - 1
    return " ".join(found)

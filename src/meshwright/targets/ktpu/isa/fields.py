"""Field tables: what the bits of a word mean, declared once, and the encoder and decoder that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
        self.reserved = (1 << bits) - 1 & ~self._declared()
        """Mask of the bits that belong to no field."""
        self.free = {field.name: field for field in fields if field.const is None}
        """The fields that an instruction states, by name: all but the constant ones."""
        # Worked out once: a large program is thousands of words.
        self._constants = [field for field in fields if field.const is not None]
        self._fixed = sum(field.insert(field.const or 0) for field in self._constants)
        self._ranges = [(name, field.default, *field.limits) for name, field in self.free.items()]
        self._places = [
            (name, field, field.lo, field.limits[1], field.upper is None and not field.signed)
            for name, field in self.free.items()
        ]

    def _declared(self) -> int:
        """Mask of the bits that belong to a field; raises where the declaration can't be right."""
        taken: dict[int, str] = {}
        seen: set[str] = set()
        for field in self.fields:
            if field.name in seen:
                raise InstructionError(f"format {self.name}: two fields are called {field.name}")
            seen.add(field.name)
            for bit in self._bits_of(field):
                if bit in taken:
                    raise InstructionError(f"format {self.name}: bit {bit} is in both {taken[bit]} and {field.name}")
                taken[bit] = field.name
            low, high = field.limits
            for what, value in (("default", field.default), ("constant", field.const)):
                if value is not None and not low <= value <= high:
                    raise InstructionError(
                        f"format {self.name}: {what} {value} of field {field.name} does not fit its {field.width} bits "
                        f"{field.bits}: {low} to {high}"
                    )
        return sum(1 << bit for bit in taken)

    def _bits_of(self, field: Field) -> Iterator[int]:
        for hi, lo in field.parts:
            if not 0 <= lo <= hi < self.bits:
                raise InstructionError(
                    f"format {self.name}: field {field.name} is at [{hi}:{lo}]; the word has bits [{self.bits - 1}:0]"
                )
            yield from range(lo, hi + 1)

    def check(self, values: Mapping[str, int]) -> None:
        """`InstructionError` for an unknown field, a missing one, or a value that its field can't hold.

        The hardware would keep the low bits of such a value and say nothing.
        """
        for name in values:
            if name not in self.free:
                raise InstructionError(f"{self.name} has no field {name!r}; it has {', '.join(self.free) or 'none'}")
        for name, default, low, high in self._ranges:
            value = values.get(name, default)
            if value is None:
                raise InstructionError(f"{self.name}: field {name} is missing, and it has no default")
            if not low <= value <= high:
                field = self.free[name]
                wraps = field.extract(field.insert(value))
                raise InstructionError(
                    f"{self.name}: {name} = {value} does not fit its {field.width} bits {field.bits}: {low} to {high}; "
                    f"the machine would read {wraps}"
                )

    def pack(self, values: Mapping[str, int]) -> int:
        """The word with these fields, others at their default; raises as `check` does."""
        self.check(values)
        word = self._fixed
        for name, field, lo, _, plain in self._places:
            # `check` has seen to it that there is a value.
            value = values.get(name, field.default or 0)
            word |= value << lo if plain else field.insert(value)
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """Field values of a word.

        Raises `InstructionError` where the word is wider than the format, a constant field has another value, or a
        reserved bit is set.
        """
        if not 0 <= word < 1 << self.bits:
            raise InstructionError(f"{self._shown(word)} is not of {self.bits} bits")
        for field in self._constants:
            if (found := field.extract(word)) != field.const:
                raise InstructionError(
                    f"{self._shown(word)} has {found} in {field.name} {field.bits}, which is {field.const} "
                    f"in every {self.name}"
                )
        if extra := word & self.reserved:
            raise InstructionError(
                f"{self._shown(word)} sets reserved bits {_runs(extra)}, which are zero in every {self.name}"
            )
        return {
            name: word >> lo & mask if plain else field.extract(word) for name, field, lo, mask, plain in self._places
        }

    def _shown(self, word: int) -> str:
        return f"{self.name}: word {word:#0{self.bits // 4 + 2}x}"


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

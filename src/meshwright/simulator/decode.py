"""Instruction words of a cluster as the simulator takes them: the fields that the instruction looks at, and no more.

The tables are those of `targets.ktpu.isa`, compiled into shifts and masks once: a large product is some two thousand
words, each seen once, so decoding must cost less than the work that a word stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from meshwright.simulator.faults import undefined
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm, InstructionError, decode_cluster
from meshwright.targets.ktpu.isa.disassembler import line_of

ClusterWord: TypeAlias = Mapping[str, int]
"""Values of the fields that an instruction uses, by name, and its opcode as `op`."""

FILL, GEMM, DRAIN = 1, 2, 3
_REFUSED: Final = {FILL: ("peers", "npeer"), GEMM: ("emit", "fuse"), DRAIN: ("emit", "fuse")}
"""Fields that must be looked at although nothing may set them."""


class _Plan:
    """Shifts and masks of one instruction's fields."""

    def __init__(self, kind: type[Fill | Gemm | Drain], op: int) -> None:
        names = dict.fromkeys((*kind.uses, *_REFUSED[op]))
        fields = [kind.format.free[name] for name in names]
        self.reserved = kind.format.reserved
        parts = [field.parts[0] for field in fields]
        self.shifts = [(name, lo, (1 << hi - lo + 1) - 1) for name, (hi, lo) in zip(names, parts, strict=True)]
        self.upper = [
            (name, lo, (1 << hi - lo + 1) - 1, parts[at][0] - parts[at][1] + 1)
            for at, (name, field) in enumerate(zip(names, fields, strict=True))
            for hi, lo in field.parts[1:]
        ]

    def unpack(self, op: int, word: int) -> dict[str, int]:
        """The fields of a word with this opcode."""
        found = {name: word >> shift & mask for name, shift, mask in self.shifts}
        found["op"] = op
        for name, shift, mask, width in self.upper:
            found[name] |= (word >> shift & mask) << width
        return found


_PLANS: Final = {op: _Plan(kind, op) for op, kind in ((FILL, Fill), (GEMM, Gemm), (DRAIN, Drain))}


@lru_cache(maxsize=1 << 14)
def decode(word: int) -> ClusterWord:
    """Opcode and used fields of a cluster's word; trouble for one that it gives no meaning."""
    op = word >> 252
    plan = _PLANS.get(op)
    if plan is None:
        raise undefined(f"opcode {op} means nothing to a cluster; it has 1 FILL, 2 GEMM, 3 DRAIN")
    if word & plan.reserved:
        raise undefined("reserved bits are set")
    return plan.unpack(op, word)


def shown(word: int) -> str:
    """Disassembly of a cluster's word; of one that is none, the word."""
    try:
        return line_of(decode_cluster(word))
    except InstructionError:
        return f"{word:#066x}"

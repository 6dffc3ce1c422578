"""What the sources about the machine leave open, as named choices."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Assumptions(Struct, frozen=True, kw_only=True):
    """Named choices where the sources are silent or contradict each other; the defaults follow the RTL where known.

    control_base, control_stride: the host sees the registers of mesh m's agent at `control_base + m * control_stride`.
    unit_version: what units publish as their version. l1_burst: a burst to a cluster's L1 carries an entry's packed
    words, four granules an entry and bank 1 after bank 0, since the quantiser sits at the memory; or is refused.
    remote_writes: whether a unit's write to an address of another mesh crosses (the machine may still say that writes
    don't). doorbell_read: how a doorbell register reads: count low and tag above it (RTL), or received low and sent in
    bits 31:16 (specification).
    """

    control_base: int = 0x80_0000
    control_stride: int = 0x1_0000
    unit_version: int = 4
    l1_burst: Literal["packed_words", "not_modelled"] = "packed_words"
    remote_writes: Literal["cross", "refused"] = "cross"
    doorbell_read: Literal["rtl", "specification"] = "rtl"

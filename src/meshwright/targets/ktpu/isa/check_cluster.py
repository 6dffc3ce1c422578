"""What a cluster would do wrong without saying so: checked against the machine, before anything runs."""

from __future__ import annotations

from typing import Final

from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Fill, Gemm
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.span import Peer, Place, check_peer, check_span

MOST_ENTRIES: Final = 255
"""Of one FILL; 256 wraps to 0, and the unit waits forever."""
WORD_BYTES: Final = 32
ENTRY_BYTES: Final = 256
QUANTISED_ENTRY_BYTES: Final = 128
SIGNAL: Final = 1


def check_cluster(instruction: ClusterInstruction, place: Place) -> None:
    """`InstructionError` where the instruction, alone, can't do what it says on this machine.

    Checked: fields that it doesn't look at stay at their defaults; a FILL streams 1 to 255 entries into one bank;
    a GEMM's tile fits the accumulator and its operands one bank each; addresses are global and name the unit's own
    mesh; a drain moves whole bursts, or goes to a unit that is there, acknowledged across meshes. Source: the card's
    specification.
    """
    values = instruction.values
    instruction.format.check(values)
    for field in instruction.format.free.values():
        value = values[field.name]
        if field.name not in instruction.uses and value != field.default:
            raise InstructionError(
                f"{instruction.mnemonic}: {field.name} = {value}: no {instruction.mnemonic} uses it ({field.text}); "
                f"leave it at {field.default}"
            )
    match instruction:
        case Fill():
            _check_fill(instruction, place)
        case Gemm():
            _check_gemm(instruction, place)
        case Drain():
            _check_drain(instruction, place)


def _check_fill(fill: Fill, place: Place) -> None:
    if not 1 <= fill.n <= MOST_ENTRIES:
        raise InstructionError(
            f"FILL: n = {fill.n}: 1 to {MOST_ENTRIES} entries; the count is kept in 8 bits, 256 wraps to 0, and the "
            "unit waits forever; use two FILLs"
        )
    _check_bank("FILL", "eoff", fill.eoff, fill.n, place)
    entry = QUANTISED_ENTRY_BYTES if fill.preq else ENTRY_BYTES
    check_span(place, f"FILL of {fill.n} entries", fill.addr, fill.n * entry, WORD_BYTES)


def _check_bank(what: str, offset: str, first: int, count: int, place: Place) -> None:
    entries = place.machine.cluster.l1_entries
    if first + count > entries:
        raise InstructionError(
            f"{what}: {count} entries from {offset} = {first} on; a bank of {place.machine.name} holds {entries}"
        )


def _check_gemm(gemm: Gemm, place: Place) -> None:
    what = f"GEMM {gemm.gm} x {gemm.gn} sub-tiles over {gemm.nk} K blocks"
    if min(gemm.gm, gemm.gn, gemm.nk) < 1:
        raise InstructionError(f"{what}: gm, gn and nk are 1 at least")
    tiles = place.machine.cluster.accumulator_tiles
    if gemm.gm * gemm.gn > tiles:
        raise InstructionError(
            f"{what}: {gemm.gm * gemm.gn} sub-tiles; the accumulator of {place.machine.name} holds {tiles}, and the "
            "address of a sub-tile past them wraps"
        )
    _check_bank(f"{what}, A", "aoff", gemm.aoff, gemm.gm * gemm.nk, place)
    _check_bank(f"{what}, B", "boff", gemm.boff, gemm.gn * gemm.nk, place)


def _check_drain(drain: Drain, place: Place) -> None:
    what = f"DRAIN of {drain.n} sub-tiles"
    tiles = place.machine.cluster.accumulator_tiles
    if not 1 <= drain.n <= tiles:
        raise InstructionError(f"{what}: 1 to {tiles}, which is what the accumulator of {place.machine.name} holds")
    if drain.dnode:
        _check_drain_to_unit(drain, what, place)
        return
    for name in ("dst_x", "dst_y", "dbuf", "dflags", "dack_y", "dack_x", "dmesh", "dfin"):
        if value := drain.values[name]:
            raise InstructionError(f"{what}: {name} = {value} is for a drain to a unit, and dnode = 0 drains to memory")
    burst = place.machine.dram.burst_bytes
    check_span(place, what, drain.addr, -(-drain.n * WORD_BYTES // burst) * burst, burst)


def _check_drain_to_unit(drain: Drain, what: str, place: Place) -> None:
    if drain.dflags > SIGNAL:
        raise InstructionError(f"{what}: dflags = {drain.dflags}; bit 0, signal when complete, is the only flag")
    check_peer(
        place,
        what,
        Peer(
            dst=(drain.dst_x, drain.dst_y),
            buffer=drain.dbuf,
            granule=drain.addr,
            count=drain.n,
            mesh=drain.dmesh,
            fin=(drain.dfin & 15, drain.dfin >> 4),
            ack=(drain.dack_x, drain.dack_y),
        ),
    )

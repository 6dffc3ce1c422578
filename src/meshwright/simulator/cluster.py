"""A matmul cluster: FILL, GEMM and DRAIN over two sides of L1 and the resident tiles."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.numerics import mxfp7
from meshwright.simulator.accumulator import GRANULES, Accumulator
from meshwright.simulator.batch import Batches, Reads
from meshwright.simulator.decode import FILL, GEMM, ClusterWord, decode, shown
from meshwright.simulator.faults import Rejected, not_modelled, undefined, unpredictable, unsupported
from meshwright.simulator.operands import Bank, Operands, Part, Segment
from meshwright.simulator.ordering import Event, Guarded, Issue
from meshwright.simulator.unit import (
    BURST,
    DONE,
    GRANULE,
    LONGEST_FILL,
    Ahead,
    Completion,
    Queued,
    Setting,
    Unit,
    UnitData,
)

ENTRY_WORDS: Final = 4
"""32-byte words of a quantised entry in L1."""
L1_BUFFERS: Final = 2
ACCUMULATOR: Final = 2


class _Arrived(Struct):
    """Words of an entry that came in by bursts: which are there, and their bytes `[4, 32]`."""

    there: list[bool]
    words: NDArray[np.uint8]


class Cluster(Unit):
    """Unit type `MG`."""

    kind = "MG"
    type_code = 0x4D47
    buffers = 3
    acknowledges_rejected = True

    def __init__(self, setting: Setting, operands: Operands) -> None:
        super().__init__(setting)
        figures = setting.machine.cluster
        if (figures.l1_sides, figures.l1_banks, figures.sub_tile, figures.k_block) != (2, 2, (4, 4), 32):
            raise not_modelled("clusters other than of 4 x 4 x 32 with two sides of two banks")
        self._banks = [
            [Bank(f"L1 {side}, bank {bank}", figures.l1_entries) for bank in range(2)] for side in ("A", "B")
        ]
        self.accumulator = Accumulator(figures.accumulator_tiles, operands, setting.kernels)
        self._read_now: Reads = {}
        self._tiles, self._l1 = Guarded(), Guarded()
        self._arrived: dict[tuple[int, int, int], _Arrived] = {}
        self._batches = Batches(setting, self._banks, self.accumulator, self._tiles, self._l1)

    def shown(self, word: int) -> str:
        """The disassembly of an instruction word."""
        return shown(word)

    def execute_ahead(self) -> Ahead | None:
        """Execute a run of instructions as a whole; words of bursts that wait in L1 are for `execute`."""
        if self._arrived or type(self).execute is not Cluster.execute:
            return None
        done = self._batches.execute(self.queue, self.label, self.started, self._read_now)
        if done is None:
            return None
        ahead, self._read_now = done
        return ahead

    def execute(self, queued: Queued, event: Event) -> Completion | None:
        """Execute FILL, GEMM or DRAIN."""
        word = decode(queued.word)
        if word["op"] == FILL:
            return self._fill(word, queued.issue, event)
        if word["op"] == GEMM:
            self._gemm(word, queued.issue, event)
            return DONE
        return self._drain(word, queued.issue, event)

    # FILL

    def _fill(self, word: ClusterWord, issue: Issue, event: Event) -> Completion | None:
        count, first = word["n"], word["eoff"]
        if word["npeer"] or word["peers"]:
            raise unsupported("FILL shared with peers: a follower can't tell which fill an entry belongs to")
        if not 0 < count <= LONGEST_FILL:
            self.waiting = (
                f"FILL of {count} entries: the request counts them in 8 bits, 1 to {LONGEST_FILL}, so fewer arrive "
                "than the unit waits for"
            )
            return None
        side, number = word["sel"], word["fbank"]
        bank = self._banks[side][number]
        if first + count > bank.entries:
            raise undefined(f"FILL of entries {first} to {first + count - 1} of {bank.label}, which has {bank.entries}")
        busy = self._read_now.get((side, number))
        if busy is not None and first < busy[1] and busy[0] < first + count:
            raise unpredictable(
                f"FILL of entries {first} to {first + count - 1} of {bank.label}, of which the last GEMM's sweep may "
                f"still read {busy[0]} to {busy[1] - 1}: a GEMM retires when its sweep starts. Fill the other bank, or "
                "start a sweep or a DRAIN in between"
            )
        self._ordered(self._l1, issue, event, bank.label)
        bank.fill(first, self.setting.wires.fill(word["addr"], count, bool(word["preq"]), issue, event))
        if self._arrived:
            for entry in self._arrived_in(side, number, first, count):
                del self._arrived[entry]
        return DONE

    def _arrived_in(self, side: int, bank: int, first: int, count: int) -> list[tuple[int, int, int]]:
        return [key for key in self._arrived if key[:2] == (side, bank) and first <= key[2] < first + count]

    def _ordered(self, state: Guarded, issue: Issue, event: Event, what: str) -> None:
        if (other := state.use(issue, event)) is not None:
            raise unpredictable(
                f"it uses {what}, which {other.what} changes; the host had not seen that complete when it issued this"
            )

    # GEMM

    def _gemm(self, word: ClusterWord, issue: Issue, event: Event) -> None:
        gm, gn, nk = word["gm"], word["gn"], word["nk"]
        if word["emit"] or word["fuse"]:
            raise not_modelled("GEMM with emit or fuse set")
        if not (gm and gn and nk):
            raise undefined(f"GEMM of {gm} x {gn} sub-tiles over {nk} K blocks: what a count of 0 does is not stated")
        self._ordered(self._tiles, issue, event, "the accumulator")
        self._ordered(self._l1, issue, event, "L1")
        abank, aoff, bbank, boff = word["abank"], word["aoff"], word["bbank"], word["boff"]
        a, b = self._part(0, abank, aoff, gm, nk), self._part(1, bbank, boff, gn, nk)
        self.accumulator.sweep((gm, gn), a, b, opens=not word["acc"], anchor=word["anchor"])
        # The sweep before this one has ended: the array takes one at a time.
        self._read_now = {(0, abank): (aoff, aoff + gm * nk), (1, bbank): (boff, boff + gn * nk)}

    # DRAIN

    def _drain(self, word: ClusterWord, issue: Issue, event: Event) -> Completion | None:
        count = word["n"]
        if word["emit"] or word["fuse"]:
            raise not_modelled("DRAIN with emit or fuse set")
        if not count:
            raise undefined("DRAIN of 0 sub-tiles: what it does is not stated")
        self._ordered(self._tiles, issue, event, "the accumulator")
        if word["dnode"]:
            return self._drain_to_unit(word, issue)
        self._drain_to_memory(word["addr"], count, issue, event)
        self._read_now = {}
        return DONE

    def _drain_to_memory(self, address: int, count: int, issue: Issue, event: Event) -> None:
        burst = BURST * GRANULE
        if address % burst:
            raise undefined(f"DRAIN to {address:#x}: it moves whole bursts of {burst} bytes, aligned to that")
        halves = self.accumulator.halves(count)
        wires = self.setting.wires
        wires.write(address, halves.reshape(-1).view(np.uint8), issue, event)
        if rest := -count % BURST:
            wires.spoil(address + count * GRANULE, rest * GRANULE, issue, event)

    def _drain_to_unit(self, word: ClusterWord, issue: Issue) -> Completion | None:
        setting, buffer, offset = self.setting, word["dbuf"], word["addr"]
        dst, final = (word["dst_x"], word["dst_y"]), (word["dfin"] & 15, word["dfin"] >> 4)
        remote = word["dfin"] != 0
        ack = (word["dack_x"], word["dack_y"])
        if not remote and dst == setting.at:
            self.waiting = f"its own burst: DRAIN to ({dst[0]}, {dst[1]}), where the unit itself is"
            return None
        if offset >> 16:
            raise undefined(f"DRAIN to granule {offset}: a descriptor has 16 bits for it")
        to_tiles = buffer == ACCUMULATOR
        if to_tiles and offset % GRANULES:
            raise undefined(f"DRAIN to granule {offset} of the resident tiles: a sub-tile is two, so it must be even")
        if to_tiles:
            data = self.accumulator.granules(word["n"])
        else:
            data = self.accumulator.halves(word["n"]).view(np.uint8).reshape(-1, GRANULE)
        for start in range(0, len(data), BURST):
            setting.wires.send(
                UnitData(
                    source=(setting.mesh, setting.at),
                    mesh=word["dmesh"] if remote else setting.mesh,
                    dst=final if remote else dst,
                    port=dst if remote else None,
                    data=data[start : start + BURST],
                    issue=issue,
                    buffer=buffer,
                    offset=offset + start,
                    signal=bool(word["dflags"] & 1),
                    ack=ack,
                )
            )
        self._read_now = {}
        return DONE

    # Bursts from other units

    def receive(self, burst: UnitData, event: Event) -> None:
        """Add a burst into the resident tiles, or put it into L1."""
        if burst.buffer > ACCUMULATOR:
            raise Rejected(f"a cluster has buffers 0, 1 and 2; the burst is for {burst.buffer}, and is counted out")
        state: tuple[Guarded, str] = (self._tiles, "the resident tiles")
        if burst.buffer < L1_BUFFERS:
            state = self._l1, "L1"
        if (other := state[0].arrive(burst.origin, burst.issue, event)) is not None:
            raise unpredictable(
                f"a burst from mesh {burst.source[0]}, {burst.source[1]}, changes {state[1]}, which {other.what} uses "
                "too; the host had not seen that complete when it issued the burst. Only one sender's burst may be "
                "open at a time"
            )
        if burst.buffer < L1_BUFFERS:
            self._receive_words(burst)
            return
        if burst.offset % GRANULES or len(burst.data) % GRANULES:
            raise undefined(
                f"{len(burst.data)} granules for the resident tiles from granule {burst.offset} on: a sub-tile is two"
            )
        self.accumulator.add(burst.offset // GRANULES, burst.data)

    def _receive_words(self, burst: UnitData) -> None:
        if self.setting.assumptions.l1_burst == "not_modelled":
            raise not_modelled("bursts to L1, which the assumption l1_burst leaves out")
        banks = self._banks[burst.buffer]
        limit = sum(bank.entries for bank in banks) * ENTRY_WORDS
        if burst.offset + len(burst.data) > limit:
            raise undefined(
                f"granules {burst.offset} to {burst.offset + len(burst.data) - 1} of L1, which has {limit} a side"
            )
        for at, word in enumerate(burst.data, burst.offset):
            entry, which = divmod(at, ENTRY_WORDS)
            bank, entry = divmod(entry, banks[0].entries)
            busy = self._read_now.get((burst.buffer, bank), (0, 0))
            if busy[0] <= entry < busy[1]:
                raise unpredictable(
                    f"a burst writes entry {entry} of {banks[bank].label}, which the last GEMM's sweep may still read"
                )
            arrived = self._arrived.setdefault(
                (burst.buffer, bank, entry), _Arrived([False] * ENTRY_WORDS, np.zeros((ENTRY_WORDS, GRANULE), np.uint8))
            )
            arrived.words[which] = word
            arrived.there[which] = True

    def _part(self, side: int, bank: int, first: int, groups: int, blocks: int) -> Part:
        """What a sweep reads of one side."""
        if self._arrived:
            self._collect(side, bank, first, groups * blocks)
        return self._banks[side][bank].part(first, groups, blocks)

    def _collect(self, side: int, bank: int, first: int, count: int) -> None:
        """Entries that bursts wrote, as the sweep needs them now."""
        for key in self._arrived_in(side, bank, first, count):
            arrived = self._arrived[key]
            label = f"entry {key[2]} of {self._banks[side][bank].label}"
            if not all(arrived.there):
                raise undefined(f"{label} is read and only words {_which(arrived.there)} of it have arrived")
            try:
                blocks = mxfp7.unpack_words(arrived.words[None, None])
            except NumericsError as error:
                raise undefined(f"{label} came in by bursts and is no quantised entry: {error}") from None
            segment = Segment(self.setting.wires.number(), blocks.q.reshape(1, 4, 32), blocks.scale.reshape(1, 4))
            self._banks[side][bank].fill(key[2], segment)
            del self._arrived[key]


def _which(flags: list[bool]) -> str:
    return ", ".join(str(index) for index, flag in enumerate(flags) if flag)

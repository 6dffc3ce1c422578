"""Tilings of matrix products on clusters: which are legal, what each costs, and which is worth more.

A tiling cuts `[m, k] @ [n, k].T` into tiles of `gm x gn` sub-tiles, each summed over K in sweeps of `nk` K blocks that
continue the resident tile. It is data: `candidates` lists the legal ones, `ranked` puts them in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from meshwright.errors import PlacementError
from meshwright.kernels.nest import cuts
from meshwright.machine import MachineSpec
from meshwright.machine.figures import FillCost, MemoryPortSpec
from meshwright.targets.ktpu.emit_matrix_fills import BANKS, LONGEST_FILL, Side, usable_entries
from meshwright.targets.ktpu.layout import K_BLOCK, SUB_TILE

FIELD: Final = 255
"""gm, gn and nk are fields of 8 bits, and wrap silently past them. Source: the card's specification."""
PACED: Final = {1: 5, 2: 3, 3: 2, 4: 2}
"""Cycles from one step to the next in sweeps of so few sub-tiles over several K blocks: commands to one tile address
have to be 5 cycles apart. Source: the card's specification; tests/golden/timing_ktpu.json, gemm."""
_BURST: Final = 8
_DEPTHS: Final = (1, 2, 4)
_COUNTED: Final = 48
Order: TypeAlias = Literal["cycles", "words"]


class Setting(Struct, frozen=True):
    """What of a machine decides between tilings.

    entries: of a bank that can be addressed. sub_tiles: of the accumulator. clusters: that share the product; ports:
    that serve them, each as many as any. port: what is known of one.
    """

    entries: int
    sub_tiles: int
    clusters: int
    ports: int
    port: MemoryPortSpec

    @classmethod
    def of(cls, machine: MachineSpec, clusters: int = 1) -> Setting:
        """Of `clusters` clusters of one mesh, which come port by port as coordinates do."""
        cluster = machine.cluster
        ports = min((len(mesh.ports) for mesh in machine.meshes if mesh.ports), default=1)
        return cls(usable_entries(cluster.l1_entries), cluster.accumulator_tiles, clusters, ports, machine.memory_port)


class Tiling(Struct, frozen=True):
    """A product and the tiles it is cut into; all else follows.

    m, n, k: of one matrix product. batch: the leading axes, of `a` and, unless `b_shared`, of `b`.
    """

    m: int
    n: int
    k: int
    gm: int
    gn: int
    nk: int
    setting: Setting
    batch: tuple[int, ...] = ()
    b_shared: bool = False

    @property
    def tile(self) -> tuple[int, int, int]:
        """(m, n, k) of a block, in elements: what a kernel is told."""
        return SUB_TILE * self.gm, SUB_TILE * self.gn, K_BLOCK * self.nk

    @property
    def grid(self) -> tuple[int, ...]:
        """Tiles along the leading axes, down and across."""
        return (*self.batch, math.ceil(self.m / self.tile[0]), math.ceil(self.n / self.tile[1]))

    @property
    def chunks(self) -> int:
        """Sweeps of a tile: all but the first continue what is resident."""
        return math.ceil(self.k / self.tile[2])

    @property
    def share(self) -> tuple[int, ...]:
        """Tiles along the leading axes, down and across of the largest part that one cluster is dealt."""
        return cuts(self.grid, self.setting.clusters)

    @property
    def tiles(self) -> int:
        """Tiles of the largest part."""
        return math.prod(self.share)

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """As `share`, of each cluster that has any, in the order in which they are dealt to; the first is largest."""
        axes = zip(self.grid, self.share, strict=True)
        sizes = [[min(part, count - start) for start in range(0, count, part)] for count, part in axes]
        return tuple(itertools.product(*sizes))

    @property
    def at_work(self) -> int:
        """How many clusters have a part."""
        return len(self.parts)

    @property
    def padding(self) -> float:
        """Multiply-adds that nobody asked for, as a share of those that were: over rows, columns and K."""
        m, n, k = self.tile
        done = math.prod(self.grid) * m * n * self.chunks * k
        return done / (math.prod(self.batch) * self.m * self.n * self.k) - 1

    @property
    def issues(self) -> int:
        """Steps of a sweep: a sub-tile and a K block each."""
        return self.gm * self.gn * self.nk

    @property
    def sweep_cycles(self) -> int:
        """Cycles in which a sweep issues its steps, idle ones between small tiles' steps included."""
        apart = PACED.get(self.gm * self.gn, 1) if self.nk > 1 else 1
        return (self.issues - 1) * apart + 1

    @property
    def sweeps(self) -> int:
        """Sweeps of the largest part."""
        return self.tiles * self.chunks

    @property
    def fills(self) -> tuple[int, int]:
        """Operands of a sweep that are filled, of A and of B, by the cluster with the largest part."""
        return self.fills_of(self.share)

    def fills_of(self, part: tuple[int, ...]) -> tuple[int, int]:
        """Operands of a sweep that are filled, of A and of B, for `part` (tiles along the leading axes, down, across).

        Panels are kept in L1 as long as there is room, and what is needed again last goes first: see `panel_fills`.
        """
        *leading, down, across = part
        batch, chunks = math.prod(leading), self.chunks
        a = batch * down * panel_fills(across, 1, chunks, self._slots(self.gm))
        rounds = batch if self.b_shared else 1
        b = batch // rounds * panel_fills(rounds * down, across, chunks, self._slots(self.gn))
        return a, b

    def _slots(self, groups: int) -> int:
        return BANKS * (self.setting.entries // (groups * self.nk))

    @property
    def operand_words(self) -> int:
        """L1 entries that the cluster with the largest part fills; of 4 rows by 32 of K each."""
        a, b = self.fills
        return (a * self.gm + b * self.gn) * self.nk

    @property
    def words_a_cycle(self) -> float:
        """Entries filled for each cycle in which sweeps issue: what memory has to keep up with."""
        return self.operand_words / (self.sweeps * self.sweep_cycles)

    @property
    def instructions(self) -> int:
        """Words of the largest part: FILLs, GEMMs and DRAINs."""
        a, b = self.fills
        return a * len(self.operand_fills(self.gm)) + b * len(self.operand_fills(self.gn)) + self.sweeps + self.tiles

    def operand_fills(self, groups: int) -> list[int]:
        """Entries of each FILL for one sweep's operand of `groups` rows of entries."""
        size = groups * self.nk
        return [min(LONGEST_FILL, size - done) for done in range(0, size, LONGEST_FILL)]

    @property
    def cycles(self) -> float | None:
        """Estimated cycles from the first FILL to the last DRAIN; None where the machine states no memory timing.

        Words are executed one after the other; a sweep goes on beside the FILLs after it, a DRAIN waits for it. The
        slower of the cluster with the largest part and its memory port, which serves one FILL or burst at a time.
        """
        cost = Cost.of(self.setting)
        return None if cost is None else cost.cycles(self)


class Cost(Struct, frozen=True):
    """Cycles of FILL, GEMM and DRAIN. Source: rules that reproduce tests/golden/timing_ktpu.json."""

    setting: Setting
    fill: FillCost

    @property
    def port(self) -> MemoryPortSpec:
        """What is known of a memory port."""
        return self.setting.port

    @classmethod
    def of(cls, setting: Setting) -> Cost | None:
        """For operands quantised on the way in, or, where a machine only states that, quantised before."""
        fill = setting.port.quantised or setting.port.prequantised
        return None if fill is None else cls(setting, fill)

    def fill_cycles(self, entries: int) -> float:
        """From accepting a FILL to its completion; one read in flight pays the latency for every entry."""
        if self.port.reads_in_flight > 1:
            return self.fill.start_cycles + entries * self.fill.entry_cycles + self.port.latency_cycles
        return self.fill.start_cycles + entries * (self.fill.entry_cycles + self.port.latency_cycles) - (entries == 1)

    def cycles(self, tiling: Tiling) -> float:
        """See `Tiling.cycles`."""
        ports, parts = self.setting.ports, tiling.parts
        once = self._operand(tiling, tiling.gm), self._operand(tiling, tiling.gn)
        often = [count / tiling.sweeps for count in tiling.fills]
        cluster = self._cluster(tiling, (once[0], often[0]), (once[1], often[1]))
        served = {part: self._served(tiling, part, once) for part in set(parts)}
        port = max(sum(served[part] for part in parts[at::ports]) for at in range(ports)) + tiling.sweep_cycles
        waiting = math.ceil(len(parts) / ports) - 1
        return max(cluster + waiting * sum(once), port)

    def _served(self, tiling: Tiling, part: tuple[int, ...], once: tuple[float, float]) -> float:
        """Cycles of its port that a part takes; nobody waits for the last tile's bursts."""
        bursts = (math.prod(part) - 1) * math.ceil(tiling.gm * tiling.gn / _BURST)
        fills = sum(count * cycles for count, cycles in zip(tiling.fills_of(part), once, strict=True))
        return fills + bursts * (self.port.write_burst_cycles + self.port.latency_cycles)

    def _operand(self, tiling: Tiling, groups: int) -> float:
        """Of one operand of a sweep; an instruction is accepted a cycle after the one before is done."""
        return sum(self.fill_cycles(entries) + 1 for entries in tiling.operand_fills(groups))

    @staticmethod
    def _cluster(tiling: Tiling, *operands: tuple[float, float]) -> float:
        """In order. Operands come as cycles to fill one, and how often a sweep has to.

        That A's has to be filled says nothing about B's: A's are at the beginning of a row of tiles, B's in the first
        row or everywhere.
        """
        small = tiling.gm * tiling.gn <= max(PACED)
        apart = tiling.sweep_cycles + 33 if small else tiling.issues + 22
        total = 0.0
        (a, often_a), (b, often_b) = operands
        for chance, filling in (
            (often_a * often_b, a + b),
            (often_a * (1 - often_b), a),
            ((1 - often_a) * often_b, b),
            ((1 - often_a) * (1 - often_b), 0.0),
        ):
            # A GEMM starts 2 cycles after it is accepted, and the next word is accepted 6 after.
            total += chance * (filling + (tiling.chunks - 1) * max(filling + 6, apart))
        ending = 2 + tiling.sweep_cycles + 32 + drain_cycles(tiling.gm * tiling.gn)
        return tiling.tiles * (total + ending)


def drain_cycles(sub_tiles: int) -> int:
    """From accepting a DRAIN to memory to its completion at the unit; routers hold what memory hasn't taken yet.

    Measured for 1, 2, 4, 8, 9 and multiples of 8 sub-tiles (tests/golden/timing_ktpu.json, drain_to_memory).
    """
    bursts, rest = divmod(sub_tiles, _BURST)
    if not bursts:
        return 20 + 2 * rest
    return 26 + 10 * bursts + (min(10, 2 * rest + 1) if rest else 0)


def panel_fills(rounds: int, tiles: int, chunks: int, slots: int) -> int:
    """How often operands are filled that `tiles` tiles of `chunks` sweeps take in turn, `rounds` times over.

    slots: operands that the two banks hold, an even number. Exact where the panel fits. Otherwise counted with `Side`,
    which programs are made with, if it is up to 48 operands; of many rounds the first are counted, and the middle ones
    of those stand for the rest (6 % off at most where that was tried). For longer panels it is the least possible,
    which programs came within 2.4 % of.
    """
    length = tiles * chunks
    if length <= slots or rounds == 1:
        return length
    if length > _COUNTED:
        return least_fills(length, rounds, slots)
    counted = min(rounds, max(4, 4 * _COUNTED // length))
    each = _counted_fills(counted, tiles, chunks, slots)
    middle = sum(each[1:-1]) / (counted - 2) if counted > 2 else 0.0
    return max(least_fills(length, rounds, slots), sum(each) + round(middle * (rounds - counted)))


@lru_cache(maxsize=4096)
def _counted_fills(rounds: int, tiles: int, chunks: int, slots: int) -> tuple[int, ...]:
    """Fills of each round."""
    panel = range(tiles * chunks)
    side = Side(0, 1, slots // BANKS, [*panel] * rounds)
    found: list[int] = []
    for _ in range(rounds):
        fills, busy = 0, None
        for operand in panel:
            # A tile ends with a DRAIN, after which nothing is being read.
            slot, words = side.take(operand, busy if operand % chunks else None)
            fills, busy = fills + len(words), slot.bank
        found.append(fills)
    return tuple(found)


def least_fills(length: int, rounds: int, slots: int) -> int:
    """Fewest fills for operands 0 to `length - 1` taken in turn, `rounds` times over, with room for `slots` of them.

    What is needed again last makes room (Belady's rule): after the first fills, of every `length - 1` uses in turn
    `length - slots` miss and `slots - 1` hit.
    """
    if length <= slots or rounds == 1:
        return length
    uses = length * rounds - slots
    whole, rest = divmod(uses, length - 1)
    return slots + whole * (length - slots) + min(rest, length - slots)


def candidates(
    m: int,
    n: int,
    k: int,
    machine: MachineSpec,
    clusters: int = 1,
    batch: tuple[int, ...] = (),
    *,
    b_shared: bool = False,
) -> tuple[Tiling, ...]:
    """Every legal tiling worth having, in no order of merit.

    Legal: gm, gn and nk fit their 8 bits, the tile fits the accumulator, and an operand of a sweep fits one bank, so
    that the other one can be filled meanwhile. Worth having: of the tilings with as many tiles down, across and along
    K, the smallest; at most twice as many tiles as the fewest, or four a cluster where that is more; sweeps as deep as
    a bank holds, half and a quarter of that.

    Raises `PlacementError` for a product without elements or for no cluster.
    """
    if min(m, n, k, clusters, *batch) < 1:
        asked = " x ".join(map(str, (*batch, m, n, k)))
        raise PlacementError(f"tilings of {asked} on {clusters} clusters of {machine.name}: each number is 1 at least")
    return tuple(candidates_in(m, n, k, Setting.of(machine, clusters), batch, b_shared=b_shared))


def candidates_in(
    m: int, n: int, k: int, setting: Setting, batch: tuple[int, ...] = (), *, b_shared: bool = False
) -> Iterator[Tiling]:
    """What `candidates` lists, for numbers of 1 at least."""
    blocks = math.ceil(k / K_BLOCK)
    side = min(FIELD, setting.entries, setting.sub_tiles)
    down, across = (evenly(math.ceil(size / SUB_TILE), side) for size in (m, n))
    shapes = [(gm, gn) for gm in down for gn in across if gm * gn <= setting.sub_tiles]
    counts = {(gm, gn): math.ceil(m / (SUB_TILE * gm)) * math.ceil(n / (SUB_TILE * gn)) for gm, gn in shapes}
    most = max(2 * min(counts.values()), math.ceil(4 * setting.clusters / math.prod(batch)))
    for gm, gn in shapes:
        if counts[gm, gn] > most:
            continue
        fewest = math.ceil(blocks / min(FIELD, setting.entries // max(gm, gn)))
        for nk in dict.fromkeys(math.ceil(blocks / min(blocks, fewest * parts)) for parts in _DEPTHS):
            yield Tiling(m, n, k, gm, gn, nk, setting, batch, b_shared)


def evenly(size: int, most: int) -> list[int]:
    """The part sizes of at most `most` that are the smallest for their number of parts, largest first."""
    found: list[int] = []
    part = min(size, most)
    while part:
        part = math.ceil(size / math.ceil(size / part))
        found.append(part)
        part -= 1
    return found


def ranked(tilings: Iterable[Tiling], by: Order | None = None) -> tuple[Tiling, ...]:
    """The tilings, best first.

    by "cycles": the fewest estimated cycles; tilings that tie, and all where nothing is known of memory, as by "words".
    By "words": the most clusters with work, the fewest operand words a cycle of the sweeps, the least padding. What
    still ties goes by the fewest instructions, then the largest gm, gn and nk, so that the order is always the same.

    by: None for "cycles", which orders the products that were measured better: docs/ktpu/tiling.md.
    """

    def merit(tiling: Tiling) -> tuple[float, ...]:
        cycles = None if by == "words" else tiling.cycles
        size = (-tiling.gm, -tiling.gn, -tiling.nk)
        words = (-tiling.at_work, tiling.words_a_cycle, tiling.padding, tiling.instructions)
        return (0.0 if cycles is None else cycles, *words, *size)

    return tuple(sorted(tilings, key=merit))

"""Programs for clusters, memory images for them, and a host that dispatches as the card's procedure says."""

import numpy as np

from meshwright.machine import load
from meshwright.simulator import Card
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Drain, Fill, Flit, Gemm

CARD = load("ktpu-v13p")
WINDOW = CARD.address.host_window_shift
FILL_LIMIT = 255


def words(*instructions):
    return [word for instruction in instructions for word in instruction.words()]


def image(x, groups, blocks):
    """fp16 bits `[R, K]` in the order in which fills stream them: row tile, K chunk, group, block, 4 rows, 32 of K."""
    rows, k = x.shape
    tiles, chunks = -(-rows // (4 * groups)), -(-k // (32 * blocks))
    full = np.zeros((tiles * groups * 4, chunks * blocks * 32), dtype=np.uint16)
    full[:rows, :k] = x
    return full.reshape(tiles, groups, 4, chunks, blocks, 32).transpose(0, 3, 1, 4, 2, 5).copy()


def drained(data, instances, gm, gn):
    """The matrix out of sub-tiles: `data` uint16 in the order (gi, gj, gm, gn, 4, 4)."""
    gi, gj = instances
    return (
        np.frombuffer(data, np.uint16)
        .reshape(gi, gj, gm, gn, 4, 4)
        .transpose(0, 2, 4, 1, 3, 5)
        .reshape(gi * gm * 4, gj * gn * 4)
    )


def fills(address, entries, **where):
    """FILLs of a run of entries, 255 at most each, from entry `eoff` of a bank on."""
    first = where.pop("eoff", 0)
    return [
        Fill(
            addr=address + 256 * done,
            n=min(FILL_LIMIT, entries - done),
            eoff=first + done,
            **where,
        )
        for done in range(0, entries, FILL_LIMIT)
    ]


class Product:
    """A product of fp16 bits `a` `[M, K]` and `b` `[N, K]` on one cluster of a mesh: images, and the instructions.

    K chunks alternate between the banks.
    """

    def __init__(self, a, b, gm, gn, nk, *, mesh=0, base=0):
        self.gm, self.gn, self.nk, self.mesh = gm, gn, nk, mesh
        self.a, self.b = image(a, gm, nk), image(b, gn, nk)
        self.tiles, self.chunks = (self.a.shape[0], self.b.shape[0]), self.a.shape[1]
        self.at_a = base
        self.at_b = up(self.at_a + self.a.nbytes)
        self.at_c = up(self.at_b + self.b.nbytes)
        self.tile_bytes = up(gm * gn * 32)
        self.end = self.at_c + self.tiles[0] * self.tiles[1] * self.tile_bytes

    def address(self, local):
        return CARD.global_addr(self.mesh, local)

    def load(self, card):
        card.write_block(card.machine.host_addr(self.mesh, self.at_a), self.a.tobytes())
        card.write_block(card.machine.host_addr(self.mesh, self.at_b), self.b.tobytes())

    def tile(self, i, j):
        """The instructions that leave the sums of one instance in the resident tiles."""
        found = []
        for chunk in range(self.chunks):
            bank = chunk % 2
            a = self.at_a + (i * self.chunks + chunk) * self.gm * self.nk * 256
            b = self.at_b + (j * self.chunks + chunk) * self.gn * self.nk * 256
            found += fills(self.address(a), self.gm * self.nk, sel=0, fbank=bank)
            found += fills(self.address(b), self.gn * self.nk, sel=1, fbank=bank)
            found.append(Gemm(gm=self.gm, gn=self.gn, nk=self.nk, abank=bank, bbank=bank, acc=int(chunk > 0)))
        return found

    def drain(self, i, j):
        return Drain(addr=self.address(self.at_c + (i * self.tiles[1] + j) * self.tile_bytes), n=self.gm * self.gn)

    def program(self):
        gi, gj = self.tiles
        return [step for i in range(gi) for j in range(gj) for step in (*self.tile(i, j), self.drain(i, j))]

    def result(self, card, rows, columns):
        gi, gj = self.tiles
        data = b"".join(
            card.read_block(card.machine.host_addr(self.mesh, self.at_c + at * self.tile_bytes), self.gm * self.gn * 32)
            for at in range(gi * gj)
        )
        return drained(data, self.tiles, self.gm, self.gn)[:rows, :columns]


def up(value, multiple=256):
    return -(-value // multiple) * multiple


class Host:
    """Dispatch by registers, as the procedure of the card says; the agent of one mesh."""

    def __init__(self, card, mesh):
        self.card, self.mesh = card, mesh

    def read(self, offset):
        return self.card.read64(self.card.control(self.mesh, offset))

    def write(self, offset, value):
        self.card.write64(self.card.control(self.mesh, offset), value)

    def count(self, at):
        return self.read(reg.node_status(*at)) >> 8 & 0xFFFF

    def stage(self, slot, word, *, last):
        staged = Flit(type=5, payload=word, last=int(last)).staged()
        self.card.write_block(self.card.control(self.mesh, reg.stage_slot(slot)), np.array(staged, np.uint64).tobytes())

    def kick(self, at, first, count):
        assert not self.read(reg.PROG_STAT) & 1
        for offset, value in (
            (reg.PROG_DST, reg.node_index(*at)),
            (reg.PROG_BASE, first),
            (reg.PROG_LEN, count),
            (reg.PROG_KICK, 1),
        ):
            self.write(offset, value)

    def round(self, programs, *, credit=32, extra=None):
        """One round: instruction words by place, and how many more signals are expected by place."""
        assert sum(map(len, programs.values())) <= 128
        before = {at: self.count(at) for at in (*programs, *(extra or {}))}
        self.write(reg.PROG_CRED, credit)
        slot, spans = 0, {}
        for at, program in programs.items():
            for index, word in enumerate(program):
                self.stage(slot + index, word, last=index == len(program) - 1)
            spans[at] = slot
            slot += len(program)
        for at, first in spans.items():
            self.kick(at, first, len(programs[at]))
        expected = {at: len(program) for at, program in programs.items()}
        for at, more in (extra or {}).items():
            expected[at] = expected.get(at, 0) + more
        for at, signals in expected.items():
            want = (before[at] + signals & 0xFFFF) << 8 | 1
            found = self.read(reg.node_status(*at))
            assert found & 0x00FF_FF01 == want, (at, hex(found), hex(want))

    def run(self, at, program, **options):
        """A program of any length, in windows of 128 words."""
        for start in range(0, len(program), 128):
            self.round({at: program[start : start + 128]}, **options)


def fresh(**options):
    return Card(CARD, **options)

"""Jobs for a card in software, a transport that writes down what is done, and a clock that only goes when told."""

import numpy as np
import pytest
from tests.simulator.programs import CARD, Product

from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.numerics import product
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.runtime.transport import InProcess
from meshwright.simulator import Card
from meshwright.simulator import registers as reg
from meshwright.simulator.unit import Completion, Unit, UnitData
from meshwright.targets.ktpu.emit_matrix import Arrival
from meshwright.targets.ktpu.isa import Desc, Drain, Gemm, Program, Run, decode_cluster, load_code
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.disassembler import line_of

MESHES = CARD.mesh_ids


def site(mesh, x, y):
    return Site(ChipId(mesh), x, y)


def clusters(mesh):
    return tuple(site(mesh, *at) for at in CARD.coords(mesh, "MG"))


def cores(mesh):
    return tuple(site(mesh, *at) for at in CARD.coords(mesh, "VC"))


def halves(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16).view(np.uint16)


class Sums:
    """A product of `m x k` and `n x k` on one cluster, its operands at byte `base` of the cluster's mesh."""

    def __init__(self, where, base, seed=0, m=16, k=96, n=16, tile=(2, 2, 1)):
        self.site, self.shape = where, (m, n)
        self.a, self.b = halves(seed, m, k), halves(seed + 1000, n, k)
        self.product = Product(self.a, self.b, *tile, mesh=int(where.chip), base=base)

    @property
    def end(self):
        return self.product.end

    def blocks(self):
        image, mesh = self.product, int(self.site.chip)
        return [
            (CARD.host_addr(mesh, image.at_a), image.a.tobytes()),
            (CARD.host_addr(mesh, image.at_b), image.b.tobytes()),
        ]

    def load(self, transport):
        transport.submit(self.blocks())

    def job(self, what="product", after=()):
        return UnitJob(self.site, Program("MG", tuple(self.product.program())), what, tuple(after))

    def right(self, card):
        found = self.product.result(card, *self.shape)
        return np.array_equal(found, product.matmul_fp16(self.a, self.b).view(np.uint16))


def sent(source, target, sub_tiles=4, offset=0):
    """A DRAIN of resident tiles into another cluster's, acknowledged to the agent of that one's mesh."""
    ack = CARD.mesh(target.chip).agent
    fields = {"n": sub_tiles, "addr": offset, "dnode": 1, "dbuf": 2, "dflags": 1, "dack_x": ack[0], "dack_y": ack[1]}
    if source.chip == target.chip:
        return Drain(dst_x=target.x, dst_y=target.y, **fields)
    port = CARD.mesh(source.chip).agent
    return Drain(dst_x=port[0], dst_y=port[1], dmesh=target.chip, dfin=target.y << 4 | target.x, **fields)


def arrival(target, sub_tiles=4):
    return Arrival(target, -(-2 * sub_tiles // 8))


MEMORY = 0x40_0000


def copy_payloads(core, source, target, words=2):
    """A vector core copies words of 32 bytes from one place of its mesh to another."""
    code = load_code((isa.VectorFill(ad=0, l1off=0), isa.Barrier(), isa.VectorDrain(ad=1, l1off=0), isa.Halt()))
    walks = [
        payload
        for number, local in enumerate((source, target))
        for payload in (
            Desc.base(number, CARD.global_addr(core.chip, local)),
            Desc.dim(number, 0, stride=32, bound=words),
        )
    ]
    return (*code, *walks, Run())


def copy_job(core, source, target, words=2, what="copy", after=()):
    return UnitJob(core, Program("VC", copy_payloads(core, source, target, words)), what, tuple(after))


def host_copy(mesh, source, target, count, what="host copy", after=(), make=None):
    to = CARD.host_addr(mesh, target)
    make = make or (lambda data: [(to, data[0])])
    return HostJob(what, ((CARD.host_addr(mesh, source), count),), make, tuple(after))


class Recorder:
    """Another transport; `log` has every call as (name, what was asked, what came)."""

    def __init__(self, transport):
        self.transport, self.log = transport, []

    @property
    def agents(self):
        return self.transport.agents

    def poll(self, addresses):
        found = self.transport.poll(addresses)
        self.log.append(("poll", tuple(addresses), found))
        return found

    def submit(self, writes):
        writes = [(address, bytes(data)) for address, data in writes]
        self.log.append(("submit", writes, None))
        self.transport.submit(writes)

    def collect(self, spans):
        found = self.transport.collect(spans)
        self.log.append(("collect", tuple(spans), found))
        return found

    def read64(self, address):
        raise AssertionError("the dispatcher batches what it reads")

    write64 = read_block = write_block = read64

    def close(self):
        self.transport.close()

    # What was done

    def calls(self, name):
        return [entry for entry in self.log if entry[0] == name]

    def placed(self, address):
        """(mesh, offset) of a register; None for memory."""
        if address >> CARD.address.host_window_shift:
            return None
        return divmod(address - self.agents.base, self.agents.stride)

    def registers(self):
        """(call number, mesh, offset, value) of every register that was written; staging in whole blocks."""
        for number, (name, asked, _) in enumerate(self.log):
            if name == "submit":
                for address, data in asked:
                    if (place := self.placed(address)) is not None:
                        value = data if place[1] >= reg.STAGE else int.from_bytes(data, "little")
                        yield number, *place, value


class Clock:
    """Seconds that pass only when somebody sleeps or `tick` of them with each look."""

    def __init__(self, tick=0.0):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now

    def sleep(self, seconds):
        self.now += seconds


# Units that do next to nothing


class Quick(Unit):
    """A cluster that completes every word at once; a DRAIN to a unit sends bursts of nothing, and is acknowledged.

    hang: which of its words never completes, counted from 0.
    """

    kind, type_code, buffers, acknowledges_rejected = "MG", 0x4D47, 3, True
    hang = None

    def execute(self, queued, event):
        if self.hang is not None and self.retired == self.hang:
            self.waiting = "nothing"
            return None
        word = decode_cluster(queued.word)
        if isinstance(word, Drain) and word.dnode:
            self.send(word, queued.issue)
        return Completion()

    def send(self, word, issue):
        far = word.dfin != 0
        granules = 2 * word.n
        for start in range(0, granules, 8):
            self.setting.wires.send(
                UnitData(
                    source=(self.setting.mesh, self.setting.at),
                    mesh=word.dmesh if far else self.setting.mesh,
                    dst=(word.dfin & 15, word.dfin >> 4) if far else (word.dst_x, word.dst_y),
                    port=(word.dst_x, word.dst_y) if far else None,
                    data=np.zeros((min(8, granules - start), 32), np.uint8),
                    issue=issue,
                    buffer=2,
                    signal=True,
                    ack=(word.dack_x, word.dack_y),
                )
            )

    def receive(self, burst, event):
        pass

    def shown(self, word):
        return line_of(decode_cluster(word))


class QuickCore(Quick):
    """A vector core that completes every payload at once."""

    kind, type_code, buffers = "VC", 0x5643, 2

    def execute(self, queued, event):
        return Completion()

    def shown(self, word):
        return hex(word)


def hanging(kind, mesh, at, word):
    """A factory of quick units of a type, of which one hangs at a word."""

    def make(setting):
        unit = kind(setting)
        if (setting.mesh, setting.at) == (mesh, at):
            unit.hang = word
        return unit

    return make


# Dispatchers


def gemms(where, count=1, what="gemms", after=(), **fields):
    return UnitJob(where, Program("MG", (Gemm(**fields),) * count), what, tuple(after))


def quick(machine=CARD, **units):
    return Card(machine, units={"MG": Quick, "VC": QuickCore, **units})


def dispatching(card, machine=CARD, wrap=lambda transport: transport, **options):
    clock = Clock(tick=0.001)
    return Dispatcher(wrap(InProcess(card)), machine, clock=clock, sleep=clock.sleep, **options)


def message_of(error, dispatcher, jobs):
    with pytest.raises(error) as caught:
        dispatcher.run(jobs)
    assert type(caught.value) is error
    return str(caught.value)


class Cut(Recorder):
    """Raises at call number `at`, before it is carried out or after."""

    def __init__(self, transport, at, error, after=False):
        super().__init__(transport)
        self.at, self.error, self.after = at, error, after

    def _one(self, call, *arguments):
        now = len(self.log) == self.at
        if now and not self.after:
            self.at = -1
            raise self.error
        found = call(*arguments)
        if now:
            self.at = -1
            raise self.error
        return found

    def poll(self, addresses):
        return self._one(super().poll, addresses)

    def submit(self, writes):
        return self._one(super().submit, writes)

    def collect(self, spans):
        return self._one(super().collect, spans)

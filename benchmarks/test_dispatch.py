"""What it takes to dispatch to four meshes instead of one over a slow transport, together and one job after another.

Printed by `python -m pytest benchmarks/test_dispatch.py -s`: a row for each schedule and number of meshes. The card is
the simulator in this process behind `Delayed`, which charges every call 13 ms, as JTAG does. Each mesh has the same
work: four layers of a product on each of its six clusters, where a layer waits for the whole of the one before; in the
second table two vector cores copy each layer's results before the next begins. Wall times, best of three turns in which
all rows are measured one after the other, of the second run of a dispatcher; the results' bits are compared too.
"""

import time

import numpy as np
import pytest

from meshwright.ir.ids import ChipId
from meshwright.ir.records import Site
from meshwright.machine import load
from meshwright.numerics import product
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import UnitJob
from meshwright.runtime.transport import Delayed, InProcess
from meshwright.simulator import Card
from meshwright.targets.ktpu.isa import Desc, Drain, Fill, Gemm, Program, Run, load_code
from meshwright.targets.ktpu.isa import vector as isa

MACHINE = load("ktpu-v13p")
JTAG_S = 0.013
TURNS = 3
LAYERS = 4
GM, GN, NK, CHUNKS = 4, 4, 4, 3
"""A product of 16 x 384 by 16 x 384 on each cluster: 10 words."""
OPERAND = GM * NK * CHUNKS * 256
RESULT = GM * GN * 32
STRIDE = 2 * OPERAND + 2 * RESULT
"""Bytes that one product has: both operands, its result, and the copy of that."""


def image(x):
    return x.reshape(GM, 4, CHUNKS, NK, 32).transpose(2, 0, 3, 1, 4).copy()


class Work:
    """One mesh's jobs, and whether they were done right. copied: vector cores copy the results of each layer."""

    def __init__(self, mesh, copied):
        self.mesh, self.copied = mesh, copied
        self.clusters = MACHINE.coords(mesh, "MG")
        random = np.random.default_rng(mesh)
        shape = (LAYERS, len(self.clusters), 2, 4 * GM, 32 * NK * CHUNKS)
        self.operands = random.standard_normal(shape).astype(np.float16)

    def place(self, layer, number):
        return (layer * len(self.clusters) + number) * STRIDE

    def load(self, card):
        for at in np.ndindex(self.operands.shape[:2]):
            for side in (0, 1):
                address = MACHINE.host_addr(self.mesh, self.place(*at) + side * OPERAND)
                card.write_block(address, image(self.operands[*at, side].view(np.uint16)).tobytes())

    def jobs(self, first=0):
        """In the order of layers; first: the number of the first of them among all jobs."""
        jobs, before = [], ()
        for layer in range(LAYERS):
            start = first + len(jobs)
            for number, cluster in enumerate(self.clusters):
                site = Site(ChipId(self.mesh), *cluster)
                jobs.append(UnitJob(site, self.product(layer, number), f"product {layer}.{number}", before))
            before = tuple(range(start, first + len(jobs)))
            if self.copied:
                start = first + len(jobs)
                for half, core in enumerate(MACHINE.coords(self.mesh, "VC")):
                    program = self.copies(layer, range(3 * half, 3 * half + 3))
                    jobs.append(UnitJob(Site(ChipId(self.mesh), *core), program, f"copy {layer}.{half}", before))
                before = tuple(range(start, first + len(jobs)))
        return jobs

    def product(self, layer, number):
        at = MACHINE.global_addr(self.mesh, self.place(layer, number))
        words = []
        for chunk in range(CHUNKS):
            entries, bank = GM * NK, chunk % 2
            for side in (0, 1):
                address = at + side * OPERAND + chunk * entries * 256
                words.append(Fill(addr=address, n=entries, sel=side, fbank=bank))
            words.append(Gemm(gm=GM, gn=GN, nk=NK, abank=bank, bbank=bank, acc=int(chunk > 0)))
        words.append(Drain(addr=at + 2 * OPERAND, n=GM * GN))
        return Program("MG", tuple(words))

    def copies(self, layer, numbers):
        code = load_code(
            (isa.VectorFill(ad=0, l1off=0), isa.Barrier(), isa.VectorDrain(ad=1, l1off=0), isa.Halt()),
        )
        words = list(code)
        for descriptor in (0, 1):
            words.append(Desc.dim(descriptor, 0, stride=32, bound=RESULT // 32))
        for number in numbers:
            source = MACHINE.global_addr(self.mesh, self.place(layer, number) + 2 * OPERAND)
            words += [Desc.base(0, source), Desc.base(1, source + RESULT), Run()]
        return Program("VC", tuple(words))

    def right(self, card):
        for layer, number in np.ndindex(self.operands.shape[:2]):
            a, b = self.operands[layer, number]
            for copy in range(1 + self.copied):
                address = MACHINE.host_addr(self.mesh, self.place(layer, number) + 2 * OPERAND + copy * RESULT)
                tiles = np.frombuffer(card.read_block(address, RESULT), np.uint16).reshape(GM, GN, 4, 4)
                found = tiles.transpose(0, 2, 1, 3).reshape(4 * GM, 4 * GN)
                if not np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16)):
                    return False
        return True


def measured(meshes, copied, one_after_another):
    """Seconds and transport calls for the second run of the same jobs on a card: their words are encoded by then."""
    card = Card(MACHINE)
    works = [Work(mesh, copied) for mesh in meshes]
    jobs = []
    for work in works:
        work.load(card)
        jobs += work.jobs(len(jobs))
    transport = Delayed(InProcess(card), 0)
    dispatcher = Dispatcher(transport, MACHINE, one_after_another=one_after_another)
    dispatcher.run(jobs)
    transport.seconds_per_call, transport.calls = JTAG_S, 0
    start = time.perf_counter()
    dispatcher.run(jobs)
    seconds = time.perf_counter() - start
    assert all(work.right(card) for work in works)
    return seconds, transport.calls


@pytest.mark.parametrize(
    ("copied", "meshes"), [(False, (0, 1, 3, 2)), (True, (0, 3, 2))], ids=["clusters", "clusters and cores"]
)
def test_meshes_together(benchmark, copied, meshes):
    rows = [(group, one) for one in (False, True) for group in (meshes[:1], meshes)]
    best = {}
    for _ in range(TURNS):
        for group, one in rows:
            seconds, calls = measured(group, copied, one)
            best[group, one] = min(best.get((group, one), (seconds, calls)), (seconds, calls))
    benchmark.pedantic(lambda: measured(meshes, copied, False), rounds=1)
    print(f"\n{'six clusters and two vector cores' if copied else 'six clusters'} of each mesh, 13 ms a call")
    print("| schedule | meshes | work | calls | wall s | over one mesh |")
    print("|---|---|---|---|---|---|")
    for group, one in rows:
        seconds, calls = best[group, one]
        ratio = seconds / best[meshes[:1], one][0]
        schedule = "one after another" if one else "together"
        print(f"| {schedule} | {len(group)} | {len(group)} | {calls} | {seconds:.2f} | {ratio:.2f} |")
    together = best[meshes, False][0] / best[meshes[:1], False][0]
    apart = best[meshes, True][0] / best[meshes[:1], True][0]
    benchmark.extra_info |= {"together": together, "one after another": apart}
    assert together <= 1.15
    assert apart >= 0.9 * len(meshes)

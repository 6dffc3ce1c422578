"""Over a transport as slow as JTAG, four meshes with a mesh's work each take the time of one; in turn, of four."""

import time

from tests.runtime.dispatch_rig import CARD, MESHES, Quick, QuickCore, clusters, cores

from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import UnitJob
from meshwright.runtime.transport import Delayed, InProcess
from meshwright.simulator import Card
from meshwright.targets.ktpu.isa import Gemm, Imem, Program

JTAG_S = 0.013
GEMMS = Program("MG", (Gemm(),) * 20)
LOADS = Program("VC", (Imem(addr=0, word=0),) * 20)


def work(mesh, first, layers=2):
    """All clusters, then all vector cores, each layer after the whole of the one before."""
    jobs, before = [], ()
    for _ in range(layers):
        # Mesh 1 has no vector cores: two clusters do that part there.
        second = (
            [(core, LOADS) for core in cores(mesh)]
            if CARD.has(mesh, "VC")
            else [(one, GEMMS) for one in clusters(1)[:2]]
        )
        for sites in ([(cluster, GEMMS) for cluster in clusters(mesh)], second):
            start = first + len(jobs)
            jobs += [UnitJob(where, program, "layer", before) for where, program in sites]
            before = tuple(range(start, first + len(jobs)))
    return jobs


def seconds(meshes, **options):
    transport = Delayed(InProcess(Card(CARD, units={"MG": Quick, "VC": QuickCore})), JTAG_S)
    jobs = []
    for mesh in meshes:
        jobs += work(mesh, len(jobs))
    start = time.perf_counter()
    Dispatcher(transport, CARD, **options).run(jobs)
    return time.perf_counter() - start, transport.calls


def test_four_meshes_take_the_time_of_one():
    rows = {"one": (MESHES[:1], False), "four": (MESHES, False), "apart": (MESHES, True)}
    turns = [{name: seconds(meshes, one_after_another=one) for name, (meshes, one) in rows.items()} for _ in range(3)]
    best = {name: min(turn[name] for turn in turns) for name in rows}
    assert best["four"][1] == best["one"][1]
    assert best["four"][0] <= 1.15 * best["one"][0]
    assert 3.5 * best["one"][0] <= best["apart"][0]

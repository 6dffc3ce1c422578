"""A whole card: vector cores among its units, both types in one program, machines with units missing, other units."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.simulator.programs import CARD, Host, Product, fresh, up, words

from meshwright.errors import MachineError
from meshwright.machine import load, presets
from meshwright.numerics import product
from meshwright.simulator import Card, Kind, Unit
from meshwright.simulator.faults import Rejected
from meshwright.simulator.unit import DONE, Completion, Signal
from meshwright.targets.ktpu.isa import Desc, Imem, Run

KERNELS = json.loads((Path(__file__).parents[1] / "golden" / "ktpu_vector_words.json").read_text())["kernels"]
VECTOR = (1, 0)
KTPU = [name for name in presets() if load(name).numerics == "ktpu"]


def payloads(kernel):
    """A kernel's code, its descriptors and the word that starts it."""
    code = [Imem(addr=at, word=int(word, 16)) for at, word in enumerate(kernel["words"])]
    return words(
        *code, *(Desc(ad=d["ad"], fld=d["fld"], value=int(d["value"], 16)) for d in kernel["descriptors"]), Run()
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_golden_vector_kernels_dispatched_by_a_host(kernel):
    card = fresh()
    for source in kernel["mem_inputs"].values():
        card.write_block(CARD.host_addr(0, int(source["addr"], 16)), bytes.fromhex(source["fp16_hex"]))
    Host(card, 0).run(VECTOR, payloads(kernel), credit=16)
    out = kernel["output"]
    found = card.read_block(CARD.host_addr(0, int(out["addr"], 16)), 2 * out["count"])
    assert found.hex() == out["rtl_sim_fp16_hex"]
    assert card.reports == []


def test_a_product_and_then_a_vector_kernel_over_memory():
    """silu of a product: the drained sub-tiles are the vector core's input, whatever their order."""
    kernel = KERNELS[0]
    a, b = np.random.default_rng(2).standard_normal((2, 16, 64)).astype(np.float16).view(np.uint16)
    sums = Product(a, b, 4, 4, 2, base=0x10000)
    sums.at_c = 0
    card = fresh()
    sums.load(card)
    host = Host(card, 0)
    host.run((1, 1), words(*sums.program()))
    host.run(VECTOR, payloads(kernel))
    tiles = np.frombuffer(card.read_block(CARD.host_addr(0, 0), 512), np.uint16)
    alone = fresh()
    alone.write_block(CARD.host_addr(0, 0), tiles.tobytes())
    Host(alone, 0).run(VECTOR, payloads(kernel))
    where = CARD.host_addr(0, 0x2000)
    assert card.read_block(where, 512) == alone.read_block(where, 512)
    assert np.array_equal(sums.result(card, 16, 16), product.matmul_fp16(a, b).view(np.uint16))


@pytest.mark.parametrize("name", KTPU)
def test_a_card_of_any_machine_file(name):
    machine = load(name)
    card = Card(machine)
    for mesh in machine.mesh_ids:
        assert set(card.mesh(mesh).units) == {
            at for kind in machine.mesh(mesh).unit_types for at in machine.coords(mesh, kind)
        }
        assert card.read64(card.control(mesh, 0x10)) & 0xFFFF == 288
    with pytest.raises(MachineError):
        card.mesh(7)


def test_mesh_1_has_no_vector_core():
    card = fresh()
    with pytest.raises(MachineError, match=r"mesh 1 has no unit at \(1, 0\)"):
        card.submit(1, VECTOR, [])


def test_six_clusters_of_four_meshes_at_once():
    card = fresh()
    work = []
    clusters = [(mesh, at) for mesh in CARD.mesh_ids for at in CARD.coords(mesh, "MG")]
    for seed, (mesh, at) in enumerate(clusters):
        a, b = np.random.default_rng(seed).standard_normal((2, 8, 96)).astype(np.float16).view(np.uint16)
        sums = Product(a, b, 2, 2, 1, mesh=mesh, base=up(seed * 0x4000))
        sums.load(card)
        card.submit(mesh, at, words(*sums.program()))
        work.append((sums, a, b))
    card.run_until_idle()
    for sums, a, b in work:
        assert np.array_equal(sums.result(card, 8, 8), product.matmul_fp16(a, b).view(np.uint16))


def test_the_example_of_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "ktpu" / "simulator.md"
    example = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL).group(1)
    names = {}
    exec(example, names)
    assert np.array_equal(names["c"].view(np.uint16), product.matmul_fp16(names["a"], names["b"]).view(np.uint16))


# Units of one's own


class Echo(Unit):
    """Completes with its word's low bits; faults, waits and rejects on demand."""

    kind, type_code, buffers, acknowledges_rejected = "VC", 0x4543, 1, False
    late = False

    def execute(self, queued, event):
        if queued.word == 13:
            return Completion(Signal.FAULT, 5)
        if queued.word == 99:
            self.waiting = "the end of the world"
            return None
        return Completion(Signal.INST_COMPLETE, queued.word) if queued.word else DONE

    def receive(self, burst, event):
        self.late = True
        raise Rejected("no, thank you")

    def shown(self, word):
        return f"ECHO {word}"

    def take_fault(self):
        late, self.late = self.late, False
        return 9 if late else None


def test_a_unit_of_ones_own_signals_results_faults_and_waits():
    card = Card(CARD, units={"VC": Echo}, capture=True)
    host = Host(card, 0)
    host.write(0x60, 8)
    for slot, word in enumerate((7, 13, 21)):
        host.stage(slot, word, last=False)
    host.kick(VECTOR, 0, 3)
    status = host.read(0x1000 + 8 * 1)
    assert status == 21 << 24 | 3 << 8 | 1
    # The fault gave no credit back.
    assert host.read(0x60) == 7
    card.submit(0, VECTOR, [13])
    card.run_until_idle()
    assert host.read(0x1008) >> 56 == Signal.FAULT
    card.submit(0, VECTOR, [99, 1])
    card.run_until_idle()
    assert [report.kind for report in card.reports] == [Kind.DEADLOCK]
    assert card.waiting() == ("VC (1, 0) of mesh 0 waits for ever, instruction 4: the end of the world",)


def test_a_rejected_burst_is_not_acknowledged_by_a_vector_core_which_tells_of_it_later():
    card = Card(CARD, units={"VC": Echo}, capture=True)
    a = np.ones((4, 32), np.float16).view(np.uint16)
    sums = Product(a, a, 1, 1, 1)
    sums.load(card)
    drain = sums.drain(0, 0).__class__(n=1, dnode=1, dst_x=1, dst_y=0, dbuf=0, dflags=1, dack_y=1)
    card.submit(0, (1, 1), words(*sums.tile(0, 0), drain))
    card.run_until_idle()
    assert [report.problem for report in card.reports] == ["no, thank you"]
    host = Host(card, 0)
    assert host.count(VECTOR) == 0
    card.submit(0, VECTOR, [3])
    card.run_until_idle()
    assert host.count(VECTOR) == 2

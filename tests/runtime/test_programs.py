"""Graphs that run as programs: where values lie, what is sent and relaid, and what becomes of a run that fails."""

import threading

import numpy as np
import pytest
from tests.runtime.faulty import Disconnect

from meshwright import targets
from meshwright.errors import ConnectionLost, DeviceError, EvaluationError, PlacementError, UnitTimeout, UnitWedged
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.records import Site
from meshwright.kernels import gelu, layer_norm
from meshwright.machine import load
from meshwright.runtime.cards import connected, opened, over, simulated
from meshwright.runtime.device import Card, Device
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.held import memory_of
from meshwright.runtime.jobs import HostJob
from meshwright.runtime.programs import Programs
from meshwright.runtime.programs_run import ProgramsRun
from meshwright.runtime.run import run_graph
from meshwright.runtime.transport import Delayed, InProcess
from meshwright.runtime.transport_socket import Server
from meshwright.sharding import MeshGroup
from meshwright.simulator import Card as SimulatedCard
from meshwright.simulator import Cluster
from meshwright.simulator.operands import Operands
from meshwright.targets.ktpu.orders import Drained, Rows
from meshwright.targets.ktpu.orders import Operand as OperandOrder

CARD = load("ktpu-v13p")
RANDOM = np.random.default_rng(5)


def halves(*shape, scale=1.0):
    return (scale * RANDOM.standard_normal(shape)).astype(np.float16)


def bits(value):
    return np.asarray(value).view(np.uint16)


def same(found, wanted):
    np.testing.assert_array_equal(bits(found), bits(wanted))


class Recording(InProcess):
    """The transport to a card in this process, which keeps count of what is written to DRAM."""

    def __init__(self, card):
        super().__init__(card)
        self.written = 0

    def submit(self, writes):
        self.written += sum(len(bytes(data)) for address, data in writes if address >> CARD.address.host_window_shift)
        super().submit(writes)


def card_over(transport, **options):
    return Card(CARD, Programs(CARD, transport, Dispatcher(transport, CARD, **options)))


# What a group does


def test_the_same_calls_give_the_same_bits():
    x, w1, w2 = halves(20, 96), halves(192, 96, scale=0.1), halves(64, 192, scale=0.1)

    def through(group):
        hidden = group.each(gelu, group.matmul(group.copy(x), group.split(w1, axis=0)))
        return group.matmul_chain_reduce(hidden, group.split(w2, axis=1))

    programs = MeshGroup.open("ktpu-v13p", backend="simulator")
    same(through(programs), through(MeshGroup.open("ktpu-v13p")))
    assert str(programs) == "group on ktpu-v13p meshes 0, 1, 3, 2, graphs run as programs"
    stats = programs.stats()
    assert stats.graphs_run == 3
    assert stats.devices[1].relayouts == 0, "mesh 1 has no vector core: what it made is carried to another mesh"
    assert stats.devices[1].carried == 20 * 48 * 2
    assert stats.devices[0].relayouts == 2, "drained to rows for gelu, rows to an operand for the second product"


def test_a_value_lies_in_several_orders_and_is_sent_once_in_each():
    recording = Recording(SimulatedCard(CARD))
    group = MeshGroup.open(card_over(recording), 1)
    a, b = group.copy(halves(32, 128)), group.copy(halves(64, 128))
    assert recording.written == 0, "nothing is sent before a unit needs it"
    first = group.matmul(a, b)
    once = recording.written
    second = group.matmul(a, b)
    assert recording.written == once, "both operands lie on the card in the order that the second product reads too"
    same(first, second)
    group.each(gelu, a)
    held = memory_of(group.devices[0]).of(a.parts[0])
    assert {type(order) for order in held.images} == {OperandOrder, Rows}
    assert group.stats().devices[0].relayouts == 1
    made = memory_of(group.devices[0]).of(first.parts[0])
    assert [type(order) for order in made.images] == [Drained]


def test_calls_of_the_transport_do_not_grow_with_the_meshes():
    def calls(meshes, work):
        counting = Delayed(InProcess(SimulatedCard(CARD)), 0.0)
        group = MeshGroup.open(card_over(counting), meshes)
        operands = group.copy(halves(32, 128)), group.split(halves(64 * len(group), 128), 0)
        group.matmul(*operands)
        before = counting.calls
        work(group, *operands)
        return counting.calls - before

    one, four = (calls(meshes, MeshGroup.matmul) for meshes in ([0], [0, 1, 3, 2]))
    assert one == four
    one, two = (calls(meshes, lambda group, x, w: group.each(gelu, w)) for meshes in ([3], [3, 2]))
    assert one == two
    one, four = (calls(meshes, lambda group, x, w: np.asarray(group.matmul(x, w))) for meshes in ([0], [0, 1, 3, 2]))
    assert one == four, "pieces are fetched together"


def test_what_lies_in_memory_is_what_the_order_says():
    simulator = SimulatedCard(CARD)
    group = MeshGroup.open(card_over(InProcess(simulator)), 1)
    a, b = group.copy(halves(30, 100)), group.copy(halves(44, 100))
    product = group.matmul(a, b)
    for value in (a, b, product):
        memory = memory_of(group.devices[0])
        held = memory.of(value.parts[0])
        for order, span in held.images.items():
            wanted = order.pack(value.numpy()).tobytes()
            for first, count in order.spans():
                address = CARD.host_addr(0, span.start) + first
                assert simulator.read_block(address, count) == wanted[first : first + count]


def test_jobs_of_the_host_name_the_values():
    group = MeshGroup.open(card_over(InProcess(SimulatedCard(CARD))), 2)
    x = group.split(halves(4, 32), 0, name="tokens")
    graph = group.plan_each(gelu, x).graph()
    run = ProgramsRun(targets.programs(CARD, graph), group.devices, {"tokens.0": x.parts}, group.arithmetic)
    run.place()
    named = {job.what for job in run.jobs() if isinstance(job, HostJob)}
    assert {"readout of tokens.0", "relayout of tokens.0", "copies of tokens.0"} <= named, named


def test_two_groups_on_one_card_and_memory_given_back():
    card = simulated(CARD)
    left, right = MeshGroup.open(card, [0, 1]), MeshGroup.open(card, [3, 2])
    x, w = halves(16, 64), halves(32, 64)
    made = [group.matmul(group.split(x, 0), group.copy(w)) for group in (left, right)]
    same(*made)
    used = left.stats().devices[0].used
    value = left.copy(x)
    left.free(left.matmul(value, left.copy(w)))
    left.free(value)
    assert left.stats().devices[0].used == used + 32 * 64 * 2, "the weights of the last product are still held"
    wanted = made[0].numpy()
    left.close()
    again = MeshGroup.open(card, [0])
    same(again.matmul(again.copy(x), again.copy(w)), wanted)
    card.close()


def test_an_open_card_decides_how_graphs_run():
    card = simulated("ktpu-1")
    assert MeshGroup.open(card).devices[0].card is card
    assert opened(card, "evaluator") is card
    with pytest.raises(DeviceError, match="there is no backend 'silicon'; there are evaluator and simulator"):
        MeshGroup.open("ktpu-1", backend="silicon")
    with pytest.raises(DeviceError, match="asked to compute in real; this card runs programs, in ktpu"):
        Device(card, 0, RealArithmetic(), window=(0, 4096))
    with pytest.raises(DeviceError, match="grid-8x8 has numerics"):
        over(InProcess(SimulatedCard(CARD)), load("grid-8x8"))


def test_through_a_socket(tmp_path):
    server = Server(InProcess(SimulatedCard(CARD)), CARD, f"unix:{tmp_path / 'card'}")
    serving = threading.Thread(target=server.serve)
    serving.start()
    try:
        card = connected(str(server.address))
        group = MeshGroup.open(card, 2)
        x, w = halves(16, 64), halves(32, 64)
        here = MeshGroup.open(CARD, 2)
        same(
            group.matmul_chain_reduce(group.split(x, 1), group.split(w, 1)),
            here.matmul_chain_reduce(here.split(x, 1), here.split(w, 1)),
        )
        card.close()
    finally:
        server.stop()
        serving.join()


# Graphs made by hand


def with_epilogue(chip, bias=True):
    builder = GraphBuilder()
    a, b = (builder.tensor(name, (rows, 64), ElementType.F16, (chip,)) for name, rows in (("a", 8), ("b", 16)))
    site = Site(chip, 1, 1)
    fifos = [builder.fifo(site, (rows, 64), ElementType.F16) for rows in (8, 16)]
    added = None
    if bias:
        added = builder.fifo(site, (1, 16), ElementType.F16)
        builder.load(builder.tensor("bias", (1, 16), ElementType.F16, (chip,)), whole((1, 16)), added)
    for tensor, rows, fifo in ((a, 8, fifos[0]), (b, 16, fifos[1])):
        builder.load(tensor, whole((rows, 64)), fifo)
    out = builder.fifo(site, (8, 16), ElementType.F16)
    op = Matmul((8, 16, 64), 1, b_transposed=True, bias=added, epilogue=Operand(0) * Operand(0))
    builder.compute(op, fifos, (out,))
    builder.store(builder.tensor("c", (8, 16), ElementType.F16, (chip,)), whole((8, 16)), out)
    return builder.graph()


@pytest.mark.parametrize("bias", [True, False])
def test_an_epilogue_is_done_by_a_vector_core(bias):
    graph = with_epilogue(0, bias)
    values = {"a": halves(8, 64), "b": halves(16, 64)} | ({"bias": halves(1, 16)} if bias else {})
    made = []
    for card in (simulated(CARD), Card(CARD)):
        device = Device(card, 0)
        inputs = {name: (device.put(value, ElementType.F16),) for name, value in values.items()}
        made.append(run_graph(graph, {0: device}, inputs)["c"][0].numpy())
    same(*made)


def test_an_epilogue_where_no_vector_core_is():
    device = Device(simulated(CARD), 1)
    values = {"a": halves(8, 64), "b": halves(16, 64), "bias": halves(1, 16)}
    inputs = {name: (device.put(value, ElementType.F16),) for name, value in values.items()}
    used = device.stats().used
    with pytest.raises(PlacementError) as refused:
        run_graph(with_epilogue(1), {1: device}, inputs)
    assert str(refused.value) == (
        "stage s3 has a bias or an epilogue, which a vector core does, and mesh 1 of ktpu-v13p has none: put it into a "
        "step of its own, on a mesh that has"
    )
    assert device.stats().used == used


def test_what_is_stored_over_a_content_keeps_the_rest():
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (rows, 32), ElementType.F16, (0,)) for name, rows in (("x", 4), ("y", 8)))
    core = Site(0, *CARD.coords(0, "VC")[0])
    taken, made = (builder.fifo(core, (4, 32), ElementType.F16) for _ in range(2))
    builder.load(x, whole((4, 32)), taken)
    builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (taken,), (made,))
    builder.store(y, whole((4, 32)), made)
    graph = builder.graph()
    values = {"x": halves(4, 32), "y": halves(8, 32)}
    results = []
    for card in (simulated(CARD), Card(CARD)):
        device = Device(card, 0)
        inputs = {name: (device.put(value, ElementType.F16),) for name, value in values.items()}
        results.append(run_graph(graph, {0: device}, inputs)["y"][0].numpy())
        same(inputs["y"][0].numpy(), values["y"])
    same(*results)


def unordered(stated):
    """y = 2 x, z = 2 y; stated: whether the second load is said to come after the first store."""
    builder = GraphBuilder()
    x, y, z = (builder.tensor(name, (4, 32), ElementType.F16, (0,)) for name in "xyz")
    first = None
    for place, source, target in ((0, x, y), (1, y, z)):
        core = Site(0, *CARD.coords(0, "VC")[place])
        taken, made = (builder.fifo(core, (4, 32), ElementType.F16) for _ in range(2))
        builder.load(source, whole((4, 32)), taken, after=[first] if first is not None and stated else [])
        builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (taken,), (made,))
        first = builder.store(target, whole((4, 32)), made)
    return builder.graph()


def test_what_is_in_no_stated_order_is_not_run():
    device = Device(simulated(CARD), 0)
    x = halves(4, 32)
    given = {"x": (device.put(x, ElementType.F16),)}
    same(run_graph(unordered(True), {0: device}, given)["z"][0].numpy(), 4 * x)
    with pytest.raises(EvaluationError, match="ReadAfterWrite"):
        run_graph(unordered(False), {0: device}, given)


def test_a_result_with_a_hole_is_not_run():
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (rows, 32), ElementType.F16, (0,)) for name, rows in (("x", 4), ("y", 8)))
    core = Site(0, *CARD.coords(0, "VC")[0])
    taken, made = (builder.fifo(core, (4, 32), ElementType.F16) for _ in range(2))
    builder.load(x, whole((4, 32)), taken)
    builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (taken,), (made,))
    builder.store(y, whole((4, 32)), made)
    device = Device(simulated(CARD), 0)
    with pytest.raises(EvaluationError, match="Covered"):
        run_graph(builder.graph(), {0: device}, {"x": (device.put(halves(4, 32), ElementType.F16),)})


# What fails


class Hanging(Cluster):
    """A cluster that never completes an instruction."""

    def execute(self, queued, event):
        self.waiting = "nothing"
        return


def hanging_at(mesh, at):
    operands = Operands()
    return lambda setting: (Hanging if (setting.mesh, setting.at) == (mesh, at) else Cluster)(setting, operands)


def test_a_unit_that_hangs_is_planned_around():
    simulator = SimulatedCard(CARD, units={"MG": hanging_at(0, (1, 2))})
    group = MeshGroup.open(card_over(InProcess(simulator), timeout=0.3), [0, 1])
    x, w = halves(64, 64), halves(96, 64)
    a, b = group.copy(x), group.split(w, 0)
    used = group.stats().devices[0].used
    plan = group.plan_matmul(a, b)
    with pytest.raises(
        UnitTimeout, match=r"MG \(1, 2\) of mesh 0 made no progress for 0.3 s: job \d+, matmul.2 of stages"
    ):
        group.run(plan)
    assert [one.label for one in group.wedged] == ["MG (1, 2) of mesh 0"]
    assert "out of use: MG (1, 2) of mesh 0, it made no progress for 0.3 s" in str(group)
    assert group.stats().devices[0].used > used, "the unit may still write to where its result should be"
    assert group.stats().devices[1].used == used, "and nobody writes to the other mesh"
    with pytest.raises(UnitWedged, match="until then, place this work elsewhere"):
        group.run(plan)
    assert (1, 2) not in group.machine.coords(0, "MG")
    here = MeshGroup.open(CARD, [0, 1])
    same(group.matmul(a, b), here.matmul(here.copy(x), here.split(w, 0)))


def test_a_lost_connection_is_one_error_and_leaves_no_results():
    simulator = SimulatedCard(CARD)
    for call in (0, 1, 2, 3, 5):
        group = MeshGroup.open(card_over(Disconnect(InProcess(simulator), call)), 1)
        a, b = group.copy(halves(16, 64)), group.copy(halves(32, 64))
        used = group.stats().devices[0].used
        with pytest.raises(ConnectionLost):
            group.matmul(a, b)
        assert group.stats().devices[0].used == used
        with pytest.raises(ConnectionLost, match="nothing can be sent any more"):
            group.matmul(a, b)
    group = MeshGroup.open(card_over(InProcess(SimulatedCard(CARD))), 1)
    assert np.asarray(group.matmul(group.copy(halves(4, 32)), group.copy(halves(4, 32)))).shape == (4, 4)


def test_no_room_for_an_image():
    device = Device(simulated(CARD), 0, window=(0, 16384))
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (64, 64), ElementType.F16, (0,)) for name in ("x", "y"))
    core = Site(0, *CARD.coords(0, "VC")[0])
    taken, made = (builder.fifo(core, (64, 64), ElementType.F16) for _ in range(2))
    builder.load(x, whole((64, 64)), taken)
    builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (taken,), (made,))
    builder.store(y, whole((64, 64)), made)
    given = device.put(halves(64, 64), ElementType.F16)
    kept = device.put(halves(64, 32), ElementType.F16)
    used = device.stats().used
    with pytest.raises(DeviceError, match="8,192 bytes were asked for, and the largest free span has 4,096"):
        run_graph(builder.graph(), {0: device}, {"x": (given,)})
    assert device.stats().used == used
    device.free(kept)
    assert run_graph(builder.graph(), {0: device}, {"x": (given,)})["y"][0].shape == (64, 64)


def test_norms_run_where_a_vector_core_is():
    group, here = MeshGroup.open(CARD, backend="simulator"), MeshGroup.open(CARD)
    x, gamma, beta = halves(12, 96), halves(96), halves(96)
    same(*(g.each(layer_norm(), g.split(x, 0), g.copy(gamma), g.copy(beta)) for g in (group, here)))

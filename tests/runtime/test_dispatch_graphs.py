"""Whole graphs through the dispatcher: products, sums over meshes in accumulators, kernels of vector cores."""

import numpy as np
import pytest
from tests.runtime.dispatch_rig import CARD, Recorder
from tests.targets.ktpu import vector_rig
from tests.targets.ktpu.matrix_rig import Clusters, chain_of, halves, product_of, reduce_of

from meshwright.evaluate.walk import evaluate
from meshwright.kernels.alone import operand_name
from meshwright.kernels.norm import layer_norm
from meshwright.kernels.softmax import softmax
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.jobs import UnitJob
from meshwright.runtime.transport import InProcess
from meshwright.simulator import Card
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.emit_matrix import Firing


def matrix_jobs(tasks):
    """Tasks of all clusters as jobs: those of one cluster in order, all of them in an order in which they can be."""
    waiting = {site: list(those) for site, those in tasks.items()}
    doing = {}
    for those in tasks.values():
        for task in those:
            for firing in task.does:
                doing.setdefault(firing.stage, []).append(task)
    jobs, number = [], {}

    def before(firing):
        exact = [task for task in doing[firing.stage] if firing in task.does or Firing(firing.stage) in task.does]
        return exact if firing.block is not None else doing[firing.stage]

    while any(waiting.values()):
        for those in waiting.values():
            while those:
                needed = [id(task) for firing in those[0].after for task in before(firing)]
                if not all(one in number for one in needed):
                    break
                task = those.pop(0)
                number[id(task)] = len(jobs)
                after = tuple(sorted({number[one] for one in needed}))
                jobs.append(UnitJob(task.site, task.program, f"s{task.does[0].stage}", after, task.arrivals))
    return jobs


A, B = halves(96, 512, seed=1), halves(64, 512, seed=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: product_of(A, B),
        lambda: chain_of(A, B, (0, 1, 3, 2)),
        lambda: reduce_of(A[:, :384], B[:, :384], (0, 1, 3), 1),
    ],
    ids=["product", "chain", "reduce"],
)
@pytest.mark.parametrize("one_after_another", [False, True])
def test_matrix_graphs(make, one_after_another):
    graph, inputs = make()
    clusters = Clusters(graph, inputs)
    recorder = Recorder(InProcess(clusters.card))
    jobs = matrix_jobs(clusters.tasks)
    Dispatcher(recorder, CARD, one_after_another=one_after_another).run(jobs)
    wanted = evaluate(graph, inputs, KtpuArithmetic())
    found = clusters.results()
    assert found
    for (name, rank), values in found.items():
        np.testing.assert_array_equal(values.view(np.uint16), wanted[name][rank].view(np.uint16))
    assert clusters.card.reports == []


@pytest.mark.parametrize(
    ("kernel", "shapes"), [(softmax(scale=0.125), [(48, 192)]), (layer_norm(), [(16, 384), (384,), (384,)])]
)
def test_vector_graphs(kernel, shapes):
    operands = [vector_rig.halves(*shape, seed=at) for at, shape in enumerate(shapes)]
    graph = vector_rig.graph_of(kernel, *operands)
    where = vector_rig.placed(graph, "rows")
    card = Card(CARD)

    def host(tensor):
        return CARD.host_addr(*CARD.split_addr(where[graph.tensor_id(tensor), 0].address))

    for at, operand in enumerate(operands):
        card.write_block(host(operand_name(at)), operand.tobytes())
    tasks = vector_rig.tasks_of(graph, where)
    jobs = [UnitJob(task.site, task.program, f"rows {at}") for at, task in enumerate(tasks)]
    Dispatcher(InProcess(card), CARD).run(jobs)
    given = {operand_name(at): (operand,) for at, operand in enumerate(operands)}
    (wanted,) = evaluate(graph, given, KtpuArithmetic())["result"]
    assert card.read_block(host("result"), wanted.nbytes) == wanted.tobytes()
    assert card.reports == []

"""Matrix stages emitted for clusters, run on a card in software, beside what their graphs mean."""

from __future__ import annotations

from collections import Counter

import numpy as np
from tests.simulator.programs import Host

from meshwright.evaluate.walk import evaluate
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.records import Site
from meshwright.kernels.alone import graph_alone, operand_name
from meshwright.kernels.kernel import Shaped
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import load
from meshwright.sharding import MeshGroup
from meshwright.simulator import Card
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.emit_matrix import Firing, MatrixTask, OperandImage, ResultImage, emit_matrix, images_at
from meshwright.targets.ktpu.isa import check_program
from meshwright.targets.ktpu.placement import KtpuPlacement

CARD = load("ktpu-v13p")


class Clusters:
    """The clusters of a graph on a card in software: images in memory, and tasks sent when they may be."""

    def __init__(self, graph: Graph, inputs: dict[str, tuple[np.ndarray, ...]]) -> None:
        self.graph = graph
        self.card = Card(CARD)
        used = [graph.site(s) for s in graph.stages]
        self.sites = sorted({site for site in used if (site.x, site.y) in CARD.coords(site.chip, "MG")}, key=str)
        self.where = {}
        self.rounds = 0
        free = Counter()
        for site in self.sites:
            for image in images_at(graph, site, CARD):
                if image not in self.where:
                    self.where[image] = CARD.global_addr(site.chip, free[site.chip])
                    free[site.chip] += image.nbytes
        for image, address in self.where.items():
            if isinstance(image, OperandImage):
                piece = inputs[graph.tensors[image.tensor].name][image.rank]
                self.card.write_block(self.host_address(address), image.pack(piece.view(np.uint16)).tobytes())
        self.tasks = {site: emit_matrix(graph, site, CARD, self.where) for site in self.sites}
        for site, tasks in self.tasks.items():
            for task in tasks:
                assert task.site == site
                check_program(task.program, CARD, site.chip, (site.x, site.y))

    def host_address(self, address: int) -> int:
        return CARD.host_addr(*CARD.split_addr(address))

    def run(self) -> None:
        """In rounds: each cluster its next task, if what that waits for has been seen complete."""
        waiting = {site: list(tasks) for site, tasks in self.tasks.items()}
        left = Counter(firing.stage for tasks in self.tasks.values() for task in tasks for firing in task.does)
        done: set[Firing] = set()

        def seen(firing: Firing) -> bool:
            return firing in done or Firing(firing.stage) in done or (firing.block is None and not left[firing.stage])

        while any(waiting.values()):
            ready = [tasks.pop(0) for tasks in waiting.values() if tasks and all(map(seen, tasks[0].after))]
            assert ready, "every cluster waits for another"
            self.round(ready)
            for task in ready:
                done.update(task.does)
                left.subtract(firing.stage for firing in task.does)

    def round(self, tasks: list[MatrixTask]) -> None:
        """Programs of several clusters at once; every signal that is expected comes, and no other."""
        self.rounds += 1
        expected: Counter[Site] = Counter()
        before = {site: self.signals(site) for site in self.sites}
        for task in tasks:
            expected[task.site] += len(task.program)
            expected.update({arrival.site: arrival.signals for arrival in task.arrivals})
            self.card.submit(task.site.chip, (task.site.x, task.site.y), task.program.encode())
        self.card.run_until_idle()
        for site in self.sites:
            assert self.signals(site) - before[site] == expected[site]

    def signals(self, site: Site) -> int:
        return Host(self.card, site.chip).count((site.x, site.y))

    def results(self) -> dict[tuple[str, int], np.ndarray]:
        found = {}
        for image, address in self.where.items():
            if isinstance(image, ResultImage):
                content = np.full(image.nbytes, 0x5A, np.uint8)
                for first, count in image.runs():
                    data = self.card.read_block(self.host_address(address) + first, count)
                    content[first : first + count] = np.frombuffer(data, np.uint8)
                found[self.graph.tensors[image.tensor].name, image.rank] = image.unpack(content)
        return found

    @property
    def words(self) -> list:
        return [word for tasks in self.tasks.values() for task in tasks for word in task.program.words]


def check(graph: Graph, inputs: dict[str, tuple[np.ndarray, ...]]) -> Clusters:
    """Runs the graph's clusters; every result has the bits that the graph means."""
    clusters = Clusters(graph, inputs)
    clusters.run()
    found = clusters.results()
    wanted = evaluate(graph, inputs, KtpuArithmetic())
    names = {(name, rank) for name, pieces in wanted.items() for rank in range(len(pieces))}
    assert set(found) == names
    for name, rank in names:
        np.testing.assert_array_equal(found[name, rank].view(np.uint16), wanted[name][rank].view(np.uint16))
    return clusters


def halves(*shape, seed=0, scale=1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float16)


def product_of(a: np.ndarray, b: np.ndarray, tile=None, chip: int = 0) -> tuple[Graph, dict]:
    shaped = [Shaped(x.shape, ElementType.F16) for x in (a, b)]
    graph = graph_alone(MatrixProduct(tile), KtpuPlacement(CARD, chip), shaped)
    return graph, {operand_name(number): (x,) for number, x in enumerate((a, b))}


def chain_of(a: np.ndarray, b: np.ndarray, meshes, tile=None) -> tuple[Graph, dict]:
    """The sum over slices of K, from mesh to mesh."""
    group = MeshGroup.open(CARD, meshes)
    return _sliced(group.plan_chain_reduce(*(group.split(x, x.ndim - 1) for x in (a, b)), tile=tile), a, b)


def reduce_of(a: np.ndarray, b: np.ndarray, meshes, root: int) -> tuple[Graph, dict]:
    """The sum over slices of K, straight into one mesh's tiles."""
    group = MeshGroup.open(CARD, meshes)
    return _sliced(group.plan_reduce(*(group.split(x, x.ndim - 1) for x in (a, b)), root=root), a, b)


def _sliced(plan, a: np.ndarray, b: np.ndarray) -> tuple[Graph, dict]:
    graph = plan.graph()
    parts = len(graph.tensors[graph.inputs()[0]].chips)
    names = [graph.tensors[t].name for t in graph.inputs()]
    return graph, {name: tuple(np.split(x, parts, x.ndim - 1)) for name, x in zip(names, (a, b), strict=True)}

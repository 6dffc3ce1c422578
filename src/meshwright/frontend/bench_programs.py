"""How long it takes to run work as instruction words, step by step: packing, compiling, linking, executing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import UsageError
from meshwright.kernels import gelu, layer_norm, softmax
from meshwright.kernels.kernel import Kernel
from meshwright.machine import MachineSpec
from meshwright.numerics.backend import using
from meshwright.runtime.cards import simulated
from meshwright.runtime.device import Card
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.lower import slot_name
from meshwright.sharding.plan import Plan
from meshwright.sharding.value import Sharded
from meshwright.targets.ktpu.compile import compile_graph
from meshwright.targets.ktpu.compiled import Place

Half = NDArray[np.float16]


class Work(Struct, frozen=True, eq=False):
    """Something to run on one mesh: its name, its operands, and multiply-adds if it is a product."""

    name: str
    operands: tuple[Half, ...]
    kernel: Kernel | None = None

    @property
    def multiply_adds(self) -> int:
        """Of a product; 0 of other work."""
        return 0 if self.kernel is not None else self.operands[0].size * len(self.operands[1])

    def plan(self, group: MeshGroup, values: list[Sharded]) -> Plan:
        """The plan of it in a group."""
        return group.plan_matmul(values[0], values[1]) if self.kernel is None else group.plan_each(self.kernel, *values)


class Measured(Struct, frozen=True):
    """Seconds of each step for one work, the least of several turns but for `compiling`; one thread.

    pack: operands into the byte orders that units read, packed_bytes of them. compiling: the plan's graph into
    programs, once, the first time. linking: addresses into words, and their encoding; words: of all programs.
    executing: linking, dispatch and simulation with the operands on the card. whole: operands from the host to the
    result on the host, compiled before. evaluated: the same calls where graphs are evaluated.
    """

    name: str
    multiply_adds: int
    words: int
    packed_bytes: int
    pack: float
    compiling: float
    linking: float
    executing: float
    whole: float
    evaluated: float


def works() -> Iterator[Work]:
    """What is measured by default: products, and vector work of a transformer layer's size."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Half:
        return random.standard_normal(shape, dtype=np.float32).astype(np.float16)

    for size in (256, 512, 1024):
        yield Work(f"product {size} x {size} x {size}", (normal(size, size), normal(size, size)))
    yield Work("product 64 x 384 x 1536", (normal(64, 384), normal(1536, 384)))
    yield Work("gelu 64 x 1536", (normal(64, 1536),), gelu)
    yield Work("softmax 192 x 128", (normal(192, 128),), softmax())
    yield Work("layer norm 64 x 384", (normal(64, 384), normal(384), normal(384)), layer_norm())


def run(machine: MachineSpec, repeats: int = 5, tell: Callable[[str], None] | None = None) -> tuple[Measured, ...]:
    """Measures all of `works` on one mesh of a machine; tell: called with the name of each before it is measured.

    Raises `UsageError` for no turns, and what opening a card raises.
    """
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: at least one turn is needed")
    found: list[Measured] = []
    with using(threads=1):
        for work in works():
            if tell is not None:
                tell(work.name)
            found.append(_measured(machine, work, repeats))
    return tuple(found)


def _measured(machine: MachineSpec, work: Work, repeats: int) -> Measured:
    group = MeshGroup.open(simulated(machine, threads=1), 1)
    values = [group.copy(operand) for operand in work.operands]
    plan = work.plan(group, values)
    graph = plan.graph()
    start = time.perf_counter()
    compiled = compile_graph(graph, machine)
    compiling = time.perf_counter() - start
    orders = [compiled.images[w.image] for w in compiled.works if isinstance(w, Place)]
    operands = {graph.tensor_id(slot_name(plan, slot)): work.operands[slot] for slot in range(plan.given)}
    pack = _least(repeats, lambda: [image.order.pack(operands[image.piece[0]]) for image in orders])
    where = {number: number << 20 for number in range(len(compiled.images))}
    linking = _least(repeats, lambda: [program.code.at(where).encode() for program in compiled.programs])
    group.run(plan)
    executing = _least(repeats, lambda: group.free(group.run(plan)))
    evaluator = MeshGroup.open(Card(machine), 1)
    return Measured(
        work.name,
        work.multiply_adds,
        sum(len(program.code.program) for program in compiled.programs),
        sum(image.order.nbytes for image in orders),
        pack,
        compiling,
        linking,
        executing,
        _least(repeats, lambda: _whole(group, work)),
        _least(repeats, lambda: _whole(evaluator, work)),
    )


def _whole(group: MeshGroup, work: Work) -> NDArray[Any]:
    values = [group.copy(operand) for operand in work.operands]
    result = group.run(work.plan(group, values))
    found = result.numpy()
    group.free(*values, result)
    return found


def _least(repeats: int, what: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - start)
    return best


def table(found: tuple[Measured, ...]) -> str:
    """What was measured, a line a work, and what the columns mean."""
    lines = [
        f"{'work':24}  {'words':>6}  {'pack':>9}  {'compile':>9}  {'link':>8}  {'execute':>9}  {'whole':>9}  "
        f"{'evaluated':>9}  execute"
    ]
    for one in found:
        rate = f"{one.multiply_adds / one.executing / 1e9:5.1f} GMAC/s" if one.multiply_adds else ""
        steps = f"{one.packed_bytes / one.pack / 1e9:4.1f} GB/s  {_ms(one.compiling)}  "
        steps += f"{1e6 * one.linking / one.words:5.2f} us  {_ms(one.executing)}"
        lines.append(f"{one.name:24}  {one.words:6,}  {steps}  {_ms(one.whole)}  {_ms(one.evaluated)}  {rate}")
    lines.append("")
    lines.append("one mesh, one thread; link: a word; execute: link, dispatch and simulation, operands on the card;")
    lines.append("whole: from the host to the host, packing included; evaluated: the same calls, graphs evaluated.")
    return "\n".join(line.rstrip() for line in lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:6.2f} ms"

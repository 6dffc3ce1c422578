"""The backend that runs graphs as programs: compiled, placed in the arenas, dispatched through a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from meshwright import targets
from meshwright.certify import Verdict, certify
from meshwright.errors import EvaluationError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.walk import Progress
from meshwright.ir.form import require_well_formed
from meshwright.ir.graph import Graph
from meshwright.machine import MachineSpec
from meshwright.runtime.device import Device, Tensor
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.dispatch_failures import Wedged
from meshwright.runtime.held import CardMemory, memory_of
from meshwright.runtime.programs_run import ProgramsRun
from meshwright.runtime.transport import Transport
from meshwright.targets.ktpu.compiled import Compiled

Compile = Callable[[Graph], Compiled]


_ORDERED: Final = (
    *("BlockBalance", "NoDeadlock", "ReadAfterWrite", "WrittenOnce", "Covered", "NoLiveOverwrite"),
    *("UnreducedShard", "EachSummandOnce", "OpenedBeforeAdd"),
)
"""What a graph has to keep for programs to mean anything: on a card nothing else would refuse it."""


@lru_cache(maxsize=64)
def _compiler(machine: MachineSpec, given: frozenset[str]) -> Compile:
    """One function for each machine, so that a graph remembers what it was compiled to."""

    def compiled(graph: Graph) -> Compiled:
        require_well_formed(graph)
        _require_ordered(graph, machine, given)
        return targets.programs(machine, graph, given)

    return compiled


def _require_ordered(graph: Graph, machine: MachineSpec, given: frozenset[str]) -> None:
    """The evaluator refuses such graphs when it runs them; a waiver of an obligation doesn't make a program of one."""
    for entry in certify(graph, machine).entries:
        if entry.verdict is not Verdict.BROKEN or entry.obligation not in _ORDERED:
            continue
        # What was there before covers the rest; the host puts the two together and sees to it.
        if entry.obligation == "Covered" and given:
            continue
        raise EvaluationError(f"{entry.obligation}: {entry.message}")


class Programs:
    """Runs graphs on the card behind `transport`, which has the meshes of `machine`.

    dispatcher: sends programs and awaits them; one for the whole card.
    """

    def __init__(self, machine: MachineSpec, transport: Transport, dispatcher: Dispatcher) -> None:
        self.machine = machine
        self.transport = transport
        self.dispatcher = dispatcher
        self._arithmetic = targets.arithmetic(machine)

    @property
    def wedged(self) -> tuple[Wedged, ...]:
        """Units that stopped answering, and are used no more."""
        return self.dispatcher.wedged

    def arithmetic(self) -> Arithmetic:
        """The silicon's."""
        return self._arithmetic

    def memory(self, device: Device) -> CardMemory:
        """The memory of a device that is being opened."""
        return CardMemory(device, self.machine, self.transport)

    def close(self) -> None:
        """Closes the transport."""
        self.transport.close()

    def compiled(self, graph: Graph, given: frozenset[str] = frozenset()) -> Compiled:
        """What `graph` is compiled to, found once.

        Raises `GraphError` for a malformed graph, `EvaluationError` for one whose results would depend on an order that
        it doesn't state, and what `targets.programs` does.
        """
        return graph.derived(_compiler(self.machine, given))

    def bring(self, tensors: Sequence[Tensor]) -> None:
        """Reads values that the host hasn't got, all in one call."""
        wanted = [memory_of(tensor.device).reading(tensor) for tensor in tensors]
        spans = [span for reading in wanted for span in reading.spans]
        found = iter(self.transport.collect(spans))
        for reading in wanted:
            reading.take([next(found) for _ in reading.spans])

    def run(
        self,
        graph: Graph,
        devices: Mapping[int, Device],
        inputs: Mapping[str, Sequence[Tensor]],
        keep: Sequence[str],
        progress: Progress | None,
    ) -> dict[str, tuple[Tensor, ...]]:
        """As `run_graph`; progress counts jobs.

        Raises what `compiled` does for a graph that isn't for these units, `DeviceError` where images don't fit, and
        what `Dispatcher.run` does.
        """
        stored = {graph.tensors[t].name for t in graph.stored()}
        compiled = self.compiled(graph, frozenset(stored & set(inputs)))
        wanted = dict.fromkeys((*(graph.tensors[t].name for t in graph.outputs()), *keep))
        run = ProgramsRun(compiled, devices, inputs, self._arithmetic)
        try:
            run.place()
            self.dispatcher.run(run.jobs(), progress)
            run.count()
            made = run.results(tuple(wanted))
        except BaseException:
            run.fail([(one.mesh, one.at) for one in self.dispatcher.wedged])
            raise
        run.finish()
        return made

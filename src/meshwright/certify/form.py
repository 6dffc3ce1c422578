"""Form: `Shapes`, `Ports`, `Remapped`, `CombineMatchesPool`: what can be seen in one record and what it names."""

from __future__ import annotations

from meshwright.certify.certificate import Entry, WellFormed, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.ir.form import Fault
from meshwright.ir.graph import Graph

_CHANGES = {
    "Shapes": "change that shape, or the record that it has to fit",
    "Ports": "connect the buffers so that each FIFO has one stage that fills it and one that empties it, at one site",
    "Remapped": "name a record that is there; rename with `Stage.remap_buffers`, which renames every buffer",
    "CombineMatchesPool": "build `combine` with `ir.operation.combine` from the pool and the number of inputs",
}
_STAGES = {"Remapped": 0, "GroupIsRectangle": 1, "Shapes": 1, "Ports": 2, "CombineMatchesPool": 3}
"""In which order the rules are asked: later ones aren't where an earlier one is broken."""


def looked_at(graph: Graph) -> WellFormed:
    """How many records there are."""
    return WellFormed(len(graph.tensors), len(graph.buffers), len(graph.groups), len(graph.stages))


def form(case: Case, name: str) -> Entry:
    """One obligation of form."""
    found = case.faults
    mine = [fault for fault in found if fault.obligation == name]
    if mine:
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        return broken(name, f"{_said(mine[0])}{more}", _witness(case, mine[0]))
    if any(_STAGES[fault.obligation] <= _STAGES[name] for fault in found):
        return not_decided(name, f"{found[0].obligation} is broken, and without it this has no meaning")
    return held(name, looked_at(case.graph))


def _said(fault: Fault) -> str:
    return fault.message if fault.stage is None else f"stage s{fault.stage}: {fault.message}"


def _witness(case: Case, fault: Fault) -> Witness:
    change = _CHANGES.get(fault.obligation, "")
    if fault.stage is None:
        return Witness(change=change)
    stage = case.graph.stages[fault.stage]
    there = [b for b in dict.fromkeys((*stage.ins, *stage.outs, *stage.hidden())) if 0 <= b < len(case.graph.buffers)]
    chips = tuple(dict.fromkeys(case.graph.buffers[b].site.chip for b in there))
    return Witness((fault.stage,), tuple(there), chips, change=change)

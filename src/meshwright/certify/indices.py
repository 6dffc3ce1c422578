"""Which inputs are positions, and how far they may reach."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.errors import EvaluationError
from meshwright.ir.graph import Graph
from meshwright.ir.pattern import Gather
from meshwright.ir.records import Load, Store, Tensor


def looked_up_extents(graph: Graph) -> dict[str, int]:
    """For every tensor that is loaded straight into a gather's index buffer, the size of the gathered axis.

    The smallest one where several are gathered by it.
    """
    sources = {b: s.kind.tensor for s in graph.stages if isinstance(s.kind, Load) for b in s.outs}
    found: dict[str, int] = {}
    for stage in graph.stages:
        if not isinstance(stage.kind, (Load, Store)) or not isinstance(stage.kind.pattern, Gather):
            continue
        pattern = stage.kind.pattern
        if pattern.index in sources:
            name = graph.tensors[sources[pattern.index]].name
            size = graph.tensors[stage.kind.tensor].shape[pattern.axis]
            found[name] = min(size, found.get(name, size))
    return found


def ranges_of(
    tensors: Mapping[str, Tensor],
    stated: Mapping[str, tuple[int, int]],
    reference: Graph,
    graph: Graph,
    names: Mapping[str, str],
) -> dict[str, tuple[int, int]]:
    """For every input of whole numbers the lowest and one past the highest: as stated, or all that may be looked up.

    Raises `EvaluationError` for a range that is empty, and for an input that is neither stated nor looked up with.
    """
    first, second = looked_up_extents(reference), looked_up_extents(graph)
    found: dict[str, tuple[int, int]] = {}
    for name, tensor in tensors.items():
        if not tensor.format.is_integer:
            continue
        sizes = [s for s in (first.get(name), second.get(names.get(name, name))) if s is not None]
        if name not in stated and not sizes:
            raise EvaluationError(
                f"{name!r} holds whole numbers ({tensor.format}), and no gather looks anything up with it directly; "
                f"say what they may be: indices={{{name!r}: (0, count)}}"
            )
        low, high = stated[name] if name in stated else (0, min(sizes))
        if low >= high:
            raise EvaluationError(f"indices={{{name!r}: ({low}, {high})}}: there is no whole number in it")
        found[name] = (low, high)
    return found

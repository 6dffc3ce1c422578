"""Running a graph on the devices whose meshes it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import DeviceError
from meshwright.evaluate.walk import Progress, evaluate
from meshwright.ir.graph import Graph
from meshwright.runtime.device import Device, Tensor


def run_graph(
    graph: Graph,
    devices: Mapping[int, Device],
    inputs: Mapping[str, Sequence[Tensor]],
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, tuple[Tensor, ...]]:
    """Evaluates `graph` on values that the devices hold, and leaves its results with them.

    devices: by mesh id, all of one arithmetic. inputs: for each input tensor its pieces, one a rank, each on the
    device of that rank's mesh. Raises `DeviceError` for a piece on another mesh or a mesh without a device, and what
    `evaluate` raises.
    """
    for tensor in graph.tensors:
        for rank, chip in enumerate(tensor.chips):
            if chip not in devices:
                raise DeviceError(f"{tensor.name!r} has a piece on mesh {chip}, and no device is open there")
            piece = inputs[tensor.name][rank] if tensor.name in inputs else None
            if piece is not None and piece.device is not devices[chip]:
                raise DeviceError(
                    f"piece {rank} of {tensor.name!r} is {piece}; it has to be on the device of mesh {chip}"
                )
    held = {name: [t.device.held(t) for t in pieces] for name, pieces in inputs.items()}
    arithmetic = next(iter(devices.values())).arithmetic
    results = evaluate(graph, held, arithmetic, keep, progress)
    for device in devices.values():
        device.runs += 1
    made: dict[str, tuple[Tensor, ...]] = {}
    for name, pieces in results.items():
        record = graph.tensors[graph.tensor_id(name)]
        made[name] = tuple(
            devices[chip].adopt(piece, record.format) for chip, piece in zip(record.chips, pieces, strict=True)
        )
    return made

"""Running a graph on the devices whose meshes it names: evaluated here, or as programs by the card's backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.errors import DeviceError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.walk import Progress, evaluate
from meshwright.ir.graph import Graph
from meshwright.ir.records import Tensor as Record
from meshwright.runtime.device import Card, Device, Tensor


def run_graph(
    graph: Graph,
    devices: Mapping[int, Device],
    inputs: Mapping[str, Sequence[Tensor]],
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, tuple[Tensor, ...]]:
    """Runs `graph` on values that the devices hold, as their card runs graphs, and leaves its results with them.

    devices: by mesh id, all of one card and one arithmetic. inputs: for each input tensor its pieces, one a rank, each
    on the device of that rank's mesh. Raises `DeviceError` for pieces that are too few, of another element type or on
    another mesh, a mesh without a device, and results that don't fit; and what `evaluate`, or the card's backend,
    raises. Then nothing is left behind.
    """
    arithmetic = _one_arithmetic(devices)
    backend = _one_card(devices).backend
    for tensor in graph.tensors:
        _check_pieces(tensor, devices, inputs.get(tensor.name))
    if backend is not None:
        made = backend.run(graph, devices, inputs, keep, progress)
    else:
        made = _evaluated(graph, devices, inputs, arithmetic, keep, progress)
    for device in devices.values():
        device.runs += 1
    return made


def _evaluated(
    graph: Graph,
    devices: Mapping[int, Device],
    inputs: Mapping[str, Sequence[Tensor]],
    arithmetic: Arithmetic,
    keep: Sequence[str],
    progress: Progress | None,
) -> dict[str, tuple[Tensor, ...]]:
    held = {name: [t.device.held(t) for t in pieces] for name, pieces in inputs.items()}
    results = evaluate(graph, held, arithmetic, keep, progress)
    made: dict[str, list[Tensor]] = {}
    try:
        for name, pieces in results.items():
            record = graph.tensors[graph.tensor_id(name)]
            made[name] = []
            for chip, piece in zip(record.chips, pieces, strict=True):
                made[name].append(devices[chip].adopt(piece, record.format))
    except DeviceError:
        # Nobody would have a handle to the results that did fit.
        for tensor in (t for tensors in made.values() for t in tensors):
            tensor.device.free(tensor)
        raise
    return {name: tuple(tensors) for name, tensors in made.items()}


def _one_arithmetic(devices: Mapping[int, Device]) -> Arithmetic:
    if not devices:
        raise DeviceError("a graph was asked to run on no device; open one on every mesh that it names")
    (first, one), *others = devices.items()
    for mesh, device in others:
        if device.arithmetic.name != one.arithmetic.name:
            raise DeviceError(
                f"mesh {first} computes in {one.arithmetic.name} and mesh {mesh} in {device.arithmetic.name}; one "
                "graph is evaluated in one arithmetic"
            )
    return one.arithmetic


def _one_card(devices: Mapping[int, Device]) -> Card:
    (first, one), *others = devices.items()
    for mesh, device in others:
        if device.card.backend is not one.card.backend:
            raise DeviceError(
                f"meshes {first} and {mesh} were opened on different cards; a graph runs on the meshes of one"
            )
    return one.card


def _check_pieces(record: Record, devices: Mapping[int, Device], pieces: Sequence[Tensor] | None) -> None:
    for chip in record.chips:
        if chip not in devices:
            raise DeviceError(f"{record.name!r} has a piece on mesh {chip}, and no device is open there")
    if pieces is None:
        return
    if len(pieces) != len(record.chips):
        raise DeviceError(f"{record.name!r} is on {len(record.chips)} meshes, and {len(pieces)} pieces are given")
    for rank, (chip, piece) in enumerate(zip(record.chips, pieces, strict=True)):
        if piece.device is not devices[chip]:
            raise DeviceError(f"piece {rank} of {record.name!r} is {piece}; it has to be on the device of mesh {chip}")
        if piece.format is not record.format:
            raise DeviceError(f"piece {rank} of {record.name!r} is {piece}; this graph takes {record.format}")

"""Graphs on devices."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from meshwright import targets
from meshwright.errors import DeviceError, EvaluationError
from meshwright.evaluate.arithmetic import Products, Typed
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType as E
from meshwright.ir.ids import ChipId
from meshwright.ir.operation import Generic, Unit
from meshwright.ir.records import Site
from meshwright.ir.spec import Spec
from meshwright.kernels.elementwise import gelu
from meshwright.kernels.kernel import Piece
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import load
from meshwright.runtime.device import Card, Device
from meshwright.runtime.run import run_graph
from meshwright.runtime.traffic import link_bytes

CARD = load("ktpu-v13p")


def doubled(chips=(0, 1)):
    builder = GraphBuilder()
    x, y = (builder.tensor(name, (4, 2), E.F16, chips, Spec.on(0)) for name in ("x", "y"))
    for chip in chips:
        site = Site(ChipId(chip), 1, 0)
        source, out = (builder.fifo(site, (2, 2), E.F16) for _ in range(2))
        builder.load(x, whole((2, 2)), source)
        builder.compute(Generic.elementwise(Operand(0) + Operand(0), 1, 2), (source,), (out,))
        builder.store(y, whole((2, 2)), out)
    return builder.graph()


@pytest.fixture
def devices():
    card = Card(CARD)
    return {mesh: Device(card, mesh) for mesh in (0, 1)}


def put(devices, values=(1, 2)):
    return [devices[mesh].put(np.full((2, 2), v, np.float16), E.F16) for mesh, v in zip((0, 1), values, strict=True)]


def test_results_stay_on_the_devices_of_their_ranks(devices) -> None:
    told = []
    made = run_graph(doubled(), devices, {"x": put(devices)}, progress=lambda *at: told.append(at))
    assert [piece.device.mesh for piece in made["y"]] == [0, 1]
    assert [piece.numpy()[0, 0] for piece in made["y"]] == [2, 4]
    assert told[-1] == (6, 6)
    for device in devices.values():
        stats = device.stats()
        assert (stats.runs, stats.sent, stats.fetched, stats.used) == (1, 8, 8, 512)


def test_results_are_nobody_elses_bytes(devices) -> None:
    x = put(devices, (3, 3))
    made = run_graph(doubled(), devices, {"x": x})["y"]
    arrays = [devices[mesh].held(piece) for mesh, piece in zip((0, 1), made, strict=True)]
    assert not np.shares_memory(*arrays)
    assert not any(array.flags.writeable for array in arrays)
    fetched = made[0].numpy()
    fetched[...] = 0
    assert made[0].numpy()[0, 0] == made[1].numpy()[0, 0] == 6


def test_a_piece_on_another_mesh(devices) -> None:
    x = put(devices)
    with pytest.raises(
        DeviceError, match=re.escape("piece 0 of 'x' is f16[2, 2] on mesh 1; it has to be on the device of mesh 0")
    ):
        run_graph(doubled(), devices, {"x": x[::-1]})
    with pytest.raises(DeviceError, match="'x' is on 2 meshes, and 1 pieces are given"):
        run_graph(doubled(), devices, {"x": x[:1]})
    assert devices[0].stats().runs == 0


def test_a_mesh_without_a_device(devices) -> None:
    with pytest.raises(DeviceError, match="'x' has a piece on mesh 3, and no device is open there"):
        run_graph(doubled((0, 3)), devices, {})


def test_a_piece_that_is_gone(devices) -> None:
    x = put(devices)
    devices[1].free(x[1])
    with pytest.raises(DeviceError, match="has been freed; the value in it is gone"):
        run_graph(doubled(), devices, {"x": x})


def test_a_piece_of_another_element_type(devices) -> None:
    x = [devices[mesh].put(np.ones((2, 2), np.float32), E.F32) for mesh in (0, 1)]
    with pytest.raises(DeviceError, match=re.escape("piece 0 of 'x' is f32[2, 2] on mesh 0; this graph takes f16")):
        run_graph(doubled(), devices, {"x": x})


def test_a_name_that_is_not_in_the_graph(devices) -> None:
    x = put(devices)
    with pytest.raises(EvaluationError, match="there is no tensor 'z' in this graph; it has x, y"):
        run_graph(doubled(), devices, {"x": x, "z": x})


def test_results_that_do_not_fit_leave_nothing_behind() -> None:
    card = Card(CARD)
    devices = {0: Device(card, 0, window=(0, 1024)), 1: Device(card, 1, window=(0, 256))}
    x = put(devices)
    with pytest.raises(DeviceError, match="DRAM of mesh 1 of ktpu-v13p: 256 bytes were asked for"):
        run_graph(doubled(), devices, {"x": x})
    assert [device.stats().used for device in devices.values()] == [256, 256]


def test_devices_that_compute_differently() -> None:
    card = Card(CARD)
    devices = {0: Device(card, 0), 1: Device(card, 1, RealArithmetic())}
    x = put(devices)
    with pytest.raises(
        DeviceError,
        match=re.escape("mesh 0 computes in ktpu and mesh 1 in real; one graph is evaluated in one arithmetic"),
    ):
        run_graph(doubled(), devices, {"x": x})


def test_a_split_product_and_elementwise_work_on_two_chips_of_a_grid() -> None:
    machine = load("grid-2x4x4")
    card = Card(machine)
    devices = {mesh: Device(card, mesh) for mesh in (0, 1)}
    brain = ml_dtypes.bfloat16
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(brain) for shape in ((40, 70), (64, 70)))
    builder = GraphBuilder()
    a = builder.tensor("x", x.shape, E.BF16, [0, 1])
    b = builder.tensor("w", w.shape, E.BF16, [0, 1], Spec.on(0))
    h, y = (builder.tensor(name, (40, 64), E.BF16, [0, 1], Spec.on(1)) for name in ("h", "y"))
    for rank in (0, 1):
        place = targets.placement(machine, rank)
        operands = [Piece(a, rank, (40, 70)), Piece(b, rank, (32, 70))]
        stored = MatrixProduct().emit(builder, place, operands, Piece(h, rank, (40, 32)))
        gelu.emit(builder, place, [Piece(h, rank, (40, 32), tuple(stored))], Piece(y, rank, (40, 32)))
    inputs = {
        "x": [devices[mesh].put(x, E.BF16) for mesh in (0, 1)],
        "w": [devices[mesh].put(w[32 * mesh : 32 * mesh + 32], E.BF16) for mesh in (0, 1)],
    }
    graph = builder.graph()
    assert link_bytes(graph, machine) == {}
    made = run_graph(graph, devices, inputs)["y"]
    found = np.concatenate([piece.numpy() for piece in made], axis=1)
    grid = targets.arithmetic(machine)
    index = np.zeros(1, np.int64)
    product = grid.products(Products(Typed(x[None], E.BF16), Typed(w[None], E.BF16), index, index, None, E.BF16))[0]
    (expected,) = grid.elementwise([gelu.expr], [Typed(product, E.BF16)], [E.BF16], Unit.VECTOR)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))

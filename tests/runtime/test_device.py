"""Devices and cards: values in and out, what they own, and what they refuse."""

from __future__ import annotations

import re

import ml_dtypes
import msgspec
import numpy as np
import pytest

from meshwright.errors import DeviceError, EvaluationError, MachineError
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.formats import ElementType as E
from meshwright.machine import load
from meshwright.runtime.device import Card, Device, Stats

MACHINE = load("ktpu-v13p")


@pytest.fixture
def card():
    return Card(MACHINE)


@pytest.fixture
def device(card):
    return Device(card, 0)


def refused(call, message) -> None:
    with pytest.raises(DeviceError, match=f"^{re.escape(message)}$"):
        call()


def test_a_value_comes_back_as_it_went_in(device) -> None:
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    tensor = device.put(values, E.F16)
    assert str(tensor) == "f16[2, 3] on mesh 0"
    assert (tensor.nbytes, tensor.shape, tensor.format) == (12, (2, 3), E.F16)
    np.testing.assert_array_equal(tensor.numpy(), values)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_device_has_bytes_of_its_own(device, order) -> None:
    values = np.asarray(np.ones((4, 4), np.float16), order=order)
    tensor = device.put(values, E.F16)
    values[...] = 7
    found = tensor.numpy()
    assert (found == 1).all()
    found[...] = 9
    assert (tensor.numpy() == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        device.held(tensor)[0, 0] = 3


def test_one_array_held_for_two_ranks_is_two_values(card) -> None:
    first, second = Device(card, 0), Device(card, 1)
    array = np.ones(8, np.float16)
    a, b = first.hold(array, E.F16), second.hold(array, E.F16)
    array[0] = 5
    assert a.numpy()[0] == b.numpy()[0] == 1
    assert not np.shares_memory(first.held(a), second.held(b))


def test_counters(device) -> None:
    a = device.put(np.zeros(100, np.float16), E.F16)
    b = device.put(np.zeros(3, np.int32), E.I32)
    device.hold(np.zeros(100, np.float16), E.F16)
    a.numpy()
    a.numpy()
    b.numpy()
    stats = device.stats()
    assert (stats.sent, stats.fetched, stats.runs) == (212, 412, 0)
    assert stats.used == 3 * 256
    device.free(a)
    assert device.stats().used == 2 * 256


def test_a_value_that_was_refused_is_not_counted(device) -> None:
    with pytest.raises(EvaluationError, match="f16 elements come as float16, found float64"):
        device.put(np.zeros(4), E.F16)
    with pytest.raises(EvaluationError, match="the ktpu machine has no bf16"):
        device.put(np.zeros(4, ml_dtypes.bfloat16), E.BF16)
    assert device.stats() == Stats(sent=0, fetched=0, runs=0, used=0)


def test_freed_stale_and_foreign_values(card, device) -> None:
    other = Device(card, 1)
    a = device.put(np.zeros(4, np.float16), E.F16)
    refused(lambda: other.fetch(a), "f16[4] on mesh 0 is asked for on mesh 1's device; it is another device's value")
    refused(lambda: other.free(a), "f16[4] on mesh 0 is asked for on mesh 1's device; it is another device's value")
    device.free(a)
    refused(a.numpy, "DRAM of mesh 0 of ktpu-v13p: the span at 0x0 has been freed; the value in it is gone")
    b = device.put(np.ones(4, np.float16), E.F16)
    assert b.span.start == a.span.start
    refused(a.numpy, "DRAM of mesh 0 of ktpu-v13p: the span at 0x0 has been freed; the value in it is gone")


def test_a_value_never_reads_what_took_its_place(device) -> None:
    a = device.put(np.zeros(4, np.float16), E.F16)
    device.free(a)
    device.put(np.ones(4, np.float16), E.F16)
    with pytest.raises(DeviceError):
        a.numpy()
    c = device.put(np.zeros(4, np.float16), E.F16)
    device.reset()
    device.put(np.ones(4, np.float16), E.F16)
    refused(
        c.numpy,
        "DRAM of mesh 0 of ktpu-v13p: this value was made before the device was reset (1 resets ago); its bytes are "
        "gone. Put it on the device again",
    )


def small(card_bytes=4096):
    dram = msgspec.structs.replace(MACHINE.dram, bytes=card_bytes + MACHINE.dram.reserved_bytes)
    return msgspec.structs.replace(MACHINE, dram=dram)


def test_dram_ends_where_the_machine_says() -> None:
    device = Device(Card(small()), 2)
    kept = [device.put(np.zeros(1024, np.float16), E.F16) for _ in range(2)]
    refused(
        lambda: device.put(np.zeros(1, np.float16), E.F16),
        "DRAM of mesh 2 of ktpu-v13p: 256 bytes were asked for, and the largest free span has 0 (0 are free in all). "
        "Free values that are no longer needed, or split them further",
    )
    assert device.stats().sent == 4096
    device.free(kept[0])
    device.put(np.zeros(1, np.float16), E.F16)


def test_two_devices_on_the_same_bytes(card) -> None:
    Device(card, 0, window=(0, 4096))
    Device(card, 0, window=(4096, 8192))
    Device(card, 1, window=(0, 4096))
    refused(
        lambda: Device(card, 0, window=(4000, 5000)),
        "mesh 0: bytes 0xfa0 to 0x1388 were asked for, and another device has 0x0 to 0x1000: two devices on the same "
        "bytes. Give each a window of its own",
    )
    refused(
        lambda: Device(card, 0),
        "mesh 0: bytes 0x0 to 0xfff00000 were asked for, and another device has 0x0 to 0x1000: two devices on the same "
        "bytes. Give each a window of its own",
    )


@pytest.mark.parametrize("window", [(-1, 10), (10, 10), (20, 10), (0, 1 << 32), (0, 0)])
def test_a_window_lies_inside_dram(card, window) -> None:
    refused(
        lambda: card.claim(0, window),
        f"window {window[0]:#x} to {window[1]:#x} is not inside the 4,293,918,720 usable bytes of mesh 0",
    )


def test_windows_are_given_back(card) -> None:
    device = Device(card, 3, window=(0, 4096))
    value = device.put(np.zeros(4, np.float16), E.F16)
    device.close()
    with pytest.raises(DeviceError, match="this value was made before the device was reset"):
        value.numpy()
    again = Device(card, 3, window=(0, 4096))
    device.close()  # A second time gives nobody else's window back.
    with pytest.raises(DeviceError, match="two devices on the same bytes"):
        Device(card, 3, window=(0, 4096))
    again.close()
    Device(card, 3)
    refused(
        lambda: card.release(3, (0, 4096)),
        "mesh 3: no device has the bytes 0x0 to 0x1000 to give back",
    )


def test_a_mesh_that_is_not_there(card) -> None:
    with pytest.raises(MachineError, match="ktpu-v13p has no mesh 4"):
        Device(card, 4)


def test_a_device_evaluates_in_the_arithmetic_it_is_given(card) -> None:
    device = Device(card, 0, RealArithmetic())
    assert device.put(np.asarray([0.1]), E.F16).numpy()[0] == 0.1
    grid = Device(Card(load("grid-2x4x4")), 1)
    assert grid.arithmetic.name == "grid"
    assert grid.put(np.ones(3, ml_dtypes.bfloat16), E.BF16).nbytes == 6
    assert grid.dtype(E.BF16) == ml_dtypes.bfloat16


def test_values_without_axes_and_without_elements(device) -> None:
    scalar = device.put(np.asarray(3, np.int32), E.I32)
    empty = device.put(np.zeros((0, 5), np.float16), E.F16)
    assert (scalar.numpy(), scalar.nbytes) == (3, 4)
    assert empty.numpy().shape == (0, 5)
    assert empty.nbytes == 0

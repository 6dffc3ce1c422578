"""Bytes as the card's memory holds them: every image of every value, after operations that leave several."""

import numpy as np
import pytest

from meshwright import kernels
from meshwright.sharding import MeshGroup
from meshwright.targets.ktpu.orders import Drained, Operand, Rows
from programs.cases import halves
from programs.compare import MACHINE, SimulatedCard, image_difference


@pytest.fixture
def card():
    card = SimulatedCard(MACHINE)
    card.close_devices()
    return card


def images(card, *values):
    """(order, bytes in DRAM, elements) of each image of each piece."""
    return [
        (order, content, part.numpy())
        for value in values
        for part in value.parts
        for order, content in card.memory_of(part)
    ]


def feed_forward(group):
    """Values of which some lie as operands, some as clusters left them, some as rows, and some in two orders."""
    x, w1, w2 = halves(1, 14, 96), halves(2, 4 * 46, 96), halves(3, 37, 4 * 46)
    gamma = halves(4, 37)
    values = [group.copy(x), group.split(w1, 0), group.split(w2, 1), group.on_rank(group.copy(gamma), len(group) - 1)]
    product = group.matmul(values[0], values[1])
    hidden = group.each(kernels.gelu, product)
    total = group.matmul_chain_reduce(hidden, values[2])
    normed = group.each(kernels.rms_norm(), total, values[3])
    everywhere = group.broadcast(normed)
    return [*values, product, hidden, total, normed, everywhere, group.each(kernels.softmax(), everywhere)]


@pytest.mark.parametrize("meshes", [1, 2, 4])
def test_every_image_of_every_value(card, meshes):
    group = MeshGroup.open(card.card, meshes)
    if meshes == 1:
        values = [halves(1, 14, 96), halves(2, 46, 96)]
        values = [group.copy(x) for x in values]
        values.append(group.matmul(*values))
        values.append(group.each(kernels.gelu, values[-1]))
        values.append(group.each(kernels.transpose(), values[-1]))
        values.append(group.matmul(values[-1], values[-1]))
    else:
        values = feed_forward(group)
    found = images(card, *values)
    assert {type(order) for order, _, _ in found} == {Operand, Drained, Rows}
    assert len(found) > len(values)
    for order, content, elements in found:
        assert image_difference(order, content, elements) is None


@pytest.mark.parametrize("kernel", ["convolution", "transpose", "rows"])
def test_images_of_what_goes_through_memory(card, kernel):
    group = MeshGroup.open(card.card, 1)
    x = group.copy(halves(1, 2, 6, 6, 40))
    match kernel:
        case "convolution":
            made = group.each(kernels.convolution(padding=1), x, group.copy(halves(2, 8, 3, 3, 40)))
        case "transpose":
            made = group.each(kernels.gelu, group.each(kernels.transpose(0, 3, 1, 2), x))
        case _:
            made = group.each(kernels.reduce("max", 1), group.copy(halves(1, 3, 6000)))
    again = group.each(kernels.gelu, made)
    found = images(card, x, made, again)
    assert found
    for order, content, elements in found:
        assert image_difference(order, content, elements) is None


def test_a_byte_that_is_changed_is_seen_in_every_order(card):
    group = MeshGroup.open(card.card, 4)
    orders = set()
    for order, content, elements in images(card, *feed_forward(group)):
        first, count = next(iter(order.spans()))
        changed = content.copy()
        changed[first] ^= 1
        assert image_difference(order, changed, elements) is not None
        # The last byte of a span may be padding, which means nothing in rows and in what clusters drain.
        last = content.copy()
        last[first + count - 1] ^= 0x80
        orders.add((type(order), image_difference(order, last, elements) is not None))
    assert {order for order, _ in orders} == {Operand, Drained, Rows}
    assert (Operand, False) not in orders


def test_elements_of_another_value_are_seen(card):
    group = MeshGroup.open(card.card, 1)
    a, b = group.copy(halves(1, 8, 64)), group.copy(halves(2, 8, 64))
    product = group.matmul(a, b)
    for order, content, elements in images(card, a, product):
        assert image_difference(order, content, np.roll(elements, 1)) is not None

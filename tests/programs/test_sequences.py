"""Operation after operation on values that stay on the card: relaid, freed, read or not, and the bits stay the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import kernels
from meshwright.errors import MeshwrightError
from meshwright.ir.spec import COPIED, Spec
from meshwright.sharding import MeshGroup
from programs.cases import MORE, halves, same_value
from programs.compare import MACHINE, SimulatedCard, image_difference

SIZES = (12, 24, 36, 60)
"""Axes that one to four meshes divide; 60 is no multiple of what a vector or a sub-tile holds."""
SPECS = (COPIED, Spec.on(0), Spec.on(1))


def by_columns(group, value):
    """The value split by columns, resharded if it isn't."""
    return value if value.spec == Spec.on(1) else group.reshard(value, Spec.on(1))


class Pair:
    """The same calls on a group whose graphs are evaluated and on one that runs programs."""

    def __init__(self, draw, meshes):
        self.draw = draw
        self.card = SimulatedCard(MACHINE)
        self.card.close_devices()
        self.groups = MeshGroup.open(MACHINE, meshes), MeshGroup.open(self.card.card, meshes)
        self.values = []
        self.made = 0

    def pick(self):
        return self.values[self.draw(st.integers(0, len(self.values) - 1))]

    def add(self, call, *values):
        """What `call(group, *values of that group)` gives on both; nothing where a group refuses."""
        evaluating, running = self.groups
        try:
            wanted = call(evaluating, *(value[0] for value in values))
        except MeshwrightError as refusal:
            with pytest.raises(type(refusal)):
                call(running, *(value[1] for value in values))
            return
        self.values.append((wanted, call(running, *(value[1] for value in values))))

    # What may be done next.

    def put(self):
        shape = self.draw(st.sampled_from(SIZES)), self.draw(st.sampled_from(SIZES))
        spec, x = self.draw(st.sampled_from(SPECS)), halves(self.made, *shape)
        self.made += 1
        self.add(lambda group: group.put(x, spec))

    def elements(self):
        kernel = self.draw(st.sampled_from([kernels.gelu, kernels.scale(0.25), kernels.tanh]))
        self.add(lambda group, x: group.each(kernel, x), self.pick())

    def rows(self):
        kernel = self.draw(st.sampled_from([kernels.softmax(), kernels.reduce("max", 1, keep=True)]))
        self.add(lambda group, x: group.each(kernel, x), self.pick())

    def moved(self):
        self.add(lambda group, x: group.each(kernels.transpose(), x), self.pick())

    def both(self):
        kernel, a = self.draw(st.sampled_from([kernels.add, kernels.multiply])), self.pick()
        alike = [b for b in self.values if b[0].shape == a[0].shape and b[0].specs == a[0].specs]
        self.add(lambda group, a, b: group.each(kernel, a, b), a, alike[self.draw(st.integers(0, len(alike) - 1))])

    def product(self):
        self.add(lambda group, a, b: group.matmul(a, b), *self.of_equal_rows())

    def of_equal_rows(self):
        a = self.pick()
        alike = [b for b in self.values if b[0].shape[1:] == a[0].shape[1:]]
        return a, alike[self.draw(st.integers(0, len(alike) - 1))]

    def summed(self):
        """A product over slices of K, along the chain; then back on every mesh."""

        def call(group, a, b):
            total = group.matmul_chain_reduce(by_columns(group, a), by_columns(group, b))
            return group.broadcast(total)

        self.add(call, *self.of_equal_rows())

    def folded(self):
        def call(group, a, b):
            return group.all_reduce(group.matmul(by_columns(group, a), by_columns(group, b)))

        self.add(call, *self.of_equal_rows())

    def spread(self):
        spec = self.draw(st.sampled_from(SPECS))
        self.add(lambda group, x: group.reshard(x, spec), self.pick())

    def shifted(self):
        self.add(lambda group, x: group.shift(x, 1), self.pick())

    def freed(self):
        if len(self.values) > 2:
            value = self.values.pop(self.draw(st.integers(0, len(self.values) - 1)))
            for group, side in zip(self.groups, value, strict=True):
                group.free(side)

    def read(self):
        wanted, found = self.pick()
        same_value(found, wanted)

    def finish(self):
        for wanted, found in self.values:
            same_value(found, wanted)
        for _, found in self.values:
            for part in found.parts:
                for order, content in self.card.memory_of(part):
                    assert image_difference(order, content, part.numpy()) is None


STEPS = [Pair.put, Pair.elements, Pair.rows, Pair.moved, Pair.both, Pair.freed, Pair.read, Pair.shifted] + [
    Pair.product,
    Pair.summed,
    Pair.folded,
    Pair.spread,
] * 2


@settings(deadline=None, max_examples=15 * MORE)
@given(st.data())
def test_any_sequence_of_operations(data):
    pair = Pair(data.draw, data.draw(st.integers(1, 4)))
    for _ in range(3):
        pair.put()
    for _ in range(data.draw(st.integers(8, 20))):
        data.draw(st.sampled_from(STEPS))(pair)
    pair.finish()


def test_memory_is_given_back():
    """What was used for scratch and for images that nobody has any more; whatever is left belongs to a value."""
    card = SimulatedCard(MACHINE)
    card.close_devices()
    group = MeshGroup.open(card.card, 4)
    a, b = group.split(halves(1, 24, 96), 1), group.split(halves(2, 36, 96), 1)
    before = None
    for _ in range(3):
        made = group.matmul_chain_reduce(a, b)
        other = group.each(kernels.softmax(), made)
        turned = group.each(kernels.transpose(), other)
        again = group.broadcast(turned)
        np.asarray(again)
        group.free(made, other, turned, again)
        used = [device.arena.used_bytes for device in group.devices.values()]
        assert before in (None, used)
        before = used

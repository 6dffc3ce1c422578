"""Random programs over values: whatever isn't refused gives what numpy gives, whichever way it was split."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright.kernels as kernels
from meshwright.errors import MeshwrightError, SplitError
from meshwright.ir import library
from meshwright.ir.spec import COPIED, Spec
from sharding.samples import assert_neighbours_only, real_grid, real_group

GROUPS = [lambda: real_group(1), lambda: real_group(2), lambda: real_group((1, 3)), real_group, lambda: real_grid(2, 2)]
SHAPES = [(8, 16), (4, 8, 4), (16,), (16, 4)]


def clamp(x):
    """Keeps numbers small and whole, so that float64 is exact."""
    return library.minimum(library.maximum(x, -8.0), 8.0)


class Program:
    """A value over meshes and what it is, side by side."""

    def __init__(self, group, shape, rng):
        self.group, self.rng = group, rng
        self.truth = rng.integers(-8, 9, shape).astype(float)
        self.value = group.copy(self.truth)
        self.done = []

    def axes(self):
        return len(self.group.ranks.grid)

    def any_axis(self):
        if not self.truth.shape:
            raise SplitError("a single number has no axis")
        return int(self.rng.integers(len(self.truth.shape)))

    def run(self, plan):
        """Runs a plan that is legal; what is on the links is checked on the way."""
        assert_neighbours_only(plan)
        self.value = self.group.run(plan)

    def reshard(self):
        along = int(self.rng.integers(self.axes()))
        axis = self.rng.choice([None, *range(len(self.truth.shape))])
        self.run(self.group.plan_reshard(self.value, COPIED if axis is None else Spec.on(int(axis)), along))

    def double(self):
        self.run(self.group.plan_each(lambda x: x * 2.0, self.value))
        self.truth = self.truth * 2

    def add_one(self):
        self.run(self.group.plan_each(lambda x: x + 1.0, self.value))
        self.truth = self.truth + 1

    def clamp(self):
        self.run(self.group.plan_each(clamp, self.value))
        self.truth = np.clip(self.truth, -8, 8)

    def add_to_itself(self):
        self.run(self.group.plan_each(kernels.add, self.value, self.value))
        self.truth = self.truth + self.truth

    def add_another(self):
        other = self.rng.integers(-8, 9, self.truth.shape).astype(float)
        axis = self.rng.choice([None, *range(len(self.truth.shape))])
        spread = self.group.copy(other) if axis is None else self.group.split(other, int(axis))
        self.run(self.group.plan_each(kernels.add, self.value, spread))
        self.truth = self.truth + other

    def largest(self):
        axis = self.any_axis()
        self.run(self.group.plan_each(kernels.reduce("max", axis, keep=True), self.value))
        self.truth = self.truth.max(axis, keepdims=True)

    def total(self):
        axis = self.any_axis()
        self.run(self.group.plan_each(kernels.reduce("sum", axis), self.value))
        self.truth = self.truth.sum(axis)

    def weights(self):
        depth = self.truth.shape[-1] if self.truth.shape else 1
        return self.rng.integers(-1, 2, (8, depth)).astype(float)

    def product(self):
        weights = self.weights()
        axis = self.rng.choice([None, 0, 1])
        spread = self.group.copy(weights) if axis is None else self.group.split(weights, int(axis))
        self.run(self.group.plan_matmul(self.value, spread))
        self.truth = self.truth @ weights.T

    def chain(self):
        weights = self.weights()
        spread = self.group.split(weights, 1)
        self.run(self.group.plan_chain_reduce(self.value, spread))
        self.truth = self.truth @ weights.T

    def spread_out(self):
        self.run(self.group.plan_broadcast(self.value))

    def transpose(self):
        order = self.rng.permutation(len(self.truth.shape))
        self.run(self.group.plan_each(kernels.transpose(*map(int, order)), self.value))
        self.truth = self.truth.transpose(order)

    def reshape(self):
        size = self.truth.size
        shapes = [
            s for s in [(size,), (1, size), (2, size // 2), (size // 4, 4), (4, 2, size // 8)] if np.prod(s) == size
        ]
        shape = shapes[int(self.rng.integers(len(shapes)))]
        self.run(self.group.plan_reshape(self.value, shape))
        self.truth = self.truth.reshape(shape)

    def all_reduce(self):
        self.run(self.group.plan_all_reduce(self.value, int(self.rng.integers(self.axes()))))

    def reduce(self):
        along = int(self.rng.integers(self.axes()))
        self.run(self.group.plan_to_one(self.value, int(self.rng.integers(self.group.ranks.grid[along])), along))

    def reduce_scatter(self):
        axis = self.any_axis()
        self.run(self.group.plan_reduce_scatter(self.value, axis, int(self.rng.integers(self.axes()))))

    def check(self):
        """The value is what numpy says, once what is partial has been folded."""
        whole = self.value
        for along, spec in enumerate(whole.specs):
            if spec.partial is not None:
                whole = self.group.all_reduce(whole, along)
        assert np.array_equal(whole.numpy(), self.truth), (self.done, str(self.value))


STEPS = [
    name for name in vars(Program) if name[0] != "_" and name not in ("axes", "any_axis", "weights", "run", "check")
]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(GROUPS),
    st.sampled_from(SHAPES),
    st.lists(st.sampled_from(STEPS), min_size=2, max_size=10),
    st.integers(0, 2**32 - 1),
)
def test_programs(open_group, shape, steps, seed):
    program = Program(open_group(), shape, np.random.default_rng(seed))
    for step in steps:
        before = program.value, program.truth
        try:
            getattr(program, step)()
        except MeshwrightError:
            # Refused: nothing has changed.
            assert program.value is before[0] and program.truth is before[1]
            continue
        program.done.append(step)
        program.check()


def test_programs_do_get_somewhere():
    """Most steps are legal at some point; otherwise the property would hold for want of cases."""
    seen = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        program = Program(GROUPS[seed % len(GROUPS)](), SHAPES[seed % len(SHAPES)], rng)
        for step in rng.choice(STEPS, 12):
            try:
                getattr(program, step)()
            except MeshwrightError:
                continue
            seen.add(str(step))
    assert seen == set(STEPS)

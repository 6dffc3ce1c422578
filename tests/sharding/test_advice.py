"""Messages end with calls that would be legal: every one of them is made, and the result is right."""

import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import meshwright.kernels as kernels
from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from sharding.samples import partial, real_group

KERNELS = [
    (kernels.add, [(4, 8), (4, 8)]),
    (kernels.multiply, [(4, 8), (8,)]),
    (kernels.gelu, [(4, 8)]),
    (kernels.softmax(), [(4, 8)]),
    (kernels.rms_norm(), [(4, 8), (8,)]),
    (kernels.MatrixProduct(), [(4, 8), (6, 8)]),
    (kernels.MatrixProduct(), [(2, 4, 8), (6, 8)]),
    (kernels.reduce("max", 0), [(4, 8)]),
    (kernels.concat(1), [(4, 8), (4, 6)]),
]


def spread(group, values, spec):
    """The value spread as stated: as a partial, of two contributions; and what it is as a whole."""
    if spec.partial is None:
        return group.put(values, spec), values
    parts = [values, values[::-1] * 16]
    whole = {Pool.SUM: np.sum, Pool.MAX: np.max, Pool.MIN: np.min}[spec.partial](parts, axis=0)
    return partial(group, parts, spec.partial), whole


def combinations(shapes):
    choices = []
    for shape in shapes:
        split = [Spec.on(a) for a in range(len(shape))]
        choices.append([COPIED, *split, *(Spec(partial=p) for p in (Pool.SUM, Pool.MAX))])
    return product(*choices)


def advised(message):
    """The calls of each line of a message's last part."""
    lines = message.split("Legal instead:")[1].splitlines()
    return [re.findall(r"group\.\w+\([^()]*(?:\([^()]*\))?[^()]*\)", line.strip()) for line in lines]


@pytest.mark.parametrize(("kernel", "shapes"), KERNELS, ids=lambda v: getattr(v, "name", None))
def test_every_call_that_is_advised_is_legal_and_right(kernel, shapes):
    group = real_group((3, 2))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, shape).astype(float) for shape in shapes]
    names = "ab" if len(shapes) > 1 else "x"
    refused = 0
    for specs in combinations(shapes):
        values, wholes = zip(*(spread(group, a, s) for a, s in zip(arrays, specs, strict=True)), strict=True)
        try:
            group.plan_each(kernel, *values)
            continue
        except SplitError as error:
            message = str(error)
        refused += 1
        assert advised(message) and all(advised(message)), message
        truth = group.each(kernel, *map(group.copy, wholes)).numpy()
        for calls in advised(message):
            changed = dict(zip(names, values, strict=True))
            for call in calls:
                name = re.search(r"\((\w+)", call)[1]
                scope = {name: changed[name], "COPIED": COPIED, "Spec": Spec, "group": group}
                if re.match(r"group\.(split|copy)\(", call):
                    # These take the plain array that the value was made of.
                    whole = wholes[names.index(name)]
                    scope |= {name: whole, "group": SimpleNamespace(split=group.split, copy=group.copy)}
                changed[name] = eval(call, scope)
            result = group.each(kernel, *changed.values())
            result = group.all_reduce(result) if result.is_partial else result
            assert np.allclose(result.numpy(), truth, rtol=1e-12), (specs, calls)
    assert refused or kernel in (kernels.add,)

"""How long values over meshes take: planning, lowering and running, beside the arithmetic itself.

Run with `pytest benchmarks/test_sharding.py`. Plans are made anew in every round; graphs are kept by `graph_of` for
plans that are equal, so that lowering by itself is measured behind it.
"""

from itertools import product

import numpy as np
import pytest

from meshwright import kernels
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.numerics.product import matmul_fp16
from meshwright.sharding import MeshGroup, lower
from meshwright.sharding.checks import check_plan
from meshwright.sharding.lower import graph_of
from meshwright.sharding.rules import may_stay_partial

RNG = np.random.default_rng(0)
X = RNG.standard_normal((32, 384)).astype(np.float16)
W = RNG.standard_normal((1536, 384)).astype(np.float16)


@pytest.fixture
def group():
    return MeshGroup.open("ktpu-v13p")


def test_product_on_one_mesh_by_hand(benchmark):
    benchmark(matmul_fp16, X, W)


@pytest.mark.parametrize("how", ["copied", "columns", "chain"])
def test_product(benchmark, group, how):
    if how == "chain":
        a, b = group.split(X, 1), group.split(W, 1)
        benchmark(group.matmul_chain_reduce, a, b)
    else:
        benchmark(group.matmul, group.copy(X), group.copy(W) if how == "copied" else group.split(W, 0))


@pytest.mark.parametrize("what", ["matmul", "chain", "each", "all_to_all"])
def test_planning(benchmark, group, what):
    a, b = group.split(X, 1), group.split(W, 1)
    plan = {
        "matmul": lambda: group.plan_matmul(a, b),
        "chain": lambda: group.plan_chain_reduce(a, b),
        "each": lambda: group.plan_each(kernels.gelu, a),
        "all_to_all": lambda: group.plan_all_to_all(a, 0),
    }[what]
    made = benchmark(plan)
    assert check_plan(made)


@pytest.mark.parametrize("what", ["check", "lower", "lowered before"])
def test_lowering(benchmark, group, what):
    plan = group.plan_all_to_all(group.split(X, 1), 0)
    if what == "check":
        benchmark(check_plan, plan)
    elif what == "lowered before":
        benchmark(graph_of, plan)
    else:
        benchmark(lower._lowered, plan)


@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_collective(benchmark, call):
    group = MeshGroup.open("ktpu-v13p", arithmetic=RealArithmetic())
    value = RNG.standard_normal((64, 1024))
    split = group.split(value, 0)
    partial = group.assemble(group.copy(value).parts, Spec(partial=Pool.SUM))
    run = {
        "all_reduce": lambda: group.all_reduce(partial),
        "reduce_scatter": lambda: group.reduce_scatter(partial, 1),
        "all_gather": lambda: group.all_gather(split),
        "all_to_all": lambda: group.all_to_all(split, 1),
    }[call]
    benchmark(run)


def test_judging_every_elementwise_kernel_in_every_pool(benchmark):
    found = [getattr(kernels, name) for name in kernels.__all__]
    ones = [k for k in found if isinstance(k, type(kernels.add))]

    def judge():
        return [may_stay_partial(k, pool, frozenset({0}), ()) for k, pool in product(ones, Pool)]

    assert any(benchmark(judge))


def test_a_refusal_with_its_legal_calls(benchmark, group):
    a, b = group.split(X, 0), group.split(X, 1)

    def refuse():
        try:
            group.plan_each(kernels.add, a, b)
        except ValueError as error:
            return str(error)
        return ""

    assert "Legal instead" in benchmark(refuse)
    assert group.put(X, COPIED).spec == COPIED

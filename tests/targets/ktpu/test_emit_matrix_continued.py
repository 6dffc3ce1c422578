"""Products that add to the sum of another one, in the accumulator where it lies."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.targets.ktpu.matrix_rig import check, halves

from meshwright.ir.build import GraphBuilder
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.records import Site
from meshwright.targets.ktpu.isa.cluster import Gemm

AT = Site(0, 1, 1)
F16 = ElementType.F16


def summed(parts, rows=16, columns=16, blocks=1):
    """A graph of one sum of products; parts: (K of a block, blocks of K) of each. blocks: of columns."""
    builder = GraphBuilder()
    kept = builder.accumulator(AT, (rows, columns))
    inputs = {}
    for number, (k, count) in enumerate(parts):
        a, b = (
            builder.tensor(f"{name}{number}", (size, k * count), F16, (0,))
            for name, size in (("a", rows), ("b", blocks * columns))
        )
        inputs[f"a{number}"] = (halves(rows, k * count, seed=2 * number),)
        inputs[f"b{number}"] = (halves(blocks * columns, k * count, seed=2 * number + 1),)
        fifos = builder.fifo(AT, (rows, k), F16), builder.fifo(AT, (columns, k), F16)
        along = Loop(count, (0, k))
        builder.load(a, Affine((0, 0), (rows, k), (Loop(blocks, (0, 0)), along)), fifos[0])
        builder.load(b, Affine((0, 0), (columns, k), (Loop(blocks, (columns, 0)), along)), fifos[1])
        op = Matmul((rows, columns, k), count, b_transposed=True)
        builder.compute(op, (*fifos, kept) if number else fifos, (kept,))
    out = builder.fifo(AT, (rows, columns), F16)
    builder.compute(Generic.elementwise(Operand(0), 1, 2), (kept,), (out,))
    result = builder.tensor("c", (rows, blocks * columns), F16, (0,))
    builder.store(result, Affine((0, 0), (rows, columns), (Loop(blocks, (0, columns)),)), out)
    return builder.graph(), inputs


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([32, 64, 96, 256]), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from([4, 8, 16, 32]),
    st.sampled_from([4, 12, 16]),
    st.integers(1, 5),
)
def test_sums_of_products(parts, rows, columns, blocks):
    clusters = check(*summed(parts, rows, columns, blocks))
    gemms = [word for word in clusters.words if isinstance(word, Gemm)]
    assert sum(not word.acc for word in gemms) == blocks, "each sum is opened once"


def test_what_another_product_filled_over_is_filled_again():
    """Both operands of each product fit L1, and neither is there any more when its turn comes again."""
    one = check(*summed([(64, 1)], blocks=6))
    both = check(*summed([(64, 1), (64, 1)], blocks=6))
    assert len(both.words) > 2 * (len(one.words) - 6)

"""The bound on the error, on graphs small enough to count by hand."""

import pytest

from meshwright.certify.degrees import Arguments, Degrees, degrees_of, error_bound
from meshwright.evaluate.field_numbers import PRIME
from meshwright.ir import library
from meshwright.ir.expression import Binary, BinaryOp, Constant, Operand, Special

from .split_graphs import elementwise, embedding, exp2, product, softmax

A, B = Operand(0), Operand(1)
ELEMENTS = 15  # of a 3 x 5 value


def degrees(expr, **options):
    return degrees_of(elementwise(expr, **options))


POLYNOMIALS = {
    "an input": (A, 1),
    "a sum": (A + B, 1),
    "a product": (A * B, 2),
    "a constant factor": (A * 3.0, 1),
    "a product of sums": ((A + 1.0) * (B - A) * (A * B), 4),
    "multiply_add": (library.multiply_add(A, A * B, B), 3),
}


@pytest.mark.parametrize("case", POLYNOMIALS)
def test_degrees_of_polynomials(case):
    expr, degree = POLYNOMIALS[case]
    found = degrees(expr)
    assert (found.output, found.denominators, found.arguments, found.choices) == (degree, 0, {}, 1)
    assert error_bound(found, found) == 2 * degree / PRIME


def test_products_of_matrices_have_degree_two_however_they_are_summed():
    for graph in (product(), product("contraction", 4), product("contraction", 2, "vector"), product("rows", 2)):
        assert degrees_of(graph).output == 2


def test_a_hash_begins_anew_and_its_arguments_are_counted():
    found = degrees(exp2(A * B) * A)
    assert found.output == 2
    assert found.arguments == {"exp2": Arguments(ELEMENTS, 2 * ELEMENTS)}
    # 2 and 2 of the outputs, and 30 arguments of degree 2, each in a pair with 29 others.
    assert error_bound(found, found) == (4 + 29 * 30 * 2) / PRIME


def test_hashes_of_different_functions_are_no_pairs():
    first, second = degrees(exp2(A)), degrees(library.rsqrt(A))
    assert error_bound(first, second) == (2 + 2 * 14 * 15) / PRIME


def test_a_reciprocal_is_an_atom_with_a_denominator():
    found = degrees(library.reciprocal(A * B))
    assert found.denominators == 2 * ELEMENTS
    # The atom itself, and the product of all denominators.
    assert found.output == 1 + 2 * ELEMENTS


def test_reciprocals_of_reciprocals():
    found = degrees(library.reciprocal(library.reciprocal(A) + 1.0))
    inner = ELEMENTS
    outer = ELEMENTS * (1 + inner)
    assert found.denominators == inner + outer
    # The numerator of the inner one comes back in the outer one's.
    assert found.output == 1 + (inner + outer) + inner


def test_a_reciprocal_of_a_row_is_counted_once_a_row():
    # Four rows of eight exponentials of degree 1.
    assert degrees_of(softmax()).denominators == 4
    assert degrees_of(softmax(4)).denominators == 4


def test_operands_of_an_order_are_counted_once_and_constants_once_in_all():
    found = degrees(library.minimum(library.maximum(A * B, -126.0), 126.0))
    assert found.arguments == {"order": Arguments(ELEMENTS + 2, 2 * ELEMENTS)}
    assert found.output == 2


CHOICES = {
    "none": (A * B, 1),
    "two": (library.maximum(A, B), 2),
    "by comparing": (library.select(A < B, A, B), 2),
    "around zero": (library.maximum(A, 0.0), 2),
    "a magnitude": (library.absolute(A), 2),
    "past a clamp": (library.maximum(A, -126.0), 5),
    "four in a row": (library.maximum(library.maximum(A, B), library.maximum(A * B, A + B)), 4),
    "the end of the order": (Binary(BinaryOp.MAX, A, Constant(Special.NEGATIVE_INFINITY)), 2),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choices(case):
    expr, choices = CHOICES[case]
    assert degrees(expr).choices == choices


def test_powers_multiply_through_stored_values():
    square = A * A
    fourth = square * square
    assert degrees(fourth * fourth, kept=fourth).output == 32


def test_where_nothing_is_known_the_bound_is_one():
    assert error_bound(Degrees(2**61, 0, {}, 1), Degrees(0, 0, {}, 1)) == 1.0
    assert error_bound(Degrees(0, 0, {"exp2": Arguments(2**31, 2**31)}, 1), Degrees(0, 0, {}, 1)) == 1.0
    assert error_bound(Degrees(2**60, 0, {}, 1), Degrees(0, 0, {}, 1)) == pytest.approx(0.5)


def test_a_lookup_keeps_the_degree():
    assert degrees_of(embedding(4)).output == 1

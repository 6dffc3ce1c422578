"""The accuracy table: what it counts, and that the documentation prints what is measured."""

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.one_chip import HERE, KTPU, REAL, halves

from meshwright import kernels
from meshwright.kernels.accuracy import Row, markdown, measure, table, unit_in_the_last_place
from meshwright.kernels.accuracy_cases import Case

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.fixture(scope="module")
def measured():
    return table(HERE, KTPU)


def test_the_documentation_prints_what_is_measured(measured):
    printed = PAGE.read_text("utf-8").split("<!-- accuracy -->\n")[1].split("<!-- end -->")[0].strip()
    assert printed == markdown(measured)


def test_lane_work_is_within_rounding_of_f16_nearly_everywhere(measured):
    cancelling = {"matmul", "convolution", "attention", "reduce sum", "tanh", "erf", "layer_norm"}
    for row in measured:
        if row.kernel not in cancelling:
            assert row.units[1] < 1.0, row


def test_products_lose_about_a_hundredth(measured):
    for row in measured:
        if row.kernel in ("matmul", "convolution"):
            assert row.relative[0] < 0.015
            assert row.relative[2] < 0.09


def test_real_arithmetic_has_no_error_to_speak_of():
    for row in table(HERE, REAL):
        # The polynomial of erfc is good to 1.5e-7.
        assert row.relative[2] < (1e-6 if row.kernel.startswith(("erf", "gelu")) else 1e-11), row


def test_an_error_is_counted_over_the_result_and_in_last_places():
    x = np.full((4, 16), 2.0, np.float16)
    row = measure(Case(kernels.scale(1.0), "twos", (x,), lambda x: x * (1 + 2**-11)), HERE, KTPU)
    assert row.relative == pytest.approx((2**-11 / (1 + 2**-11),) * 3)
    assert row.units == pytest.approx((0.5,) * 3)


def test_units_in_the_last_place():
    values = np.array([1.0, 1.999, 2.0, 65504.0, 2**-14, 2**-15, 2**-24, 0.0, -3.0])
    expected = np.array([2**-10, 2**-10, 2**-9, 32.0, 2**-24, 2**-24, 2**-24, 2**-24, 2**-9])
    assert np.array_equal(unit_in_the_last_place(values), expected)
    finite = np.abs(values) < 65504
    assert np.array_equal(np.abs(np.spacing(values[finite].astype(np.float16))).astype(float), expected[finite])


def test_markdown_has_a_line_a_row():
    row = Row("k", "ones", (1e-3, 2e-3, 3e-3), (0.25, 0.5, 12345.6))
    assert markdown([row]).splitlines()[2] == "| k | ones | 1.0e-03 | 2.0e-03 | 3.0e-03 | 0.25 | 0.50 | 12346 |"


def test_the_same_seed_measures_the_same():
    assert halves(1, 4).tolist() == halves(1, 4).tolist()
    assert table(HERE, KTPU, seed=1) == table(HERE, KTPU, seed=1)

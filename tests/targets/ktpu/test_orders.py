"""Byte orders of pieces: every element where the order says, both ways, and nothing else said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.formats import ElementType
from meshwright.targets.ktpu.emit_matrix import OperandImage, ResultImage
from meshwright.targets.ktpu.layout import LayoutError, OperandLayout, ResultLayout
from meshwright.targets.ktpu.orders import Drained, Operand, Rows, order_of, rows

F16, F32, I32 = ElementType.F16, ElementType.F32, ElementType.I32
DTYPES = {F16: np.float16, F32: np.float32, I32: np.int32}

shapes = st.lists(st.integers(1, 20), max_size=4).map(tuple)
matrices = st.tuples(st.lists(st.integers(1, 3), max_size=2).map(tuple), st.integers(1, 40), st.integers(1, 100))


def counted(shape, dtype=np.float16):
    """Every element another one than its neighbours: fp16 counts no further than 2048."""
    return (np.arange(np.prod(shape, dtype=int)) % 2039).astype(dtype).reshape(shape)


def said(order, image):
    return b"".join(image[first : first + count].tobytes() for first, count in order.spans())


@settings(deadline=None, max_examples=100)
@given(shapes, st.sampled_from([F16, F32, I32]), st.booleans())
def test_rows(shape, format, padded):
    order = rows(shape, format, padded)
    values = counted(shape, DTYPES[format])
    image = order.pack(values)
    assert image.nbytes == order.nbytes and order.nbytes % 32 == 0
    np.testing.assert_array_equal(order.unpack(image.tobytes()), values)
    placed = order.placed(1 << 20)
    size = values.itemsize
    for index in np.ndindex(*shape):
        at = placed.address - (1 << 20) + size * sum(i * s for i, s in zip(index, placed.strides, strict=True))
        assert image[at : at + size].view(values.dtype)[0] == values[index]
    if padded and shape:
        assert all(stride % 16 == 0 for stride, n in zip(placed.strides[:-1], shape[:-1], strict=True) if n > 1)


def test_rows_that_need_no_padding_are_one_order():
    assert rows((3, 32), F16, padded=True) == rows((3, 32), F16)
    assert rows((3, 30), F16, padded=True) != rows((3, 30), F16)
    assert rows((), F16, padded=True) == rows((), F16)


@settings(deadline=None, max_examples=100)
@given(matrices, st.integers(1, 4), st.integers(1, 3))
def test_operands(matrix, groups, blocks):
    leading, m, k = matrix
    order = Operand(leading, OperandLayout(m, k, groups, blocks))
    values = counted((*leading, m, k))
    image = order.pack(values)
    assert image.nbytes == order.nbytes
    np.testing.assert_array_equal(order.unpack(image.tobytes()), values)
    assert order_of(order.image(3, 1)) == order
    assert isinstance(order.image(3, 1), OperandImage)


@settings(deadline=None, max_examples=100)
@given(matrices, st.integers(1, 4), st.integers(1, 5))
def test_what_is_drained(matrix, gm, gn):
    leading, m, n = matrix
    order = Drained(leading, ResultLayout.over(m, n, (gm, gn)))
    values = counted((*leading, m, n))
    image = order.pack(values)
    assert image.nbytes == order.nbytes
    np.testing.assert_array_equal(order.unpack(image.tobytes()), values)
    assert order_of(order.image(3, 1)) == order
    assert isinstance(order.image(3, 1), ResultImage)
    # What is between the runs may be anything.
    spoiled = np.full_like(image, 0x5A)
    for first, count in order.spans():
        spoiled[first : first + count] = image[first : first + count]
    np.testing.assert_array_equal(order.unpack(spoiled.tobytes()), values)
    assert said(order, spoiled) == said(order, image)


def test_another_shape_or_size_is_refused():
    order = rows((3, 5), F16)
    with pytest.raises(LayoutError, match=r"Rows: got float16\[5, 3\]; it is for float16\[3, 5\], f16"):
        order.pack(np.zeros((5, 3), np.float16))
    with pytest.raises(LayoutError, match=r"Rows: got float32\[3, 5\]"):
        order.pack(np.zeros((3, 5), np.float32))
    with pytest.raises(LayoutError, match=r"Rows: the image of \[3, 5\] has 32 bytes, not 64"):
        order.unpack(bytes(64))
    assert isinstance(order, Rows)

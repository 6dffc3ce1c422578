"""Operands that a kernel can't take: one refused call a message."""

import numpy as np
import pytest
from tests.kernels.one_chip import HERE, f16, i32

from meshwright import kernels
from meshwright.errors import KernelError
from meshwright.ir.build import GraphBuilder
from meshwright.kernels.kernel import Piece

REFUSED = [
    (
        kernels.add,
        (f16(3, 4), f16(5, 4), f16(1)),
        "add takes 2 operands; 3 are given: f16[3, 4] and f16[5, 4] and f16[1]",
    ),
    (
        kernels.add,
        (f16(3, 4), f16(5, 4)),
        "add: f16[3, 4] and f16[5, 4] don't broadcast: along axis -2 they have 3 and 5 elements",
    ),
    (
        kernels.gelu,
        (i32(3),),
        "gelu: operand 0 is i32[3], whole numbers; it computes with floats. Put the values as floats: "
        "values.astype(numpy.float16)",
    ),
    (kernels.gelu, (f16(0, 384),), "gelu: operand 0 is f16[0, 384], which has no elements; there is nothing to do"),
    (kernels.MatrixProduct(), (f16(3, 4),), "matmul takes a and b, not 1 operands"),
    (
        kernels.MatrixProduct(),
        (f16(3, 4), f16(4, 5)),
        "matmul: `a` is f16[3, 4] and `b` is f16[4, 5]: the last axes, the contraction, have 4 and 5 elements. "
        "The product is a @ b.T: `b` is stored [N][K]",
    ),
    (
        kernels.MatrixProduct(),
        (f16(2, 3, 4), f16(3, 5, 4)),
        "matmul: `a` is f16[2, 3, 4] and `b` is f16[3, 5, 4]: leading axes of both have to be equal, or b have none",
    ),
    (
        kernels.softmax(),
        (),
        "softmax takes x, or x and a mask; 0 operands are given: none",
    ),
    (kernels.softmax(2), (f16(3, 4),), "softmax: axis 2 of f16[3, 4], which has 2 axes"),
    (
        kernels.softmax(),
        (f16(2, 12, 128, 128), f16(2, 128)),
        "softmax: the mask is f16[2, 128] and the operand f16[2, 12, 128, 128]; it has to broadcast to that shape: "
        "axes line up from the last one, each of the same size or of size 1",
    ),
    (
        kernels.layer_norm(),
        (f16(4, 384), f16(384)),
        "layer_norm takes x, gamma and beta, or x, a residual, gamma and beta; 2 operands are given: f16[4, 384] and "
        "f16[384]",
    ),
    (
        kernels.layer_norm(),
        (f16(4, 384), f16(384), f16(1)),
        "layer_norm: x is f16[4, 384], and gamma and beta go along its last axis: [384] is needed, found f16[384] and "
        "f16[1]",
    ),
    (
        kernels.rms_norm(),
        (f16(4, 384), f16(384), f16(384)),
        "rms_norm: x is f16[4, 384] and the residual f16[384]; they have to have the same shape",
    ),
    (kernels.rms_norm(), (f16(), f16()), "rms_norm: x is f16[]; it normalises along the last axis, so it needs one"),
    (kernels.reduce("sum", 3), (f16(4, 384),), "reduce sum: axis 3 of f16[4, 384], which has 2 axes"),
    (
        kernels.rotary(),
        (f16(4, 7), f16(4, 3), f16(4, 3)),
        "rotary: x is f16[4, 7]; its last axis is turned in pairs, so it needs an even size",
    ),
    (
        kernels.rotary(),
        (f16(4, 8), f16(4, 8), f16(4, 8)),
        "rotary: x is f16[4, 8] and cos f16[4, 8]; one angle a pair is needed, 4 on the last axis. Found f16[4, 8] and "
        "f16[4, 8]",
    ),
    (kernels.split_heads(32), (f16(4, 384),), "split_heads is for 3 axes, and the operand is f16[4, 384]"),
    (
        kernels.split_heads(32),
        (f16(2, 4, 380),),
        "split_heads: axis 2 of f16[2, 4, 380] has 380 elements, and a multiple of 32 is needed: it is cut into "
        "factors any x 32",
    ),
    (
        kernels.concat(1),
        (f16(4, 2), f16(5, 2)),
        "concat along axis 1: f16[4, 2] and f16[5, 2] don't go together; all other axes and the element type have "
        "to be equal",
    ),
    (
        kernels.concat(0),
        (f16(4), i32(4)),
        "concat along axis 0: f16[4] and i32[4] don't go together; all other axes and the element type have "
        "to be equal",
    ),
    (kernels.concat(0), (), "concat takes at least one operand; none is given"),
    (
        kernels.slice(0, 2, 9),
        (f16(8, 2),),
        "slice: elements 2 to 9 along axis 0 of f16[8, 2]; it has 0 to 8, and a slice has at least one element",
    ),
    (
        kernels.embedding,
        (f16(8, 2), f16(3)),
        "embedding: the table is f16[8, 2] and the indices are f16[3]; a table is [rows, columns], and indices are "
        "whole numbers (i32) with at least one axis",
    ),
    (
        kernels.convolution(),
        (f16(1, 8, 8, 3), f16(4, 3, 3, 5)),
        "convolution: x is f16[1, 8, 8, 3] and the weights f16[4, 3, 3, 5]; x is [batch, height, width, channels] and "
        "weights are [filters, rows, columns, channels], of the same channels",
    ),
    (
        kernels.convolution(dilation=4),
        (f16(1, 8, 8, 3), f16(4, 3, 3, 3)),
        "convolution: the weights f16[4, 3, 3, 3] cover 9 of rows, and x f16[1, 8, 8, 3] has 8 with its padding",
    ),
]


@pytest.mark.parametrize(("kernel", "operands", "message"), REFUSED, ids=[m[:50] for _, _, m in REFUSED])
def test_operands(kernel, operands, message):
    with pytest.raises(KernelError) as refusal:
        kernel.result(operands)
    assert str(refusal.value) == message


MISMADE = [
    (
        lambda: kernels.softmax(scale=0),
        "softmax: a scale of 0; it has to be positive and finite. Negate x first: negative",
    ),
    (lambda: kernels.layer_norm(0), "layer_norm: eps is 0; it has to be positive and finite, for example 1e-5"),
    (lambda: kernels.rms_norm(-1), "rms_norm: eps is -1; it has to be positive and finite, for example 1e-5"),
    (lambda: kernels.reduce("prod"), "reduce: there is no fold 'prod'; there are sum, mean, max, min"),
    (lambda: kernels.transpose(0, 2), "transpose(0, 2): every axis from 0 to 1 has to be named once"),
    (lambda: kernels.split_heads(0), "a head of 0 elements; it has to have at least one"),
    (
        lambda: kernels.convolution(stride=0),
        "convolution(stride=0, padding=0, dilation=1): strides and dilations are at least 1, paddings at least 0",
    ),
    (
        lambda: kernels.attention(32).through(np.add, 1, 2),
        "attention takes q, k, v; 2 values are given",
    ),
]


@pytest.mark.parametrize(("make", "message"), MISMADE, ids=[m[:50] for _, m in MISMADE])
def test_kernels_that_cant_be_made(make, message):
    with pytest.raises(KernelError) as refusal:
        make()
    assert str(refusal.value) == message


def test_a_slice_that_cuts_through_a_factor_is_refused_where_it_is_emitted():
    builder = GraphBuilder()
    x = builder.tensor("x", (2, 2, 3), HERE.value_format, (0,))
    y = builder.tensor("y", (4, 3), HERE.value_format, (0,))
    with pytest.raises(KernelError) as refusal:
        kernels.Rearrange("merged", ((-1,), (-1,), (-1,)), ((0, 1), (2,))).emit(
            builder, HERE, (Piece(x, 0, (2, 2, 3)),), Piece(y, 0, (2, 3))
        )
    assert str(refusal.value) == (
        "merged: a piece f16[2, 2, 3] gives f16[4, 3], and the piece of the result is f16[2, 3]: a slice cuts "
        "through a factor. Split so that every rank has whole ones"
    )

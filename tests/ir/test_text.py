"""The text form, pinned: what a person reads, and what a diff shows."""

from __future__ import annotations

import pytest

from ir.samples import SAMPLES

# A backslash at the end of a line joins it with the next.
PINNED = {
    "linear_layer": """\
t0 x f16[8, 6] copied on 0
t1 w f16[4, 6] copied on 0
t2 bias f32[1, 4] copied on 0
t3 y f16[8, 4] copied on 0
b0 fifo f16[4, 2] x2 at 0:(0,0)
b1 fifo f16[4, 2] x2 at 0:(0,0)
b2 fifo f32[1, 4] x2 at 0:(0,0)
b3 fifo f16[4, 4] x2 at 0:(0,0)
b4 fifo f16[4, 4] x1 at 0:(0,0)
s0 0:(0,0) load x (0, 0)+[4, 2] 2*(4, 0) 3*(0, 2) x6 -> b0
s1 0:(0,0) load w (0, 0)+[4, 2] 2*(0, 0) 3*(0, 2) x6 -> b1
s2 0:(0,0) load bias (0, 0)+[1, 4] 2*(0, 0) x2 -> b2
s3 0:(0,0) matmul 4x4x2 over 3 b [N][K] bias b2 spill b4 epilogue \
($0 * reciprocal((exp2(min(max((neg($0) * 1.44269504), -126), 126)) + 1))) in sub-blocks 2x4 b0, b1 -> b3
s4 0:(0,0) store y (0, 0)+[4, 4] 2*(4, 0) from sub-blocks 2x4 b3
""",
    "chained_reduce": """\
t0 x f16[4, 8] split 1 on 0, 1
t1 w f16[2, 8] split 1 on 0, 1
t2 part f32[4, 2] partial sum on 0, 1
t3 y f32[4, 2] copied on 0
b0 fifo f16[4, 4] x2 at 0:(0,0)
b1 fifo f16[2, 4] x2 at 0:(0,0)
b2 accumulator fp22[4, 2] x1 at 0:(0,0)
b3 fifo f16[4, 4] x2 at 1:(0,0)
b4 fifo f16[2, 4] x2 at 1:(0,0)
b5 accumulator fp22[4, 2] x1 at 1:(0,0)
b6 fifo f32[4, 2] x2 at 0:(0,0)
s0 0:(0,0) load x (0, 0)+[4, 4] x1 -> b0
s1 0:(0,0) load w (0, 0)+[2, 4] x1 -> b1
s2 0:(0,0) matmul 4x2x4 over 1 b [N][K] b0, b1 -> b2
s3 1:(0,0) load x (0, 0)+[4, 4] x1 -> b3
s4 1:(0,0) load w (0, 0)+[2, 4] x1 -> b4
s5 1:(0,0) matmul 4x2x4 over 1 b [N][K] b3, b4 -> b5
s6 0:(0,0) all_reduce sum of part in the accumulator b2, b5 -> b2
s7 0:(0,0) generic $0 b2 -> b6
s8 0:(0,0) store y (0, 0)+[4, 2] b6
""",
    "multicast_rows": """\
t0 x f32[4, 3] copied on 0
t1 middle f32[3, 4, 3] copied on 0
t2 y f32[3, 2, 3] copied on 0
b0 fifo f32[2, 3] x2 at 0:(0,0)
b1 fifo f32[2, 3] x2 at 0:(1,0)
b2 fifo f32[2, 3] x2 at 0:(2,0)
b3 fifo f32[2, 3] x2 at 0:(0,0)
b4 fifo f32[1, 2, 3] x2 at 0:(0,0)
b5 fifo f32[1, 2, 3] x2 at 0:(0,0)
b6 fifo f32[1, 2, 1] x2 at 0:(0,0)
b7 fifo f32[2, 3] x2 at 0:(1,0)
b8 fifo f32[1, 2, 3] x2 at 0:(1,0)
b9 fifo f32[1, 2, 3] x2 at 0:(1,0)
b10 fifo f32[1, 2, 1] x2 at 0:(1,0)
b11 fifo f32[2, 3] x2 at 0:(2,0)
b12 fifo f32[1, 2, 3] x2 at 0:(2,0)
b13 fifo f32[1, 2, 3] x2 at 0:(2,0)
b14 fifo f32[1, 2, 1] x2 at 0:(2,0)
b15 fifo f32[3, 2, 2] x2 at 0:(1,1)
g0 from 0:(0,0) to (0,0)..(2,0)
s0 0:(0,0) load x (0, 0)+[2, 3] 2*(2, 0) x2 to g0 -> b0
s1 0:(1,0) recv g0 -> b1
s2 0:(2,0) recv g0 -> b2
s3 0:(0,0) generic ($0 * 1) b0 -> b3
s4 0:(0,0) store middle (0, 0, 0)+[1, 2, 3] 2*(0, 2, 0) b3
s5 0:(0,0) load middle (0, 0, 0)+[1, 2, 3] step (1, 1, 1) 2*(0, 2, 0) x2 -> b4
s6 0:(0,0) generic max($0, -inf) b4 -> b5
s7 0:(0,0) reduce sum axes 2 over 2 blocks b5 -> b6
s8 0:(0,0) store y (0, 0, 0)+[1, 2, 1] b6
s9 0:(1,0) generic ($0 * 2) b1 -> b7
s10 0:(1,0) store middle (1, 0, 0)+[1, 2, 3] 2*(0, 2, 0) b7
s11 0:(1,0) load middle (1, 0, 0)+[1, 2, 3] step (1, 1, 1) 2*(0, 2, 0) x2 -> b8
s12 0:(1,0) generic max($0, -inf) b8 -> b9
s13 0:(1,0) reduce sum axes 2 over 2 blocks b9 -> b10
s14 0:(1,0) store y (1, 0, 0)+[1, 2, 1] b10
s15 0:(2,0) generic ($0 * 3) b2 -> b11
s16 0:(2,0) store middle (2, 0, 0)+[1, 2, 3] 2*(0, 2, 0) b11
s17 0:(2,0) load middle (2, 0, 0)+[1, 2, 3] step (1, 1, 1) 2*(0, 2, 0) x2 -> b12
s18 0:(2,0) generic max($0, -inf) b12 -> b13
s19 0:(2,0) reduce sum axes 2 over 2 blocks b13 -> b14
s20 0:(2,0) store y (2, 0, 0)+[1, 2, 1] b14
s21 0:(1,1) generic 0 -> b15
s22 0:(1,1) store y (0, 0, 1)+[3, 2, 2] b15
s4 before s5
s10 before s11
s16 before s17
""",
    "embedding_argmax": """\
t0 table f32[16, 4] split 0 on 0, 1
t1 ids i32[6] copied on 0, 1
t2 scores f32[3, 2, 1] partial argmax on 0, 1
t3 best f32[2, 3] copied on 0
t4 where i32[6] copied on 0
b0 fifo i32[2] x2 at 0:(0,0)
b1 fifo f32[2, 4] x2 at 0:(0,0)
b2 fifo f32[2, 1] x2 at 0:(0,0)
b3 fifo i32[2, 1] x2 at 0:(0,0)
b4 fifo i32[2] x2 at 1:(0,0)
b5 fifo f32[2, 4] x2 at 1:(0,0)
b6 fifo f32[2, 1] x2 at 1:(0,0)
b7 fifo i32[2, 1] x2 at 1:(0,0)
b8 fifo f32[2, 1] x2 at 0:(0,0)
b9 fifo i32[2, 1] x2 at 0:(0,0)
b10 fifo f32[2, 3] x2 at 0:(0,0)
b11 fifo i32[2] x2 at 0:(0,0)
s0 0:(0,0) load ids (0)+[2] 3*(2) x3 -> b0
s1 0:(0,0) load table (0, 0)+[2, 4] 3*(0, 0) pad 0 rows of axis 0 by b0 x3 -> b1
s2 0:(0,0) reduce argmax axes 1 b1 -> b2, b3
s3 1:(0,0) load ids (0)+[2] 3*(2) x3 -> b4
s4 1:(0,0) load table (0, 0)+[2, 4] 3*(0, 0) pad 0 rows of axis 0 by b4 from 8 x3 -> b5
s5 1:(0,0) reduce argmax axes 1 b5 -> b6, b7
s6 0:(0,0) all_reduce argmax of scores b2, b3, b6, b7 -> b8, b9
s7 0:(0,0) permute 0, 1 of grid 1x3 b8 -> b10
s8 0:(0,0) scalar 5 steps b9 -> b11
s9 0:(0,0) store best of rank 0 (0, 0)+[2, 3] b10
s10 0:(0,0) store where (0)+[2] 3*(2) b11
""",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_text_form(name: str) -> None:
    assert str(SAMPLES[name]()).splitlines() == PINNED[name].splitlines()

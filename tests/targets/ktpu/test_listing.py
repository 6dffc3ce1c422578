"""What a plan becomes, as text."""

import re

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import PlacementError


def test_programs_in_an_order_in_which_they_can_run():
    group = mw.MeshGroup.open("ktpu-v13p", 2)
    x, w = (group.split(np.zeros((rows, 64), np.float16), 1) for rows in (4, 4))
    assert (
        group.plan_chain_reduce(x, w).programs(words=True)
        == """\
4 programs of 8 words for 2 units; 12 works in all
  0: host has a.0 of mesh 0
  1: host writes a.0 of mesh 0 as L1 entries, 1 x 1 a run, 256 bytes  after 0
  2: host has b.1 of mesh 0
  3: host writes b.1 of mesh 0 as L1 entries, 1 x 1 a run, 256 bytes  after 2
  4: cluster (1, 1) of mesh 0: stages s0, s1, s2: 3 words  after 1, 3
        0  FILL addr=0x100000 n=1  # a.0 of mesh 0, byte 0x0
        1  FILL addr=0x100100 n=1 sel=B  # b.1 of mesh 0, byte 0x0
        2  GEMM gm=1 gn=1
  5: host has a.0 of mesh 1
  6: host writes a.0 of mesh 1 as L1 entries, 1 x 1 a run, 256 bytes  after 5
  7: host has b.1 of mesh 1
  8: host writes b.1 of mesh 1 as L1 entries, 1 x 1 a run, 256 bytes  after 7
  9: cluster (1, 1) of mesh 1: stages s3, s4, s5: 3 words  after 6, 8
        0  FILL addr=0x1000100000 n=1  # a.0 of mesh 1, byte 0x0
        1  FILL addr=0x1000100100 n=1 sel=B  # b.1 of mesh 1, byte 0x0
        2  GEMM gm=1 gn=1
  10: cluster (1, 1) of mesh 0: stage s6: 1 word, 1 signals at 1:(1,1)  after 4, 9
        0  DRAIN n=1 dnode=1 dst_y=1 dbuf=2 dflags=1 dack_y=1 dmesh=1 dfin=0x11
  11: cluster (1, 1) of mesh 1: matmul.3 of stages s7, s8: 1 word  after 9, 10
        0  DRAIN addr=0x1000100200 n=1  # matmul.3 of mesh 1, byte 0x0"""
    )


def test_copies_and_rows_that_are_padded():
    group = mw.MeshGroup.open("ktpu-v13p", 2)
    text = group.plan_each(mw.kernels.gelu, group.split(np.zeros((4, 30), np.float16), 0)).programs()
    assert "host copies x.0 of mesh 1 -> x_of_1.2 of mesh 0" in text
    assert "host writes x.0 of mesh 0 as rows that begin at multiples of 16, 128 bytes" in text
    assert re.search(r"vector core \(1, 0\) of mesh 0: gelu.1 of stages s0, s1, s2: \d+ words", text)


def test_a_machine_without_instruction_words():
    group = mw.MeshGroup.open("grid-8x8")
    with pytest.raises(PlacementError, match="grid-8x8 has no instruction words: its program is the placed graph"):
        group.plan_each(mw.kernels.gelu, group.copy(np.zeros((4, 32)))).programs()

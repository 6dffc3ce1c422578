"""Stretches of ALU words that run in one pass, against one word at a time with nothing shared."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.vector_rig import Rig, alu_words

from meshwright.numerics import lane
from meshwright.targets.ktpu.isa.vector_formats import COMPARES, Source

NAMES = {"VRSQRT": "rsqrt", "VCMPLT": "lt", "VCMPGT": "gt", "VCMPEQ": "eq"}
READ = {"VADD": "ac", "VSUB": "ac", "VFMA": "abc", "VFNMA": "abc", "VSEL": "abc"}
READ |= dict.fromkeys(("VMUL", "VMAX", "VMIN", *COMPARES), "ab")
WORDS = alu_words(st.integers(0, 3), [0, 0, 0, 1, 2, 3])


class OneAtATime:
    """Registers, and for each element whether anybody can say what it is."""

    def __init__(self, state, length):
        self.length = length
        self.v, self.s, self.k, self.p = state.v.copy(), state.s.copy(), state.k.copy(), state.p.copy()
        self.unknown, self.unknown_p = state.v_taint != 0, state.p_taint != 0
        self.unknown_s = state.s_taint != 0
        self.age = {0: 9, 1: 9}

    def slot(self, selector, register):
        n = self.length
        if selector == Source.V:
            return self.v[register, :n], self.unknown[register, :n]
        if selector == Source.S:
            return np.full(n, self.s[register]), np.full(n, self.unknown_s[register])
        return np.full(n, self.k[register]), np.zeros(n, bool)

    def run(self, word):
        n = self.length
        slots = {name: self.slot(getattr(word, f"s{name}"), getattr(word, f"v{name}")) for name in "abc"}
        read = READ.get(word.op, "a")
        unknown = np.logical_or.reduce([slots[name][1] for name in read])
        op = NAMES.get(word.op, word.op[1:].lower())
        late = self.age[word.pr] < (1 if n >= 64 else 2)
        self.age = {pr: age + 1 for pr, age in self.age.items()}
        if word.op in COMPARES:
            self.p[word.pr, :n] = lane.compare(op, slots["a"][0], slots["b"][0], backend="numpy")
            self.unknown_p[word.pr, :n] = unknown
            self.age[word.pr] = 0
            return
        made = lane.apply(op, *(slots[name][0] for name in "abc"), backend="numpy")
        where = np.ones(n, bool)
        if word.pm:
            where = self.p[word.pr, :n] == (word.pm == 1)
            unknown = unknown | self.unknown_p[word.pr, :n] | late
        self.v[word.vd, :n][where] = made[where]
        if word.pm and late:
            self.unknown[word.vd, :n] = True
        elif word.pm:
            self.unknown[word.vd, :n] = np.where(
                where, unknown, self.unknown[word.vd, :n] | self.unknown_p[word.pr, :n]
            )
        else:
            self.unknown[word.vd, :n] = unknown


@settings(deadline=None, max_examples=150)
@given(st.lists(WORDS, min_size=1, max_size=24), st.sampled_from([5, 16, 20, 64, 128]), st.integers(0, 1 << 30))
def test_one_pass_is_word_after_word(words, length, seed):
    rng = np.random.default_rng(seed)
    rig = Rig()
    for register in range(3):  # The fourth holds what nobody wrote.
        rig.vector(register, lane.from_fp16(rng.integers(0, 1 << 16, 128, dtype=np.uint16)))
        rig.scalar(register, int(lane.from_fp16(rng.integers(0, 1 << 16, 1, dtype=np.uint16))[0]))
    rig.state.p[0], rig.state.p_taint[0] = rng.random(128) < 0.5, 0
    reference = OneAtATime(rig.state, length)
    for word in words:
        reference.run(word)
    answer = rig.run(*rig.length(length), *words)
    assert (answer.fault, answer.defect) == (None, None)
    state = rig.state
    known = state.v_taint[:4] == 0
    np.testing.assert_array_equal(state.v[:4][known], reference.v[:4][known])
    # The core may say of more that it is unknown, never of less.
    assert not (reference.unknown[:4] & known).any()
    settled = state.p_taint[:2] == 0
    np.testing.assert_array_equal(state.p[:2][settled], reference.p[:2][settled])
    assert not (reference.unknown_p[:2] & settled).any()
    np.testing.assert_array_equal(state.v[:4, length:], reference.v[:4, length:])

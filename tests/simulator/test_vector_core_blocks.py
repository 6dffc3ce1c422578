"""Code of a vector core in blocks and word by word: the same registers, L1, memory, answers and reasons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.test_vector_core import KERNELS, kernel_rig
from tests.simulator.vector_rig import Rig, alu_words

from meshwright.numerics import backend, lane
from meshwright.numerics.backend import available
from meshwright.simulator import Kind
from meshwright.simulator.vector_core_block import Block, LaneChoice
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Run
from meshwright.targets.ktpu.isa.vector import encode_code
from meshwright.targets.ktpu.isa.vector_formats import DType, Mode, Reduction, Source

needs_kernels = pytest.mark.skipif(len(available()) == 1, reason="no kernel is compiled here")
WALKS = {0: (0, (1, 8)), 1: (16, (1, 16)), 2: (40, (1, 4), (8, 4)), 3: (7, (0, 8))}
"""L1 walks by descriptor: straight ones, one in two pieces, one that stays where it is."""
MEMORY = 7
"""The descriptor of memory."""


class Ways:
    """Runs the same on a core with blocks and on one without."""

    def __init__(self):
        self.blocks = 0

    def same(self, prepare, payloads):
        found = []
        with pytest.MonkeyPatch.context() as monkeypatch:
            run = Block.run

            def counted(block, *arguments):
                self.blocks += 1
                run(block, *arguments)

            monkeypatch.setattr(Block, "run", counted)
            for blocks in (True, False):
                if not blocks:
                    monkeypatch.setattr(LaneChoice, "now", lambda _: None)
                rig = prepare()
                answers = [rig.core.execute(payload) for payload in payloads]
                found.append((answers, rig))
        (answers, rig), (answers_singly, singly) = found
        assert answers == answers_singly
        same_state(rig.state, singly.state)
        assert rig.memory.words.keys() == singly.memory.words.keys()
        for address, word in rig.memory.words.items():
            np.testing.assert_array_equal(word, singly.memory.words[address])
        return answers, rig


def reasons(state, taints):
    return [state._reasons[taint] for taint in taints.reshape(-1).tolist()]


def same_state(one, other):
    for name in ("v", "s", "p", "l1"):
        taints, others = getattr(one, f"{name}_taint"), getattr(other, f"{name}_taint")
        assert reasons(one, taints) == reasons(other, others), name
        known = taints == 0
        np.testing.assert_array_equal(getattr(one, name)[known], getattr(other, name)[known])
    np.testing.assert_array_equal(one.k, other.k)
    assert (one.length, one.mode) == (other.length, other.mode)


def prepared(seed, words):
    """A core with three known registers of each kind, one that nothing wrote, and L1 that is known up to a word."""
    rng = np.random.default_rng(seed)
    rig = Rig()
    for register in range(3):
        rig.vector(register, lane.from_fp16(rng.integers(0, 1 << 16, 128, dtype=np.uint16)))
        rig.scalar(register, int(lane.from_fp16(rng.integers(0, 1 << 16, 1, dtype=np.uint16))[0]))
    rig.scalar(14, 3)
    rig.scalar(13, 32)
    rig.state.p[0], rig.state.p_taint[0] = rng.random(128) < 0.5, 0
    rig.state.l1[:words] = rng.integers(0, 1 << 16, (words, 16), dtype=np.uint16)
    rig.state.l1_taint[:words] = 0
    for number, (base, *dims) in WALKS.items():
        rig.describe(number, base, *dims)
    rig.describe(MEMORY, 0x1000, (32, 24))
    rig.memory.put(0x1000, rng.integers(0, 1 << 16, 24 * 16, dtype=np.uint16))
    return rig


registers = st.sampled_from([*[0, 1, 2] * 9, 3])
offsets = st.sampled_from([*[0, 8, 16, 24, 100] * 3, 4, 500])
ALU = alu_words(registers, [0, 0, 0, 0, 1, 2])
MOVES = {"ad": st.sampled_from([*[0, 0, 1] * 5, 2, 3]), "vd": registers, "offset": offsets}
LOAD = st.builds(isa.Load, dtype=st.sampled_from([*[DType.FP16] * 40, *[DType.FP32] * 9, 3]), **MOVES)
STORE = st.builds(isa.Store, dtype=st.sampled_from([*[DType.FP16] * 12, DType.FP32]), **MOVES)
OTHERS = st.one_of(
    st.builds(isa.Reduce, vd_sreg=st.integers(0, 2), va=registers, kind=st.just(Reduction.ANY), pr=st.integers(0, 1)),
    st.builds(isa.Reduce, vd_sreg=st.integers(0, 2), va=registers, kind=st.just(Reduction.SUM)),
    st.builds(isa.SetMode, mode=st.sampled_from([Mode.FLAT, Mode.FLAT, Mode.TREE, Mode.D2])),
    st.builds(isa.SetLength, va_sreg=st.sampled_from([13, 13, 14])),
    st.builds(isa.VectorFill, ad=st.just(MEMORY), l1off=st.sampled_from([0, 30, 200])),
    st.builds(isa.VectorDrain, ad=st.just(MEMORY), l1off=st.sampled_from([0, 16])),
    st.just(isa.Barrier()),
    st.builds(isa.Loop, va_sreg=st.just(14), body=st.integers(1, 6)),
    st.builds(isa.Broadcast, sa=st.integers(0, 1), vd=registers, va_sreg=registers),
)
CODE = st.lists(
    st.sampled_from([*[ALU] * 12, *[LOAD] * 5, *[STORE] * 5, OTHERS]).flatmap(lambda kind: kind),
    min_size=1,
    max_size=40,
)


@needs_kernels
@settings(deadline=None, max_examples=200)
@given(CODE, st.sampled_from([128, 64, 32, 16, 20]), st.sampled_from([30, 512, 512]), st.integers(0, 1 << 30))
def test_any_code_in_blocks_is_word_after_word(code, length, known, seed):
    """Twice over: the second run finds what the first one left, and blocks that are made already."""

    def prepare():
        rig = prepared(seed, known)
        rig.load(encode_code([*rig.length(length), *code, isa.Halt()]))
        return rig

    Ways().same(prepare, [Run(pc=0).words()[0]] * 2)


@needs_kernels
@pytest.mark.parametrize("name", KERNELS)
def test_whole_kernels_run_in_blocks(name):
    ways = Ways()
    answers, _ = ways.same(lambda: kernel_rig(KERNELS[name]), [Run(pc=0).words()[0]] * 2)
    assert ways.blocks
    assert answers[0] == answers[1]


LONG = [
    step
    for at in range(12)
    for step in (
        isa.Load(ad=0, vd=0, offset=8 * at),
        isa.Alu(op="VCMPLT", va=0, vb=1, pr=0),
        isa.Alu(op="VMUL", vd=1, va=0, vb=2),
        isa.Alu(op="VEXP2", vd=1, va=1),
        isa.Alu(op="VMOV", vd=1, va=2, pm=1, pr=0),
        isa.Store(ad=0, vd=1, offset=100 + 8 * at),
    )
]
BREAKS = {
    "a fault of the chain": ([isa.Alu(op="VMOV", sa=Source.C, vd=1)], None),
    "an element type that there isn't": ([isa.Load(dtype=3, ad=0, vd=1)], None),
    "a register that nothing wrote": ([isa.Alu(op="VADD", vd=1, va=9, vc=0)], "a vector register element that nothing"),
    "a scalar that nothing wrote": ([isa.Alu(op="VMUL", sb=Source.S, vd=1, vb=9)], "a scalar register that nothing"),
    "L1 that nothing wrote": ([isa.Load(ad=0, vd=1, offset=300)], "an element of L1 that nothing has written"),
    "a predicate too early": (
        [isa.Alu(op="VCMPGT", va=1, vb=2, pr=1), isa.Alu(op="VMOV", vd=1, va=2, pm=1, pr=1)],
        "before the compare that wrote it has finished",
    ),
    "a predicate too early for what the block made": (
        [
            isa.Alu(op="VMOV", vd=1, va=2),
            isa.Alu(op="VCMPGT", va=1, vb=2, pr=1),
            isa.Alu(op="VMOV", vd=1, va=0, pm=1, pr=1),
        ],
        "before the compare that wrote it has finished",
    ),
    "more of L1 than is safe": (
        [isa.Load(ad=0, vd=1), isa.Store(ad=0, vd=1, offset=490)],
        "the run uses L1 up to word",
    ),
    "a predicate that nothing wrote": ([isa.Alu(op="VMOV", vd=1, va=2, pm=1, pr=3)], "a predicate that nothing"),
    "L1 before its fill": (
        [isa.VectorFill(ad=MEMORY, l1off=0), isa.Load(ad=0, vd=1)],
        "before a VBAR has waited for the fill",
    ),
    "a store under a fill": (
        [isa.VectorFill(ad=MEMORY, l1off=100), isa.Store(ad=0, vd=1, offset=100)],
        "VST to L1 words that a fill may still write",
    ),
    "a store of FP32": ([isa.Store(dtype=DType.FP32, ad=0, vd=1, offset=100)], "VST of FP32 writes the second half"),
    "a store that is loaded again": ([isa.Store(ad=0, vd=2, offset=260), isa.Load(ad=0, vd=1, offset=264)], None),
    "a register that is stored, then changed": (
        [
            isa.Alu(op="VCMPGT", va=0, vb=2, pr=0),
            isa.Alu(op="VMOV", vd=1, va=2),
            isa.Store(ad=0, vd=1, offset=260),
            isa.Alu(op="VMOV", vd=1, va=0, pm=1, pr=0),
        ],
        None,
    ),
    "a store over what was loaded": ([isa.Load(ad=0, vd=1), isa.Store(ad=0, vd=2), isa.Load(ad=0, vd=1)], None),
    "two stores to the same words": (
        [isa.Store(ad=0, vd=1, offset=260), isa.Store(ad=0, vd=2, offset=264), isa.Store(ad=0, vd=0, offset=260)],
        None,
    ),
    "a pass that ends in what is unknown": (
        [
            isa.Load(ad=0, vd=0),
            isa.Alu(op="VCMPGT", va=0, vb=2, pr=0),
            isa.Alu(op="VMOV", vd=1, va=0),
            isa.Alu(op="VADD", vd=1, va=9, vc=0, pm=1, pr=0),
            isa.Alu(op="VADD", vd=2, va=1, vc=0),
        ],
        "a vector register element that nothing",
    ),
    "code that nobody wrote": (["hole"], "a word of code that nothing has written is run"),
}


@needs_kernels
@pytest.mark.parametrize("name", BREAKS)
def test_what_the_machine_gets_wrong_in_the_middle_of_long_code(name):
    """The words before run in blocks, and the reason is the same, at the same word."""
    broken, problem = BREAKS[name]
    show = [isa.Store(ad=0, vd=1, offset=240), isa.VectorDrain(ad=MEMORY, l1off=240)]

    def prepare():
        rig = prepared(0, 290)
        whole = [*rig.length(128), *LONG, *(step for step in broken if step != "hole"), *show, *LONG, isa.Halt()]
        rig.describe(MEMORY, 0x1000, (32, 8))
        rig.load(encode_code(whole))
        if broken == ["hole"]:
            rig.state.imem[len(encode_code([*rig.length(128), *LONG])) + 1] = None
        return rig

    ways = Ways()
    answers, rig = ways.same(prepare, [Run(pc=0).words()[0]])
    assert ways.blocks
    if problem is None:
        return
    said = [*rig.state._reasons, *(answer.defect for answer in answers if answer.defect is not None)]
    assert any(problem in reason.what for reason in said)


@needs_kernels
def test_code_that_never_ends_is_stopped_at_the_same_word():
    def prepare():
        rig = prepared(0, 512)
        size = len(rig.state.imem)
        rig.load(encode_code([isa.Alu(op="VADD", vd=1, va=0, vc=2), isa.Load(ad=0, vd=0)] * (size // 2)))
        return rig

    ways = Ways()
    answers, _ = ways.same(prepare, [Run(pc=0).words()[0]])
    assert answers[0].defect.kind is Kind.DEADLOCK
    assert ways.blocks


@needs_kernels
def test_blocks_follow_descriptors_and_code_that_change():
    def prepare():
        rig = prepared(3, 512)
        rig.load(encode_code([*rig.length(128), *LONG, isa.Halt()]))
        return rig

    again = Run(pc=0).words()[0]
    other = encode_code([isa.Load(ad=0, vd=0, offset=40)])[0]
    payloads = [again, Desc.base(0, 3).words()[0], again, Imem(addr=3, word=other).words()[0], again]
    payloads += [Desc.dim(0, 0, stride=2, bound=8).words()[0], again]
    ways = Ways()
    ways.same(prepare, payloads)
    assert ways.blocks


@pytest.mark.parametrize("name", available()[1:])
def test_every_compiled_backend_runs_blocks(name):
    def prepare():
        rig = prepared(5, 512)
        rig.load(encode_code([*rig.length(128), *LONG, isa.Halt()]))
        return rig

    ways = Ways()
    with backend.using(name):
        ways.same(prepare, [Run(pc=0).words()[0]])
    assert ways.blocks
    ways = Ways()
    with backend.using("numpy"):
        ways.same(prepare, [Run(pc=0).words()[0]])
    assert not ways.blocks

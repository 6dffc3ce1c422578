"""What stops a vector core, and what it gets wrong without a word."""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulator.vector_rig import DRAIN, FILL, LOAD, SPEC, STORE, Rig, drained

from meshwright.numerics import lane
from meshwright.simulator.faults import Kind
from meshwright.simulator.vector_core import Defect, Fault
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.vector_formats import Mode, Reduction, Source

K = {"sa": Source.K, "sb": Source.K, "sc": Source.K}
D2 = isa.SetMode(mode=Mode.D2)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ((isa.Load(ad=LOAD, vd=0, dtype=0),), Fault.DTYPE),
        ((isa.Store(ad=LOAD, vd=0, dtype=3),), Fault.DTYPE),
        ((isa.Convert(vd=0, va=0, dtype=7),), Fault.DTYPE),
        # The selector of a vector register in a slot that VMOV doesn't even read.
        ((D2, isa.Alu(op="VMOV"), isa.Alu(op="VMOV", sa=Source.C, sb=Source.V, sc=Source.K)), Fault.VSRC),
        ((isa.Alu(op="VMOV", sa=Source.C),), Fault.CHAIN),
        ((D2, isa.Alu(op="VMUL", sc=Source.C), isa.Alu(op="VMOV", **K)), Fault.CHAIN),
        ((isa.Reduce(vd_sreg=0, va=0, kind=Reduction.SUM),), Fault.OPCODE),
        ((D2, isa.Reduce(vd_sreg=0, va=0, kind=Reduction.DOT)), Fault.OPCODE),
        ((isa.Loop(va_sreg=1, body=2), isa.Loop(va_sreg=1, body=1)), Fault.LOOP),
        ((isa.SetImmediate(vd_sreg=2, imm=0), isa.SetLength(va_sreg=2)), Fault.VL),
        ((isa.SetImmediate(vd_sreg=2, imm=129), isa.SetLength(va_sreg=2)), Fault.VL),
        ((isa.SetImmediate(vd_sreg=2, imm=0x3F8000), isa.SetLength(va_sreg=2)), Fault.VL),
        (
            (
                isa.SetImmediate(vd_sreg=2, imm=40),
                isa.SetLength(va_sreg=2),
                isa.SetMode(mode=Mode.TREE),
                isa.Reduce(vd_sreg=0, va=0, kind=Reduction.MAX),
            ),
            Fault.REDVL,
        ),
    ],
)
def test_faults(code, fault):
    rig = Rig()
    rig.scalar(1, 2)
    answer = rig.run(*code)
    assert (answer.fault, answer.defect) == (fault, None)
    # The next run starts anew.
    assert rig.run(isa.SetMode(mode=Mode.FLAT)).fault is None


@pytest.mark.parametrize("word", [isa.VectorFill(ad=0), isa.VectorDrain(ad=0), isa.VectorDrain(ad=0, to_node=1)])
def test_walks_of_more_than_256_words_fault(word):
    rig = Rig()
    rig.describe(0, 0, (32, 257))
    assert rig.run(word).fault is Fault.LEN


@pytest.mark.parametrize(("buffer", "granule"), [(1, 0), (0, 511)])
def test_a_burst_that_has_no_place_is_a_fault_told_once(buffer, granule):
    rig = Rig()
    assert not rig.core.receive(buffer, granule, np.zeros((2, 16), np.uint16))
    assert rig.core.take_fault() is Fault.CUDATA
    assert rig.core.take_fault() is None
    assert not rig.core.receive(0, 0, np.zeros((2, 16), np.uint16), interrupted=True)
    assert rig.core.take_fault() is Fault.CUDATA
    assert rig.core.receive(0, 510, np.zeros((2, 16), np.uint16))


def defect_of(rig: Rig, *code) -> Defect:
    answer = rig.run(*code)
    assert answer.fault is None
    assert answer.defect is not None
    return answer.defect


def ready(length: int = 16) -> tuple[Rig, tuple]:
    """A rig whose V0 to V2 hold numbers, and the instructions that set the vector length."""
    rig = Rig()
    for register, value in enumerate((1.0, -2.0, 3.0)):
        rig.vector(register, np.full(128, lane.immediate(value)))
    return rig, rig.length(length)


def test_float_stores_are_known_to_be_wrong():
    rig, length = ready()
    code = drained(rig, 0)
    defect = defect_of(rig, *length, isa.Store(ad=STORE, vd=0, dtype=2), code[1])
    assert defect == Defect(Kind.UNPREDICTABLE, "VST of FP32 writes the second half of a chunk over the first", 3)


def test_conversion_to_half_is_known_to_be_wrong():
    rig, length = ready()
    defect = defect_of(rig, *length, isa.Convert(vd=1, va=0), *drained(rig, 1))
    assert defect == Defect(
        Kind.UNPREDICTABLE, "VCVT to FP16 writes each chunk the conversion of the chunk before it", 3
    )
    # Overwritten before anybody sees it, it does no harm.
    rig, length = ready()
    assert rig.run(*length, isa.Convert(vd=1, va=0), isa.Alu(op="VMOV", vd=1, va=0), *drained(rig, 1)).defect is None


FILLERS = {
    "two words": (isa.Alu(op="VMOV", vd=8, va=0), isa.Alu(op="VMOV", vd=9, va=0)),
    "one word": (isa.Alu(op="VMOV", vd=8, va=0),),
    "mode": (isa.SetMode(mode=Mode.FLAT),),
    "load": (isa.Load(ad=LOAD, vd=8),),
    "immediate": (isa.SetImmediate(vd_sreg=3, imm=0),) * 3,
    "nothing": (),
}


@pytest.mark.parametrize(
    ("length", "filler", "safe"),
    [
        (16, "two words", True),
        (32, "two words", True),
        (48, "two words", True),
        (64, "one word", True),
        (128, "one word", True),
        (16, "mode", True),
        (128, "load", True),
        (32, "one word", False),
        (48, "one word", False),
        (128, "nothing", False),
        (64, "immediate", False),
    ],
)
def test_predicates_are_read_late_enough_or_not_at_all(length, filler, safe):
    rig, setting = ready(length)
    rig.describe(LOAD, 0, (1, 8))
    code = (
        *setting,
        isa.Alu(op="VCMPLT", va=0, vb=1, pr=2),
        *FILLERS[filler],
        isa.Alu(op="VMOV", vd=2, va=0, pr=2, pm=1),
        *drained(rig, 2, length),
    )
    answer = rig.run(*code)
    if safe:
        assert answer.defect is None
        assert rig.memory.get(0x2000, length).view(np.float16).tolist() == [3.0] * length
    else:
        assert answer.defect is not None
        assert answer.defect.kind is Kind.UNPREDICTABLE
        assert answer.defect.what == "predicate 2 is read before the compare that wrote it has finished"


def test_the_select_of_two_masked_moves_after_a_compare():
    def code(rig, *between):
        compare = isa.Alu(op="VCMPLT", va=0, vb=1, pr=1)
        moves = isa.Alu(op="VMOV", vd=5, va=0, pr=1, pm=1), isa.Alu(op="VMOV", vd=5, va=2, pr=1, pm=2)
        return (compare, *between, *moves, *drained(rig, 5))

    rig, length = ready()
    assert defect_of(rig, *length, *code(rig)).kind is Kind.UNPREDICTABLE
    rig, length = ready()
    # Both halves of a register that nothing had written: all of it is known afterwards.
    assert rig.run(*length, *code(rig, isa.SetMode(mode=Mode.FLAT))).defect is None
    assert rig.memory.get(0x2000, 16).view(np.float16).tolist() == [3.0] * 16


def test_reduction_of_a_predicate_reads_that_of_the_word_before():
    rig, length = ready()
    compare = isa.Alu(op="VCMPLT", va=1, vb=0, pr=1)
    any_of = isa.Reduce(vd_sreg=4, va=0, kind=Reduction.ANY, pr=1)
    other = isa.Alu(op="VMOV", vd=8, va=0, pr=3)
    seen = isa.Broadcast(sa=1, vd=5, va_sreg=4), *drained(rig, 5)
    flat = isa.SetMode(mode=Mode.FLAT)
    defect = defect_of(rig, *length, compare, other, flat, any_of, *seen)
    assert defect.what == "VRED ANY or ALL reads the predicate that the word before it names, not its own, 1"
    defect = defect_of(rig, *length, compare, any_of, *seen)
    assert defect.what == "predicate 1 is read before the compare that wrote it has finished"
    assert rig.run(*length, compare, other, flat, any_of, any_of, *seen).defect is None


def test_loads_before_the_barrier():
    rig, length = ready()
    rig.memory.put(0, np.arange(16, dtype=np.uint16))
    rig.describe(FILL, 0, (32, 1))
    rig.describe(LOAD, 4, (1, 1))
    fill, load = isa.VectorFill(ad=FILL, l1off=4), isa.Load(ad=LOAD, vd=0)
    defect = defect_of(rig, *length, fill, load, isa.Barrier(), *drained(rig, 0))
    assert defect == Defect(
        Kind.UNPREDICTABLE, "L1 words are read before a VBAR has waited for the fill that writes them"
    )
    assert rig.run(*length, fill, isa.Barrier(), load, *drained(rig, 0)).defect is None
    # A second fill waits for the first.
    assert rig.run(*length, fill, isa.VectorFill(ad=FILL, l1off=9), load, *drained(rig, 0)).defect is None


def test_stores_into_a_fill_that_is_arriving():
    rig, length = ready()
    rig.memory.put(0, np.arange(16, dtype=np.uint16))
    rig.describe(FILL, 0, (32, 1))
    code = drained(rig, 0)
    defect = defect_of(rig, *length, isa.VectorFill(ad=FILL), code[0], isa.Barrier(), code[1])
    assert defect.what == "VST to L1 words that a fill may still write"


def test_memory_that_was_just_drained_to_is_not_read_back():
    rig, length = ready()
    rig.describe(FILL, 0x2000, (32, 1))
    defect = defect_of(rig, *length, *drained(rig, 0), isa.VectorFill(ad=FILL, l1off=3))
    assert defect.kind is Kind.UNPREDICTABLE
    assert defect.what.startswith("VFILL reads memory that this run has drained to")


@pytest.mark.parametrize(("last", "safe"), [(319, True), (320, False), (352, False), (510, False), (511, True)])
def test_footprints_in_the_band_that_a_card_got_wrong(last, safe):
    rig, length = ready()
    rig.describe(LOAD, last, (1, 1))
    answer = rig.run(*length, isa.Load(ad=LOAD, vd=0))
    if safe:
        assert answer.defect is None
    else:
        assert answer.defect == Defect(
            Kind.UNPREDICTABLE,
            f"the run uses L1 up to word {last}: between 320 words (l1_safe_words) and all 512 a card gave wrong data "
            "and reported success",
        )
    assert SPEC.l1_safe_words == 320


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ((isa.SetLength(va_sreg=9),), "a scalar register that nothing has written is used"),
        ((isa.Loop(va_sreg=9, body=1), isa.Barrier()), "a scalar register that nothing has written is used"),
        ((isa.Shuffle(vd=0, va=0, vb_sreg=9),), "a scalar register that nothing has written is used"),
        ((isa.VectorDrain(ad=DRAIN),), "an element of L1 that nothing has written is used"),
        ((isa.VectorDrain(ad=DRAIN, to_node=1),), "an element of L1 that nothing has written is used"),
        ((D2, isa.Alu(op="VMOV")), "a chain of 2 ALU words is cut short after 1"),
        (
            (D2, isa.Alu(op="VCMPLT"), isa.Alu(op="VMOV", **(K | {"sa": Source.C}))),
            "a compare inside a chain gives the next link nothing known",
        ),
        (
            (isa.SetImmediate(vd_sreg=1, imm=2), isa.Loop(va_sreg=1, body=1), isa.SetImmediate(vd_sreg=1, imm=2)),
            "a loop of 1 words ends inside a VSETI",
        ),
    ],
)
def test_what_nothing_defines(code, what):
    defect = defect_of(Rig(), *code)
    assert (defect.kind, defect.what) == (Kind.UNDEFINED, what)


@pytest.mark.parametrize("op", ["VMOV", "VADD", "VSEL"])
def test_unwritten_registers_poison_what_is_made_of_them(op):
    rig, length = ready()
    rig.state.v_taint[7] = Rig().state.v_taint[7]
    defect = defect_of(rig, *length, isa.Alu(op=op, va=7, vb=0, vc=1, vd=3), *drained(rig, 3))
    assert defect.what == "a vector register element that nothing has written is used"
    # A slot that isn't read does no harm.
    assert rig.run(*length, isa.Alu(op="VMOV", va=0, vb=7, vc=7, vd=3), *drained(rig, 3)).defect is None


def test_unwritten_tails_go_along_and_are_named():
    rig, length = ready(20)
    answer = rig.run(*length, isa.Alu(op="VMOV", va=0, vd=9), *drained(rig, 9, 20))
    assert answer.defect is None
    assert rig.memory.known.tolist() == [[True] * 16, [True] * 4 + [False] * 12]


def test_arithmetic_in_tree_mode_is_nobodys_guess():
    rig, length = ready()
    words = (isa.Alu(op="VMOV"), *(isa.Alu(op="VMOV", **(K | {"sa": Source.C}), vd=3) for _ in range(3)))
    defect = defect_of(rig, *length, isa.SetMode(mode=Mode.TREE), *words, *drained(rig, 3))
    assert defect.what == "an elementwise operation in TREE mode: what it gives is stated nowhere"


def test_squares_of_two_different_registers():
    rig, length = ready()
    red = isa.Reduce(vd_sreg=4, va=0, vb=1, kind=Reduction.SUMSQ)
    code = (isa.SetMode(mode=Mode.TREE), red, isa.Broadcast(sa=1, vd=5, va_sreg=4))
    assert defect_of(rig, *length, *code, *drained(rig, 5)).what == "VRED SUMSQ of two different registers"


def test_code_that_is_not_there_or_never_ends():
    rig = Rig()
    defect = rig.run(isa.Barrier(), halt=False).defect
    assert defect == Defect(Kind.UNDEFINED, "a word of code that nothing has written is run", 1)
    rig.load([isa.Barrier().words()[0]] * SPEC.instructions)
    assert rig.run(halt=False).defect is not None
    assert rig.run(halt=False).defect.kind is Kind.DEADLOCK


def test_addresses_between_words():
    rig = Rig()
    rig.describe(FILL, 0x1010, (32, 2))
    defect = defect_of(rig, isa.VectorFill(ad=FILL))
    assert defect == Defect(Kind.UNDEFINED, "byte address 0x1010 is not that of a whole word of memory", 0)


def test_reserved_bits_are_no_instruction():
    rig = Rig()
    rig.load([isa.Alu(op="VMOV").words()[0] | 1])
    defect = rig.run(halt=False).defect
    assert defect is not None
    assert "reserved bits [0]" in defect.what

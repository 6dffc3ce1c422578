"""Runs of a vector core, followed before they run: each rule at its limit and one past it, messages pinned."""

import json
from pathlib import Path

import pytest

from meshwright.machine import load
from meshwright.targets.ktpu.isa import (
    Desc,
    Imem,
    InstructionError,
    Program,
    Run,
    assemble,
    check_program,
    decode_code,
    load_code,
)

GOLDEN = Path(__file__).parents[1] / "golden"
KERNELS = json.loads((GOLDEN / "ktpu_vector_words.json").read_text())["kernels"]
MACHINE = load("ktpu-v13p")
MESH = 2


def check(text, machine=MACHINE):
    check_program(assemble(text, "VC"), machine, MESH, (1, 0))


def refusal(text):
    program = assemble(text, "VC")
    with pytest.raises(InstructionError) as refused:
        check_program(program, MACHINE, MESH, (1, 0))
    run = len(program.words) - 1
    text = str(refused.value)
    assert text.startswith(f"word {run}: ")
    return text.removeprefix(f"word {run}: ")


def run(*lines, halt=True):
    return "\n".join([*lines, *(["VHALT"] if halt else []), "RUN"])


def length(count):
    return f"VSETI vd_sreg=0 imm={count}", "VSETVL va_sreg=0"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_golden_kernels_are_legal(kernel):
    code = decode_code([int(word, 16) for word in kernel["words"]])
    descriptors = [Desc(ad=d["ad"], fld=d["fld"], value=int(d["value"], 16)) for d in kernel["descriptors"]]
    program = Program("VC", (*load_code(code), *descriptors, Run(pc=0)))
    check_program(program, MACHINE, 0, (1, 0))
    # Their addresses are local ones, which elsewhere would alias to mesh 0.
    with pytest.raises(InstructionError, match=r"is in mesh 0, and the unit is on mesh 2"):
        check_program(program, MACHINE, MESH, (1, 0))


# The end, and what is executed.


def test_a_run_ends_with_vhalt():
    check(run("VBAR"))
    assert refusal(run("VBAR", halt=False)) == (
        "word 1 of instruction memory: the run gets here, and the program writes nothing there; a run ends with VHALT"
    )


def test_a_run_starts_where_it_says():
    check(".at 40\nVHALT\nRUN pc=40")
    assert refusal(".at 40\nVHALT\nRUN pc=39").startswith("word 39 of instruction memory: the run gets here")


def test_code_after_the_halt_is_not_judged():
    check("VHALT\nIMEM addr=1 word=0x1\nRUN")
    assert refusal("IMEM addr=1 word=0x1\nVBAR\nRUN pc=1".replace("VBAR", ".at 2\nVHALT")) == (
        "vector word 1: VMOV: word 0x00000001 sets reserved bits [0], which are zero in every VMOV"
    )


def test_the_last_word_written_counts():
    check("IMEM addr=0 word=1\n.at 0\nVHALT\nRUN")


def test_a_run_leaves_in_flat_mode():
    check(run("VSETMODE mode=D2", "VSETMODE mode=FLAT"))
    assert refusal(run("VSETMODE mode=TREE")) == (
        "vector word 1, VHALT: the run ends in TREE mode, which stays; put VSETMODE mode=FLAT before it"
    )


# Chains.


def test_the_first_word_of_a_chain_has_no_stage_before():
    check(run("VADD sc=K"))
    for slot in ("sa", "sb", "sc"):
        assert refusal(run(f"VADD {slot}=C")) == (
            "vector word 0, VADD: a slot takes C, the stage before, in the first word of a chain (F_CHAIN)"
        )


@pytest.mark.parametrize(("mode", "depth"), [("D2", 2), ("D4", 4), ("TREE", 4)])
def test_later_words_of_a_chain_read_no_vectors(mode, depth):
    later = ["VMUL sa=C sb=S sc=K"] * (depth - 1)
    flat = "VSETMODE mode=FLAT"
    check(run(f"VSETMODE mode={mode}", "VADD", *later, "VADD", *later, flat))
    for slot in ("sa", "sb", "sc"):
        selectors = {"sa": "C", "sb": "S", "sc": "K"} | {slot: "V"}
        bad = "VMUL " + " ".join(f"{name}={source}" for name, source in selectors.items())
        assert refusal(run(f"VSETMODE mode={mode}", "VADD", *later[1:], bad, flat)) == (
            f"vector word {depth}, VMUL: a slot takes V in word {depth} of a chain; only the first may, used or not "
            "(F_VSRC): set slots without use to K"
        )
    assert refusal(run(f"VSETMODE mode={mode}", "VADD", *later[1:], "VBAR")) == (
        f"vector word {depth}, VBAR: {depth - 1} of {depth} words of a chain stand before it; in {mode} mode {depth} "
        "ALU words make one operation"
    )


# Lengths.


@pytest.mark.parametrize("count", [1, 128])
def test_lengths_that_there_are(count):
    check(run(*length(count)))


@pytest.mark.parametrize("count", [0, 129])
def test_lengths_that_there_are_not(count):
    assert refusal(run(*length(count))) == (
        f"vector word 2, VSETVL: S0 = {count}: a vector has 1 to 128 elements (F_VL)"
    )


def test_a_length_that_only_the_run_knows_is_not_judged():
    check(run("VSETI imm=0", "VBCAST vd=0 va_sreg=0", "VSETVL va_sreg=0"))
    check(run("VSETVL va_sreg=5"))
    assert "S0 = 0" in refusal(run("VSETI imm=0", "VBCAST sa=1 vd=0 va_sreg=0", "VSETVL va_sreg=0"))
    check(run("VSETI sa=3 vd_sreg=0 imm=0", "VSETVL va_sreg=0"))  # K3, not S0


# Reductions.

TREE, FLAT = "VSETMODE mode=TREE", "VSETMODE mode=FLAT"


@pytest.mark.parametrize("kind", ["SUM", "MAX", "MIN", "SUMSQ", "DOT", "EXPSUM"])
def test_reductions_are_for_tree_mode_and_whole_chunks(kind):
    reduce = f"VRED vd_sreg=1 va=2 vb=2 kind={kind}"
    for count in (16, 128):
        check(run(*length(count), TREE, reduce, FLAT))
    check(run("VSETVL va_sreg=9", TREE, reduce, FLAT))
    for count in (15, 17, 127):
        assert refusal(run(*length(count), TREE, reduce, FLAT)) == (
            f"vector word 4, VRED: {kind} of {count} elements: a reduction takes multiples of 16 (F_REDVL); fill up "
            "with the identity"
        )
    for mode in ("FLAT", "D2", "D4"):
        assert refusal(run(*length(16), f"VSETMODE mode={mode}", reduce, FLAT)) == (
            f"vector word 4, VRED: {kind} in {mode} mode (F_OPCODE); put VSETMODE mode=TREE before it"
        )


def test_a_sum_of_squares_names_its_operand_twice():
    check(run(TREE, "VRED vd_sreg=1 va=2 vb=3 kind=DOT", FLAT))
    assert refusal(run(TREE, "VRED vd_sreg=1 va=2 vb=3 kind=SUMSQ", FLAT)) == (
        "vector word 1, VRED: SUMSQ of va = 2 with vb = 3: it multiplies the two; set vb to 2, or use DOT"
    )


@pytest.mark.parametrize("kind", ["ANY", "ALL"])
def test_any_and_all_read_the_predicate_of_the_word_before(kind):
    reduce = f"VRED vd_sreg=1 va=0 kind={kind} pr=2"
    check(run(*length(15), "VCMPLT pr=2", FLAT, reduce))  # neither TREE nor whole chunks
    assert refusal(run("VCMPLT pr=2", "VMOV pr=1", FLAT, reduce)) == (
        "vector word 3, VRED: it reads the predicate of the ALU or VRED word before it, which is P1, not P2; issue it "
        "twice: the second reads its own"
    )
    assert "which is not known, not P2" in refusal(run(reduce))
    assert refusal(run("VCMPLT pr=2", reduce)) == (
        "vector word 1, VRED: P2 is read 0 operations after its compare, before it is written; put 2 more in between, "
        "or a word that empties the pipe, such as VSETMODE"
    )


# Predicates.


@pytest.mark.parametrize(("count", "needed"), [(16, 2), (32, 2), (63, 2), (64, 1), (128, 1)])
def test_a_predicate_is_written_some_operations_after_its_compare(count, needed):
    reader = "VMOV pr=1 pm=SET"
    for between in range(4):
        lines = (*length(count), "VCMPGT pr=1", *["VMOV"] * between, reader)
        if between >= needed:
            check(run(*lines))
        else:
            assert refusal(run(*lines)) == (
                f"vector word {4 + between}, VMOV: P1 is read {between} operations after its compare, before it is "
                f"written; put {needed - between} more in between, or a word that empties the pipe, such as VSETMODE"
            )


@pytest.mark.parametrize("word", ["VSETMODE mode=FLAT", "VLD ad=0 vd=0", "VST ad=0 vd=0", "VSHUF vd=0 va=0 vb_sreg=0"])
def test_a_word_that_empties_the_pipe_is_enough(word):
    check(run("VCMPGT pr=1", word, "VMOV pr=1 pm=CLEAR"))


def test_other_predicates_and_compares_need_no_gap():
    check(run("VCMPGT pr=1", "VMOV pr=2 pm=SET"))
    check(run("VCMPGT pr=1", "VCMPGT pr=1 pm=SET"))


# Loops.


def test_a_loop_holds_1_to_15_words():
    check(run("VLOOP va_sreg=0 body=15", *["VMOV"] * 15))
    with pytest.raises(InstructionError) as refused:
        assemble(run("VLOOP va_sreg=0 body=16"), "VC")
    assert str(refused.value) == (
        "line 1: VLOOP: body = 16 does not fit its 4 bits [12:9]: 0 to 15; the machine would read 0"
    )
    assert refusal(run("VLOOP va_sreg=0 body=0", "VMOV")) == "vector word 0, VLOOP: body = 0: 1 to 15 words"


def test_a_loop_counts_words():
    check(run("VLOOP va_sreg=0 body=3", "VSETI imm=1", "VMOV"))
    assert refusal(run("VLOOP va_sreg=0 body=2", "VMOV", "VSETI imm=1")) == (
        "vector word 0, VLOOP: body = 2 ends between the words of VSETI at word 2; count its two words"
    )


def test_loops_are_not_nested():
    check(run("VLOOP va_sreg=0 body=1", "VMOV", "VLOOP va_sreg=0 body=1", "VMOV"))
    assert refusal(run("VLOOP va_sreg=0 body=2", "VLOOP va_sreg=0 body=1", "VMOV")) == (
        "vector word 0, VLOOP: word 1 in its body is a VLOOP; there is one level of loops (F_LOOP)"
    )


def test_the_second_time_through_a_loop_counts():
    body = ("VRED vd_sreg=1 va=0 kind=SUM", FLAT)
    check(run(TREE, "VLOOP va_sreg=0 body=1", body[0], FLAT))
    assert refusal(run(TREE, "VLOOP va_sreg=0 body=2", *body)) == (
        "vector word 1, VLOOP: word 2, VRED: SUM in FLAT mode (F_OPCODE); put VSETMODE mode=TREE before it"
    )


# Types and instructions that give wrong data.


@pytest.mark.parametrize("name", ["VLD ad=0", "VST ad=0", "VCVT va=0"])
@pytest.mark.parametrize("dtype", [0, 3, 7])
def test_types_that_there_are_not(name, dtype):
    assert refusal(run(f"{name} vd=0 dtype={dtype}")) == (
        f"vector word 0, {name.split()[0]}: dtype = {dtype}: there are 1 FP16 and 2 FP32 (F_DTYPE)"
    )


def test_instructions_that_give_wrong_data():
    check(run("VLD ad=0 vd=0 dtype=FP32", "VCVT vd=0 va=0 dtype=FP32", "VST ad=0 vd=0"))
    assert refusal(run("VST ad=0 vd=0 dtype=FP32")) == (
        "vector word 0, VST: an FP32 store never writes every second word; store FP16"
    )
    assert refusal(run("VCVT vd=0 va=0")) == (
        "vector word 0, VCVT: through FP16 a chunk receives the conversion of the chunk before it; store as FP16 and "
        "load again"
    )


# Walks.


def dims(ad, base, *pairs):
    lines = [f"DESC ad={ad} fld=base value={base:#x}"]
    return [
        *lines,
        *(f"DESC ad={ad} fld=dim{d} stride={stride} bound={bound}" for d, (stride, bound) in enumerate(pairs)),
    ]


HERE = MACHINE.global_addr(MESH, 0x1000)


@pytest.mark.parametrize("name", ["VFILL", "VDRAIN"])
def test_a_transfer_moves_up_to_256_words_of_its_own_mesh(name):
    check(run(*dims(1, HERE, (32, 16), (512, 16)), f"{name} ad=1"))
    check(run(*dims(1, HERE, (32, 0)), f"{name} ad=1"))  # a bound of 0 means 1
    check(run(f"{name} ad=1"))  # set by an earlier program
    assert refusal(run(*dims(1, HERE, (32, 257)), f"{name} ad=1")) == (
        f"vector word 0, {name}: descriptor 1 walks 257 words, as (257, 1, 1, 1) makes; 256 are the most (F_LEN)"
    )
    assert "address 0x1000 is in mesh 0" in refusal(run(*dims(1, 0x1000, (32, 2)), f"{name} ad=1"))
    assert "is not aligned to 32 bytes" in refusal(run(*dims(1, HERE + 16, (32, 2)), f"{name} ad=1"))


def test_a_transfer_ends_within_its_mesh():
    top = MACHINE.global_addr(MESH, MACHINE.dram.bytes - 64)
    check(run(*dims(1, top, (32, 2)), "VFILL ad=1"))
    assert "mesh 2 of ktpu-v13p has bytes up to 0x100000000" in refusal(run(*dims(1, top, (32, 3)), "VFILL ad=1"))
    down = MACHINE.global_addr(MESH, 32)
    check(run(*dims(1, down, (-32, 2)), "VFILL ad=1"))
    assert "is in mesh 1, and the unit is on mesh 2" in refusal(run(*dims(1, down, (-32, 3)), "VFILL ad=1"))


def test_a_transfer_stays_in_l1():
    check(run(*dims(1, HERE, (32, 8)), "VFILL ad=1 l1off=504"))
    assert refusal(run(*dims(1, HERE, (32, 8)), "VFILL ad=1 l1off=505")) == (
        "vector word 0, VFILL: l1off = 505, 8 words, reaches words 505 to 512 of L1, which has 512 and wraps past them"
    )


def test_a_load_walks_as_many_words_as_it_has_chunks():
    lines = (*length(100), *dims(1, 505, (1, 7)))
    check(run(*lines, "VLD ad=1 vd=0"))
    check(run(*length(100), "VLD ad=1 vd=0 offset=511"))  # the descriptor is not known
    assert refusal(run(*lines, "VLD ad=1 vd=0 offset=1")) == (
        "vector word 3, VLD: descriptor 1 with offset 1 reaches words 506 to 512 of L1, which has 512 and "
        "wraps past them"
    )
    assert refusal(run(*lines, "VLD ad=1 vd=0 dtype=FP32")) == (
        "vector word 3, VLD: 100 elements are 14 words of L1, and descriptor 1 walks 7: the last would be used again "
        "and again"
    )
    check(run(*length(100), *dims(1, 8, (-1, 7)), "VST ad=1 vd=0 offset=-2"))
    assert "reaches words -1 to 5" in refusal(run(*length(100), *dims(1, 8, (-1, 7)), "VST ad=1 vd=0 offset=-3"))


def test_a_drain_to_a_unit_has_a_record_for_a_base():
    drain = "VDRAIN ad=1 to_node=1 dst_x=2 dst_y=3 signal=1"
    check(run(*dims(1, 10, (1, 4)), drain))
    check(run(*dims(1, 10, (1, 4)), f"{drain} buf_id=2"))
    assert "granule 11 is inside a sub-tile" in refusal(run(*dims(1, 11, (1, 4)), f"{drain} buf_id=2"))
    assert "at (2, 9) of mesh 2 stands nothing" in refusal(run(*dims(1, 10), "VDRAIN ad=1 to_node=1 dst_x=2 dst_y=9"))
    assert "would send to itself" in refusal(run(*dims(1, 10), "VDRAIN ad=1 to_node=1 dst_x=1 dst_y=0"))
    far = 10 | 1 << 20 | 3 << 24 | 0x12 << 26  # acknowledged at (0, 1); to (2, 1) of mesh 3
    port = "VDRAIN ad=1 to_node=1 dst_x=0 dst_y=1"
    check(run(*dims(1, far), port))
    assert "to mesh 3 without somewhere to acknowledge" in refusal(run(*dims(1, far & ~(1 << 20)), port))
    assert "sets reserved bits [35]" in refusal(run(*dims(1, far | 1 << 35), port))


# Payloads.


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            Imem(addr=512, word=0),
            "IMEM: addr = 512 does not fit its 9 bits [251:243]: 0 to 511; the machine would read 0",
        ),
        (Imem(addr=0, word=1 << 32), "IMEM: word = 4294967296 does not fit its 32 bits [31:0]"),
        (Run(pc=512), "RUN: pc = 512 does not fit its 9 bits [251:243]: 0 to 511; the machine would read 0"),
        (
            Desc(ad=8, fld=0, value=0),
            "DESC: ad = 8 does not fit its 3 bits [251:249]: 0 to 7; the machine would read 0",
        ),
        (Desc(ad=0, fld=5, value=0), "DESC: fld = 5; a descriptor has a base, 0, and dimensions, 1 to 4"),
        (Desc(ad=0, fld=0, value=1 << 40), "DESC: value = 1099511627776 does not fit its 40 bits [68:63][245:212]"),
        (Desc(ad=0, fld=1, value=1 << 34), "dimension: word 0x400000000 is not of 34 bits"),
    ],
)
def test_payloads_that_are_none(payload, message):
    with pytest.raises(InstructionError) as refused:
        check_program(Program("VC", (payload,)), MACHINE, MESH)
    assert str(refused.value).startswith(f"word 0: {message}")


def test_ranges_of_a_dimension():
    for stride in (-(1 << 17), (1 << 17) - 1):
        for bound in (0, 65535):
            assert Desc.dim(0, 3, stride=stride, bound=bound).stride_and_bound == (stride, bound)
    with pytest.raises(InstructionError, match=r"^dimension: stride = 131072 does not fit its 18 bits \[33:16\]"):
        Desc.dim(0, 0, stride=1 << 17, bound=1)
    with pytest.raises(InstructionError, match=r"^dimension: bound = 65536 does not fit its 16 bits \[15:0\]"):
        Desc.dim(0, 0, stride=0, bound=1 << 16)
    with pytest.raises(InstructionError, match=r"^DESC: dim = 4; a descriptor has dimensions 0 to 3$"):
        Desc.dim(0, 4, stride=0, bound=1)
    with pytest.raises(InstructionError, match=r"^DESC ad=2 sets a base, which has neither stride nor bound$"):
        Desc.base(2, 0).stride_and_bound  # noqa: B018

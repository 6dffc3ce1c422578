"""The vector core against RTL vectors, word for word, and its registers, walks, chains, loops and reductions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.vector_rig import DRAIN, FILL, LOAD, STORE, Rig, drained

from meshwright.numerics import lane
from meshwright.simulator.vector_core import Answer
from meshwright.simulator.vector_core_state import Descriptor
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.payload import Run
from meshwright.targets.ktpu.isa.vector_formats import ALU_OPS, COMPARES, Mode, Reduction, Source

GOLDEN = Path(__file__).parent.parent / "golden"
KERNELS = {k["name"]: k for k in json.loads((GOLDEN / "ktpu_vector_words.json").read_text())["kernels"]}
ONE, TWO, THREE = (lane.immediate(v) for v in (1.0, 2.0, 3.0))


def kernel_rig(kernel) -> Rig:
    rig = Rig()
    for given_input in kernel["mem_inputs"].values():
        rig.memory.put(int(given_input["addr"], 16), np.frombuffer(bytes.fromhex(given_input["fp16_hex"]), "<u2"))
    rig.load([int(word, 16) for word in kernel["words"]])
    for entry in kernel["descriptors"]:
        value = int(entry["value"], 16)
        stride, bound = value >> 16, value & 0xFFFF
        whole = value if entry["fld"] == 0 else (stride - (stride >> 17 << 18), bound)
        rig.state.write_descriptor(entry["ad"], entry["fld"], whole)
    return rig


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_words_of_the_rtl(name):
    kernel = KERNELS[name]
    rig = kernel_rig(kernel)
    output = kernel["output"]
    wanted = np.frombuffer(bytes.fromhex(output["rtl_sim_fp16_hex"]), "<u2")
    for _ in range(2):  # The second run finds what the first one left.
        answer = rig.core.execute(Run(pc=0).words()[0])
        assert (answer.fault, answer.defect) == (None, None)
        np.testing.assert_array_equal(rig.memory.get(int(output["addr"], 16), output["count"]), wanted)
        rig.memory.put(int(output["addr"], 16), np.zeros(output["count"], np.uint16))


@pytest.mark.parametrize("op", ALU_OPS)
def test_alu_words_give_the_codes_of_the_rtl(op):
    golden = np.load(GOLDEN / "vector_alu.npz")
    number = list(ALU_OPS).index(op)
    key = next(k[:-2] for k in golden.files if k.endswith("_a") and _is_op(k[:-2], number, op))
    a, b, c = (golden[f"{key}_{slot}"][:1024].astype(np.uint32) for slot in "abc")
    word = isa.Alu(op=op, va=0, vb=1, vc=2, vd=3, pr=2)
    rig = Rig()
    for start in range(0, a.size - 127, 128):
        part = slice(start, start + 128)
        for register, codes in enumerate((a, b, c)):
            rig.vector(register, codes[part])
        assert rig.run(word).defect is None
        if op in COMPARES:
            np.testing.assert_array_equal(rig.state.p[2], golden[f"{key}_pred"][part].astype(bool))
        else:
            np.testing.assert_array_equal(rig.state.v[3], golden[f"{key}_out"][part])


def _is_op(key, number, op) -> bool:
    return key.lower() in (str(number), f"{number:x}", f"{number:02x}", op.lower(), op[1:].lower())


def test_reductions_give_the_codes_of_the_rtl():
    golden = np.load(GOLDEN / "vector_reduce.npz")
    rig = Rig()
    seen = set()
    for kind, chunks, x, y, result in zip(*(golden[k] for k in ("kind", "nchunk", "x", "y", "result")), strict=True):
        n = int(chunks) * 16
        if n > 128:
            continue
        seen.add(int(kind))
        rig.vector(0, x[:n])
        rig.vector(1, y[:n])
        second = 0 if kind == Reduction.SUMSQ else 1
        code = (*rig.length(n), isa.SetMode(mode=Mode.TREE), isa.Reduce(vd_sreg=4, va=0, vb=second, kind=int(kind)))
        answer = rig.run(*code, isa.SetMode(mode=Mode.FLAT))
        assert (answer.fault, answer.defect) == (None, None)
        assert rig.state.s[4] == result
        if kind == Reduction.EXPSUM:
            np.testing.assert_array_equal(rig.state.v[1, :n], lane.apply("exp2", x[:n]))
    assert seen == {Reduction.SUM, Reduction.MIN, Reduction.DOT}  # The kinds that the vectors have.


def test_elements_past_the_length_keep_their_values():
    rig = Rig()
    rig.vector(0, np.full(128, ONE))
    rig.vector(1, np.full(128, TWO))
    rig.run(*rig.length(20), isa.Alu(op="VMOV", vd=1, va=0))
    assert rig.state.v[1, :20].tolist() == [ONE] * 20
    assert rig.state.v[1, 20:].tolist() == [TWO] * 108


@pytest.mark.parametrize(("pm", "where"), [(0, "all"), (1, "set"), (2, "clear"), (3, "clear")])
def test_masks(pm, where):
    rig = Rig()
    mask = np.arange(128) % 3 == 0
    nan, minus_zero = 0x7FC001, 0x800000
    rig.vector(0, np.full(128, ONE))
    # What is not written keeps its very bits.
    rig.vector(1, np.where(np.arange(128) % 2, nan, minus_zero))
    rig.state.p[2], rig.state.p_taint[2] = mask, 0
    rig.run(isa.Alu(op="VADD", sa=Source.V, sc=Source.K, va=0, vc=1, vd=1, pr=2, pm=pm))
    written = {"all": mask | True, "set": mask, "clear": ~mask}[where]
    kept = np.where(np.arange(128) % 2, nan, minus_zero)
    np.testing.assert_array_equal(rig.state.v[1], np.where(written, TWO, kept))


def test_add_reads_slot_c_and_mul_slot_b():
    rig = Rig()
    for register, code in enumerate((TWO, THREE, ONE)):
        rig.vector(register, np.full(128, code))
    rig.run(isa.Alu(op="VADD", va=0, vb=1, vc=2, vd=3), isa.Alu(op="VMUL", va=0, vb=1, vc=2, vd=4))
    assert rig.state.v[3, 0] == THREE
    assert rig.state.v[4, 0] == lane.immediate(6.0)


def test_scalars_and_constants_are_broadcast():
    rig = Rig()
    code = (
        isa.SetImmediate(vd_sreg=7, imm=THREE),
        isa.SetImmediate(sa=3, imm=TWO),
        isa.Alu(op="VFMA", sa=Source.S, sb=Source.K, sc=Source.K, va=7, vb=3, vc=1, vd=5),
        isa.Alu(op="VMUL", sa=Source.K, sb=Source.K, va=4 | 2, vb=4 | 3, vd=6),
    )
    assert rig.run(*code).defect is None
    assert set(rig.state.v[5].tolist()) == {lane.immediate(7.0)}
    assert set(rig.state.v[6].tolist()) == {lane.immediate(-2.0)}


@pytest.mark.parametrize(("mode", "depth"), [(Mode.D2, 2), (Mode.D4, 4)])
def test_chains(mode, depth):
    rig = Rig()
    x = np.asarray(lane.from_fp32(np.linspace(-3, 3, 128, dtype=np.float32)))
    rig.vector(0, x)
    unused = {"sb": Source.K, "sc": Source.K}
    links = [
        isa.Alu(op="VMUL", va=0, vb=0, vd=9),
        isa.Alu(op="VADD", sa=Source.C, sb=Source.K, sc=Source.K, vc=1, vd=9),
        isa.Alu(op="VINV", sa=Source.C, vd=9, **unused),
        isa.Alu(op="VEXP2", sa=Source.C, vd=9, **unused),
    ][:depth]
    links[-1] = isa.Alu(**{f: getattr(links[-1], f) for f in links[-1].__struct_fields__} | {"vd": 3})
    assert rig.run(isa.SetMode(mode=mode), *links, isa.SetMode(mode=Mode.FLAT)).defect is None
    wanted = lane.add(lane.mul(x, x), np.uint32(ONE))
    if depth == 4:
        wanted = lane.apply("exp2", lane.apply("inv", wanted))
    np.testing.assert_array_equal(rig.state.v[3], wanted)


def test_loop_runs_its_body_count_times_and_once_for_zero():
    for count, times in ((0, 1), (1, 1), (5, 5)):
        rig = Rig()
        rig.vector(0, np.zeros(128, np.uint32))
        rig.scalar(3, count)
        # Three words: VSETI has two.
        body = (isa.SetImmediate(vd_sreg=4, imm=ONE), isa.Alu(op="VADD", sc=Source.S, va=0, vc=4, vd=0))
        rig.run(isa.Loop(va_sreg=3, body=3), *body)
        assert lane.decode(rig.state.v[0, 0]) == times


def test_loop_without_body_does_nothing():
    rig = Rig()
    rig.scalar(3, 4)
    rig.run(isa.Loop(va_sreg=3, body=0), isa.SetImmediate(vd_sreg=4, imm=9))
    assert rig.state.s[4] == 9


def test_broadcast_both_ways_and_shuffle():
    rig = Rig()
    rig.vector(0, np.arange(128))
    rig.scalar(2, 5)
    code = (
        isa.Shuffle(vd=1, va=0, vb_sreg=2),
        isa.Broadcast(sa=0, vd=3, va_sreg=1),
        *rig.length(20),
        isa.Broadcast(sa=1, vd=4, va_sreg=3),
    )
    assert rig.run(*code).defect is None
    within = np.arange(128) // 16 * 16 + (np.arange(128) + 5) % 16
    np.testing.assert_array_equal(rig.state.v[1], within)
    assert rig.state.s[3] == 5
    # Whole chunks: 20 elements are two of them.
    assert rig.state.v[4, :32].tolist() == [5] * 32
    assert rig.state.v_taint[4, 32:].all()


def test_half_words_and_floats_come_in_and_go_out():
    rig = Rig()
    halves = np.frombuffer(np.random.default_rng(1).bytes(64), np.uint16)
    floats = np.random.default_rng(2).standard_normal(32).astype(np.float32)
    rig.memory.put(0x100, halves)
    rig.memory.put(0x200, floats)
    rig.describe(FILL, 0x100, (32, 2))
    rig.describe(4, 0x200, (32, 4))
    rig.describe(LOAD, 500, (1, 8))
    fills = (isa.VectorFill(ad=FILL, l1off=500), isa.VectorFill(ad=4, l1off=502), isa.Barrier())
    loads = (isa.Load(ad=LOAD, vd=0), isa.Load(ad=LOAD, vd=1, offset=2, dtype=2), isa.Convert(vd=2, va=1, dtype=2))
    rig.run(*rig.length(32), *fills, *loads)
    np.testing.assert_array_equal(rig.state.v[0, :32], lane.from_fp16(halves))
    np.testing.assert_array_equal(rig.state.v[1, :32], lane.from_fp32(floats))
    np.testing.assert_array_equal(rig.state.v[2, :32], lane.from_fp32(floats))


def test_l1_addresses_wrap():
    rig = Rig()
    rig.memory.put(0, np.arange(64, dtype=np.uint16))
    rig.describe(FILL, 0, (32, 4))
    rig.describe(LOAD, 512 + 510, (1, 8))
    answer = rig.run(*rig.length(64), isa.VectorFill(ad=FILL, l1off=510), isa.Barrier(), isa.Load(ad=LOAD, vd=0))
    assert answer == Answer(instructions=6)
    np.testing.assert_array_equal(rig.state.v[0, :64], lane.from_fp16(np.arange(64, dtype=np.uint16)))
    np.testing.assert_array_equal(rig.state.l1[0], np.arange(32, 48))


def test_descriptors_and_registers_stay_from_run_to_run():
    rig = Rig()
    rig.memory.put(0, np.arange(16, dtype=np.uint16))
    rig.describe(FILL, 0, (32, 1))
    rig.describe(LOAD, 0, (1, 1))
    rig.run(*rig.length(16), isa.VectorFill(ad=FILL), isa.Barrier(), isa.Load(ad=LOAD, vd=0))
    assert rig.run(*drained(rig, 0)).defect is None
    np.testing.assert_array_equal(rig.memory.get(0x2000, 16), np.arange(16))


dims = st.tuples(st.integers(-300, 300), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.tuples(dims, dims, dims, dims), st.integers(1, 300))
def test_walks_count_the_innermost_dimension_first_and_stay_at_their_end(base, given_dims, steps):
    strides, bounds = zip(*given_dims, strict=True)
    walk = Descriptor(base, strides, bounds).walk(steps)
    wanted = []
    for l3 in range(bounds[3]):
        for l2 in range(bounds[2]):
            for l1 in range(bounds[1]):
                for l0 in range(bounds[0]):
                    wanted.append(base + sum(i * s for i, s in zip((l0, l1, l2, l3), strides, strict=True)))
    wanted += [wanted[-1]] * steps
    assert walk.tolist() == [address & (1 << 40) - 1 for address in wanted[:steps]]


def test_a_load_takes_as_much_of_a_walk_as_it_needs_however_long_that_is():
    rig = Rig()
    rig.vector(0, lane.from_fp16(np.arange(16, dtype=np.uint16)))
    rig.describe(STORE, 0, (1, 0xFFFF), (1, 0xFFFF), (1, 0xFFFF), (1, 0xFFFF))
    answer = rig.run(*rig.length(16), isa.Store(ad=STORE, vd=0, offset=-1), isa.Load(ad=STORE, vd=1, offset=511))
    assert answer.defect is None
    np.testing.assert_array_equal(rig.state.v[1, :16], lane.from_fp16(np.arange(16, dtype=np.uint16)))


def test_drain_follows_its_walk():
    rig = Rig()
    rig.vector(0, lane.from_fp16(np.arange(64, dtype=np.uint16)))
    rig.describe(STORE, 0, (1, 8))
    rig.describe(DRAIN, 0x4000, (-64, 2), (32, 2))
    assert rig.run(*rig.length(64), isa.Store(ad=STORE, vd=0), isa.VectorDrain(ad=DRAIN)).defect is None
    for at, address in enumerate((0x4000, 0x3FC0, 0x4020, 0x3FE0)):
        np.testing.assert_array_equal(rig.memory.get(address, 16), np.arange(16 * at, 16 * at + 16))


def test_drain_to_a_unit_of_this_mesh_and_of_another():
    rig = Rig()
    rig.vector(0, lane.from_fp16(np.arange(32, dtype=np.uint16)))
    rig.describe(STORE, 0, (1, 2))
    rig.describe(3, 0x123 | 2 << 16 | 1 << 20, (32, 2))
    rig.describe(4, 7 | 1 << 16 | 1 << 20 | 2 << 24 | 0x34 << 26, (32, 1))
    code = (
        *rig.length(32),
        isa.Store(ad=STORE, vd=0),
        isa.VectorDrain(ad=3, to_node=1, dst_x=4, dst_y=2, buf_id=1, signal=1),
        isa.VectorDrain(ad=4, to_node=1, dst_x=1, dst_y=1, l1off=1),
    )
    assert rig.run(*code).defect is None
    near, far = rig.memory.sent
    assert (near.dst, near.buffer, near.granule, near.signal) == ((4, 2), 1, 0x123, True)
    assert (near.ack, near.mesh, near.fin) == ((2, 1), None, None)
    np.testing.assert_array_equal(near.words.reshape(-1), np.arange(32))
    assert (far.dst, far.granule, far.signal, far.ack, far.mesh, far.fin) == ((1, 1), 7, False, (1, 1), 2, (4, 3))
    np.testing.assert_array_equal(far.words.reshape(-1), np.arange(16, 32))


def test_a_burst_from_another_unit_lands_in_l1():
    rig = Rig()
    assert rig.core.receive(0, 2, np.arange(32, dtype=np.uint16).reshape(2, 16))
    rig.describe(LOAD, 2, (1, 2))
    assert rig.run(*rig.length(32), isa.Load(ad=LOAD, vd=0)).defect is None
    np.testing.assert_array_equal(rig.state.v[0, :32], lane.from_fp16(np.arange(32, dtype=np.uint16)))


def test_unknown_payloads_do_nothing():
    assert Rig().core.execute(0xF << 252 | 5) == Answer()


@pytest.mark.parametrize("kind", ["any", "all"])
def test_any_and_all_issued_twice_read_their_own_predicate(kind):
    for mask in (np.zeros(128, bool), np.arange(128) == 5, np.ones(128, bool)):
        rig = Rig()
        rig.state.p[3], rig.state.p_taint[3] = mask, 0
        red = isa.Reduce(vd_sreg=2, va=0, kind=Reduction[kind.upper()], pr=3)
        code = (isa.SetMode(mode=Mode.FLAT), red, red, isa.Broadcast(sa=1, vd=0, va_sreg=2))
        assert rig.run(*rig.length(16), *code, *drained(rig, 0)).defect is None
        assert rig.memory.get(0x2000, 1).view(np.float16)[0] == float(getattr(mask[:16], kind)())

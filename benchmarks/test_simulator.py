"""How fast the simulator executes instruction words, on one core; each round starts with a card that has seen nothing.

A product from packed memory to packed memory: `extra_info` has `gmacs`, 10^9 multiply-adds a second of processor time,
everything counted: decoding each word once, fills, sweeps, drains. And SiLU over 512 x 1536 elements on a vector core:
`extra_info` has the microseconds of processor time for each word of its code that is executed.
"""

import time

import numpy as np
import pytest

from meshwright.machine import load
from meshwright.numerics import lane, product
from meshwright.simulator import Card
from meshwright.simulator.decode import decode
from meshwright.targets.ktpu.isa import Desc, Drain, Fill, Gemm, Run, load_code
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.vector_formats import Source

MACHINE = load("ktpu-v13p")
SIZE = 1024
GM, GN, NK = 16, 32, 8
CHUNKS = SIZE // (32 * NK)
A, B, C = 0, 8 << 20, 16 << 20
ENTRY = 256


def image(x, groups):
    tiles = len(x) // (4 * groups)
    return x.reshape(tiles, groups, 4, CHUNKS, NK, 32).transpose(0, 3, 1, 4, 2, 5).copy()


def words(rows, columns):
    """Each tile of 64 x 128: its rows of A stay in L1, B streams through alternating banks."""
    found = []
    half = GM * NK
    for i in range(rows // (4 * GM)):
        for chunk in range(CHUNKS):
            at = A + (i * CHUNKS + chunk) * half * ENTRY
            found.append(Fill(addr=at, n=half, sel=0, fbank=chunk // 2, eoff=chunk % 2 * half))
        for j in range(columns // (4 * GN)):
            for chunk in range(CHUNKS):
                at = B + (j * CHUNKS + chunk) * GN * NK * ENTRY
                for part in range(2):
                    found.append(Fill(addr=at + part * half * ENTRY, n=half, sel=1, fbank=chunk % 2, eoff=part * half))
                operands = {"abank": chunk // 2, "aoff": chunk % 2 * half, "bbank": chunk % 2}
                found.append(Gemm(gm=GM, gn=GN, nk=NK, acc=int(chunk > 0), **operands))
            tile = i * (columns // (4 * GN)) + j
            found.append(Drain(addr=C + tile * GM * GN * 32, n=GM * GN))
    return [word for instruction in found for word in instruction.words()]


@pytest.mark.benchmark(timer=time.process_time)
def test_product_in_instruction_words(benchmark):
    a, b = (x.astype(np.float16) for x in np.random.default_rng(0).standard_normal((2, SIZE, SIZE), dtype=np.float32))
    program = words(SIZE, SIZE)

    def set_up():
        decode.cache_clear()
        card = Card(MACHINE, threads=1)
        card.write_block(MACHINE.host_addr(0, A), image(a.view(np.uint16), GM).tobytes())
        card.write_block(MACHINE.host_addr(0, B), image(b.view(np.uint16), GN).tobytes())
        return (card,), {}

    def execute(card):
        card.submit(0, (1, 1), program)
        card.run_until_idle()
        return card.read_block(MACHINE.host_addr(0, C), SIZE * SIZE * 2)

    data = benchmark.pedantic(execute, setup=set_up, rounds=20)
    benchmark.extra_info["gmacs"] = SIZE**3 / 1e9 / benchmark.stats["median"]
    benchmark.extra_info["words"] = len(program)
    tiles = np.frombuffer(data, np.uint16).reshape(SIZE // 64, SIZE // 128, GM, GN, 4, 4)
    found = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(SIZE, SIZE)
    assert np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16))


VECTOR, CHUNK = 128, 2048
"""Elements of a vector, and of what a run fills, computes and drains."""
L1, X, Y = 0, 1, 2
"""Descriptors: of words of L1, and of memory."""
SCALE = lane.immediate(-1.442695)


def silu_code():
    """x / (1 + 2^(-x log2 e)) for a chunk."""
    yield from (isa.SetImmediate(vd_sreg=0, imm=VECTOR), isa.SetImmediate(vd_sreg=1, imm=SCALE))
    yield from (isa.SetLength(va_sreg=0), isa.VectorFill(ad=X, l1off=0), isa.Barrier())
    for word in range(0, CHUNK // 16, VECTOR // 16):
        yield isa.Load(ad=L1, vd=0, offset=word)
        yield isa.Alu(op="VMUL", vd=1, va=0, sb=Source.S, vb=1)
        yield isa.Alu(op="VEXP2", vd=1, va=1)
        yield isa.Alu(op="VADD", vd=1, va=1, sc=Source.K, vc=1)
        yield isa.Alu(op="VINV", vd=1, va=1)
        yield isa.Alu(op="VMUL", vd=1, va=0, vb=1)
        yield isa.Store(ad=L1, vd=1, offset=128 + word)
    yield from (isa.VectorDrain(ad=Y, l1off=128), isa.Halt())


def silu_payloads(elements):
    steps = [*load_code(silu_code()), Desc.dim(L1, 0, stride=1, bound=VECTOR // 16)]
    steps += [Desc.dim(ad, 0, stride=32, bound=CHUNK // 16) for ad in (X, Y)]
    for at in range(0, 2 * elements, 2 * CHUNK):
        steps += [Desc.base(X, A + at), Desc.base(Y, C + at), Run(pc=0)]
    return [word for step in steps for word in step.words()]


@pytest.mark.benchmark(timer=time.process_time)
def test_silu_on_a_vector_core(benchmark):
    elements = 512 * 1536
    x = np.random.default_rng(0).standard_normal(elements, dtype=np.float32).astype(np.float16)
    program, code = silu_payloads(elements), tuple(silu_code())

    def set_up():
        card = Card(MACHINE, threads=1)
        card.write_block(MACHINE.host_addr(0, A), x.tobytes())
        return (card,), {}

    def execute(card):
        card.submit(0, (1, 0), program)
        card.run_until_idle()
        return card.read_block(MACHINE.host_addr(0, C), 2 * elements)

    data = benchmark.pedantic(execute, setup=set_up, rounds=10)
    executed = elements // CHUNK * len(code)
    benchmark.extra_info["us_a_word"] = 1e6 * benchmark.stats["median"] / executed
    codes = lane.from_fp16(x)
    power = lane.apply("exp2", lane.apply("mul", codes, np.uint32(SCALE)))
    whole = lane.apply("inv", lane.apply("add", power, c=np.uint32(lane.ONE)))
    assert data == lane.to_fp16(lane.apply("mul", codes, whole)).tobytes()

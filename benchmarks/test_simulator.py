"""How fast the simulator executes instruction words: a product from packed memory to packed memory, on one core.

`extra_info` has `gmacs`, 10^9 multiply-adds a second of processor time, everything counted: decoding each word once,
fills, sweeps, drains. Each round starts with a card that has seen nothing.
"""

import time

import numpy as np
import pytest

from meshwright.machine import load
from meshwright.numerics import product
from meshwright.simulator import Card
from meshwright.simulator.decode import decode
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

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

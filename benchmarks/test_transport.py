"""What the transports to a simulated card cost: words, batches and blocks, in process and over sockets.

Printed by `python -m pytest benchmarks/test_transport.py -s`: a row an access, best of many. The sockets' server runs
in a process of its own, as `meshwright simulate` makes it.
"""

import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

from meshwright.machine import load
from meshwright.runtime.transport import InProcess
from meshwright.runtime.transport_socket import Remote
from meshwright.simulator import Card
from meshwright.simulator import registers as reg

MACHINE = load("ktpu-v13p")
BLOCK = 32 << 20
MANY, FEW = 300, 5
SLOTS, WORDS, SMALL = 128, 48, 2048


@contextmanager
def served(address):
    command = [sys.executable, "-m", "meshwright", "simulate", "--listen", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            where = process.stdout.readline().split(" at ")[1].strip()
            transport = Remote(where)
            yield transport
            transport.close()
        finally:
            process.kill()


def best(turns, what):
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        what()
        found.append(time.perf_counter() - start)
    return min(found)


def rows(transport):
    """(name, seconds, bytes moved or 0) of each access."""
    register = transport.agents.register(0, reg.STATUS)
    stage = transport.agents.register(0, reg.STAGE)
    dram = MACHINE.host_addr(0, 0)
    block = np.arange(BLOCK, dtype=np.uint64).astype(np.uint8)
    words = [(stage + 8 * n, bytes(8)) for n in range(WORDS)]
    slots = [(stage + reg.SLOT_BYTES * n, bytes(reg.SLOT_BYTES)) for n in range(SLOTS)]
    spans = [(dram + SMALL * n, SMALL) for n in range(WORDS)]
    yield f"a block of {BLOCK >> 20} MiB written", best(FEW, lambda: transport.write_block(dram, block)), BLOCK
    yield f"a block of {BLOCK >> 20} MiB read", best(FEW, lambda: transport.read_block(dram, BLOCK)), BLOCK
    assert transport.read_block(dram, SMALL) == block[:SMALL].tobytes()
    yield "one word read", best(MANY, lambda: transport.read64(register)), 0
    yield f"`poll` of {WORDS} words", best(MANY, lambda: transport.poll([register] * WORDS)), 0
    yield f"{WORDS} x `write64`", best(MANY // 10, lambda: [transport.write64(at, 0) for at, _ in words]), 0
    yield f"`submit` of the same {WORDS}", best(MANY, lambda: transport.submit(words)), 0
    yield f"`submit` of {SLOTS} staging slots", best(MANY, lambda: transport.submit(slots)), 0
    yield (
        f"{WORDS} x `read_block` of {SMALL} bytes",
        best(MANY // 10, lambda: [transport.read_block(*span) for span in spans]),
        0,
    )
    yield f"`collect` of the same {WORDS}", best(MANY, lambda: transport.collect(spans)), 0


def shown(seconds, count):
    return f"{count / seconds / 1e9:.2f} GB/s" if count else f"{seconds * 1e3:.3f} ms"


@pytest.mark.benchmark(max_time=0.1)
def test_transports(benchmark, tmp_path):
    columns = {"in process": list(rows(InProcess(Card(MACHINE))))}
    for name, address in (("Unix socket", f"unix:{tmp_path / 'card'}"), ("TCP", "tcp:127.0.0.1:0")):
        with served(address) as transport:
            columns[name] = list(rows(transport))
    print("\n| | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)))
    for row in zip(*columns.values(), strict=True):
        print(f"| {row[0][0]} | " + " | ".join(shown(seconds, count) for _, seconds, count in row) + " |")
    here = InProcess(Card(MACHINE))
    benchmark(here.read64, here.agents.register(0, reg.STATUS))

"""`meshwright simulate`: a card in another process, as its hosts, its user and a crash find it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.runtime.transport_rig import product_is_right
from tests.simulator.programs import CARD

from meshwright.errors import TransportError
from meshwright.machine import load
from meshwright.runtime.transport import carried_out
from meshwright.runtime.transport_socket import Remote
from meshwright.simulator import Undefined

# A test run in the background may ignore Ctrl-C, and hand that down.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from meshwright.cli import main; main()"
)
DRAM = CARD.host_addr(0, 0)


def stop(process):
    """Stop a process, and wait until it stands still."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])


@pytest.fixture
def start():
    """Start a card in a process; gives the process and the line that it prints."""
    started = []

    def begin(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "simulate", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().rstrip("\n")

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def test_a_card_in_another_process_and_its_end_by_ctrl_c(start, tmp_path):
    path = tmp_path / "card"
    process, line = start("--listen", f"unix:{path}")
    assert line == f"ktpu-v13p at unix:{path}"
    first, second = Remote(f"unix:{path}"), Remote(f"unix:{path}")
    assert first.machine == CARD
    assert product_is_right(first)
    assert product_is_right(second, mesh=3, seed=6)
    # One card: what one host wrote the other reads.
    first.write64(DRAM, 42)
    assert second.read64(DRAM) == 42
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == ""
    assert not path.exists()
    with pytest.raises(TransportError, match="was given up at a read"):
        first.read64(DRAM)


def test_a_free_port_and_another_machine(start):
    _, line = start("--listen", "tcp:127.0.0.1:0", "--machine", "ktpu-1")
    found = re.fullmatch(r"ktpu-1 at (tcp:127\.0\.0\.1:[1-9]\d*)", line)
    remote = Remote(found[1])
    assert remote.machine == load("ktpu-1")
    assert remote.read64(remote.agents.register(0, 0x10)) & 0xFFFF == 288


def test_killed_in_the_middle_of_a_request(start, tmp_path):
    """The host gets one clear error, and goes on with another card at the same address."""
    address = f"unix:{tmp_path}/card"
    process, _ = start("--listen", address)
    remote, found = Remote(address), []

    def work():
        with pytest.raises(TransportError) as caught:
            remote.read64(DRAM)
        found.append(str(caught.value))

    # A stopped process takes the request and never answers.
    stop(process)
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    assert found == []
    process.kill()
    thread.join(timeout=10)
    (message,) = found
    assert re.fullmatch(
        rf"the connection to {address} was given up at a read of the word at {DRAM:#x}: [^:]+\. Whether it was done "
        "there is not known; make another Remote to go on",
        message,
    )
    start("--listen", address)
    again = Remote(address)
    again.write64(DRAM, 7)
    assert again.read64(DRAM) == 7


BATCH = [(DRAM + (at << 16), bytes([at]) * (1 << 16)) for at in range(64)]
SPANS = [(address, len(data)) for address, data in BATCH]


def submitted(remote):
    remote.submit(BATCH)


def collected(remote):
    assert remote.collect(SPANS) == tuple(data for _, data in BATCH)


def polled(remote):
    assert (
        remote.poll([address for address, _ in BATCH] * 16) == tuple(at * 0x0101010101010101 for at in range(64)) * 16
    )


@pytest.mark.parametrize("call", [submitted, collected, polled])
def test_killed_while_it_is_busy_with_batches(start, tmp_path, call):
    """Every answer until then is right, the next is one clear error, and a new card at the address is a new card."""
    address = f"unix:{tmp_path}/card"
    process, _ = start("--listen", address)
    remote, rounds, found = Remote(address, timeout=20), [], []
    submitted(remote)

    def work():
        with pytest.raises(TransportError) as caught:
            while True:
                call(remote)
                rounds.append(1)
        found.append(caught.value)

    thread = threading.Thread(target=work)
    thread.start()
    while len(rounds) < 3:
        assert thread.is_alive()
        time.sleep(0.001)
    process.kill()
    thread.join(timeout=20)
    (error,) = found
    # Batches of 4 MiB are two messages each, and either may be the one.
    assert re.fullmatch(
        rf"the connection to {address} was given up at a (submit of 32 writes|collect of 32 blocks|read of 1024 words)"
        rf", the first at ({DRAM:#x}|{DRAM + (32 << 16):#x}): [^:]+\. Whether it was done there is not known; make "
        "another Remote to go on",
        str(error),
    )
    assert carried_out(error) is None
    with pytest.raises(TransportError, match="was given up at a"):
        call(remote)
    start("--listen", address)
    again = Remote(address)
    # Its memory was never written.
    with pytest.raises(Undefined):
        again.read64(DRAM)
    submitted(again)
    collected(again)
    polled(again)


def test_a_stopped_process_costs_the_timeout_and_no_more(start, tmp_path):
    address = f"unix:{tmp_path}/card"
    process, _ = start("--listen", address)
    remote = Remote(address)
    remote.timeout = 0.3
    stop(process)
    begun = time.monotonic()
    with pytest.raises(TransportError, match=r"no whole answer within 0\.3 s"):
        remote.read64(DRAM)
    # Nor does one that connects wait for ever: the system takes the connection, and nobody answers.
    with pytest.raises(TransportError, match=r"no whole answer within 0\.3 s"):
        Remote(address, timeout=0.3)
    assert time.monotonic() - begun < 5
    process.send_signal(signal.SIGCONT)
    assert Remote(address).machine == CARD


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--listen", "card.sock"],
            "'card.sock' is no address: write unix:PATH, or tcp:127.0.0.1:PORT with a port up to 65535",
        ),
        (
            ["--listen", "tcp:0.0.0.0:80"],
            "tcp:0.0.0.0:80: 0.0.0.0 is no loopback address. Whoever reaches the port has the whole card, so only "
            "127.0.0.1 (or ::1) is used; reach another computer through a tunnel that asks who you are",
        ),
        (
            ["--listen", "unix:/nowhere/card"],
            "can't listen at unix:/nowhere/card: No such file or directory",
        ),
        (
            ["--listen", "tcp:127.0.0.1:0", "--machine", "grid-8x8"],
            'Card: grid-8x8 has numerics = "grid", and instruction words are of the "ktpu" family; graphs for it '
            "are evaluated, not executed",
        ),
    ],
)
def test_what_is_refused(run, arguments, message):
    result = run("simulate", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {message}\n")

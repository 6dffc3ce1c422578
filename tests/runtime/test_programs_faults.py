"""Groups whose card goes away or lies: one error, nothing wrong returned, nothing hanging, and a new card works."""

import contextlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.runtime.faulty import CorruptWrites, Through, chance
from tests.runtime.transport_rig import Proxy, serving

from meshwright.errors import ConnectionLost, DispatchError, MeshwrightError
from meshwright.kernels import gelu
from meshwright.machine import load
from meshwright.runtime.cards import connected, over
from meshwright.runtime.device import Card
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.programs import Programs
from meshwright.runtime.transport import InProcess
from meshwright.runtime.transport_socket import Remote
from meshwright.sharding import MeshGroup
from meshwright.simulator import Card as SimulatedCard

CARD = load("ktpu-v13p")
RANDOM = np.random.default_rng(3)
X, W1, W2 = ((0.5 * RANDOM.standard_normal(s)).astype(np.float16) for s in ((16, 64), (96, 64), (32, 96)))
BOUND = 60.0


def through(group):
    hidden = group.each(gelu, group.matmul(group.copy(X), group.split(W1, 0)))
    return np.asarray(group.matmul_chain_reduce(hidden, group.split(W2, 1)))


WANTED = through(MeshGroup.open(CARD, 2)).view(np.uint16)


def right(card):
    np.testing.assert_array_equal(through(MeshGroup.open(card, 2)).view(np.uint16), WANTED)


@contextlib.contextmanager
def simulator(path):
    """`meshwright simulate` in a process of its own."""
    command = [sys.executable, "-m", "meshwright", "simulate", "--listen", f"unix:{path}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            limit = time.monotonic() + BOUND
            while not path.exists():
                assert process.poll() is None and time.monotonic() < limit
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


class KillsAt(Through):
    """Kills the process behind a transport when the `call`-th call is made."""

    def __init__(self, transport, process, call):
        super().__init__(transport, lambda access: False)
        self.process, self.left = process, call

    def before(self, reads, writes):
        self.left -= 1
        if self.left == 0:
            self.process.kill()
            self.process.wait()


@pytest.mark.parametrize("call", [1, 2, 5, 9])
def test_a_simulator_that_is_killed_in_the_middle(tmp_path, call):
    with simulator(tmp_path / "first") as process:
        card = over(Remote(f"unix:{tmp_path / 'first'}", 30.0), CARD)
        killing = KillsAt(card.backend.transport, process, call)
        group = MeshGroup.open(over_found(killing), 2)
        start = time.monotonic()
        with pytest.raises(ConnectionLost, match="make another transport and Dispatcher"):
            through(group)
        assert time.monotonic() - start < BOUND
        with pytest.raises(ConnectionLost, match="nothing can be sent any more"):
            through(group)
    with simulator(tmp_path / "second"):
        right(connected(f"unix:{tmp_path / 'second'}"))


def over_found(transport):
    """The card behind a transport whose units have been enumerated already."""
    return Card(CARD, Programs(CARD, transport, Dispatcher(transport, CARD)))


def spoiling(seed, often):
    """Frames that are lost, late, repeated, corrupted or cut off, after the handshake."""
    generator = random.Random(seed)

    def spoil(way, number, frame):
        if number == 0 or generator.random() >= often:
            return [frame]
        match generator.randrange(5):
            case 0:
                return []
            case 1:
                return [0.05, frame]
            case 2:
                return [frame, frame]
            case 3:
                spoiled = bytearray(frame)
                spoiled[generator.randrange(len(frame))] ^= 1 << generator.randrange(8)
                return [bytes(spoiled)]
            case _:
                return [frame[: generator.randrange(len(frame))], None]

    return spoil


@pytest.mark.parametrize("seed", range(12))
def test_frames_that_go_wrong_never_give_wrong_bits(tmp_path, seed):
    with serving(InProcess(SimulatedCard(CARD)), f"unix:{tmp_path / 'card'}") as server:
        outcome = []
        with Proxy(tmp_path / "proxy", server.address, spoiling(seed, 0.03)) as proxy:
            start = time.monotonic()
            try:
                right(connected(proxy.address, timeout=0.5))
                outcome.append("right")
            except MeshwrightError as error:
                outcome.append(type(error).__name__)
            assert time.monotonic() - start < BOUND
        assert outcome[0] in ("right", "ConnectionLost", "TransportError")
    right(over(InProcess(SimulatedCard(CARD)), CARD))


@pytest.mark.parametrize("seed", range(6))
def test_writes_that_are_spoiled_are_seen_where_they_are_verified(seed):
    def dram(access):
        return access.address >> CARD.address.host_window_shift and spoiled(access)

    spoiled = chance(seed, 0.2)
    transport = CorruptWrites(InProcess(SimulatedCard(CARD)), dram, seed=seed)
    group = MeshGroup.open(over(transport, CARD, verify=True), 2)
    try:
        found = through(group)
    except DispatchError as error:
        assert "read back" in str(error)
        assert transport.spoiled
    else:
        assert not transport.spoiled
        np.testing.assert_array_equal(found.view(np.uint16), WANTED)

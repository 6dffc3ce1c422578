"""`CharacterDevices` on files in place of the driver's: which transfers it makes, and what it does when one fails."""

import mmap
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulator.programs import CARD

from meshwright.errors import TransportError
from meshwright.runtime import transport_file
from meshwright.runtime.transport import AgentWindow, carried_out, stopped
from meshwright.runtime.transport_file import CEILING, FLOOR, CharacterDevices, pieces, runs

BASE = CARD.host_addr(0, 0)


class Words:
    """Words of the same file, one at a time: stands in for the transport that carries control."""

    agents = AgentWindow(0x4_0080_0000, 0x1_0000)

    def __init__(self, path):
        self.file, self.log = path.open("r+b", buffering=0), []

    def read64(self, address):
        return self.poll([address])[0]

    def write64(self, address, value):
        self.write_block(address, value.to_bytes(8, "little"))

    def read_block(self, address, count):
        self.log.append(("read", address, count))
        return os.pread(self.file.fileno(), count, address)

    def write_block(self, address, data):
        self.log.append(("write", address, len(data)))
        os.pwrite(self.file.fileno(), data, address)

    def poll(self, addresses):
        return tuple(int.from_bytes(self.read_block(address, 8), "little") for address in addresses)

    def submit(self, writes):
        self.log.append(("submit", len(writes)))
        for address, data in writes:
            self.write_block(address, data)

    def collect(self, spans):
        self.log.append(("collect", len(spans)))
        return tuple(self.read_block(address, count) for address, count in spans)

    def close(self):
        self.log.append("close")
        self.file.close()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


class Rig:
    def __init__(self, path, monkeypatch):
        self.path = path / "card"
        with self.path.open("wb") as file:
            # Sparse: the offset in the file is the host address.
            file.truncate(BASE + (64 << 20))
        self.control = Words(self.path)
        self.transfers = []
        for name, true in (("preadv", os.preadv), ("pwritev", os.pwritev)):
            monkeypatch.setattr(transport_file.os, name, self.recorded(name, true))
        self.devices = CharacterDevices(self.path, self.path, self.control)

    def recorded(self, name, true):
        def transfer(file, parts, offset):
            (part,) = parts
            assert np.frombuffer(part, np.uint8).ctypes.data % mmap.PAGESIZE == 0
            self.transfers.append((name, offset, len(part)))
            return true(file, parts, offset)

        return transfer


@pytest.fixture
def rig(tmp_path, monkeypatch):
    return Rig(tmp_path, monkeypatch)


@given(st.integers(FLOOR // 8, 5 * CEILING // 8) | st.integers(-10, 10).map(lambda d: 2 * CEILING // 8 + d))
def test_transfers_cover_a_block_and_are_neither_too_large_nor_too_small(words):
    found = list(pieces(8 * words))
    assert [start for start, _ in found] == [0, *np.cumsum([size for _, size in found])[:-1]]
    assert sum(size for _, size in found) == 8 * words
    assert all(FLOOR <= size <= CEILING and size % 8 == 0 for _, size in found)
    assert len(found) == -(-8 * words // CEILING)


@pytest.mark.parametrize("size", [64, 72, CEILING, CEILING + 8, CEILING + 64, 2 * CEILING + 56])
def test_blocks_go_through_the_two_files(rig, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    rig.devices.write_block(BASE + 8, data)
    assert rig.devices.read_block(BASE + 8, size) == data.tobytes()
    with rig.path.open("rb") as file:
        file.seek(BASE)
        assert file.read(size + 16) == bytes(8) + data.tobytes() + bytes(8)
    expected = [(BASE + 8 + start, count) for start, count in pieces(size)]
    assert rig.transfers == [(name, *where) for name in ("pwritev", "preadv") for where in expected]
    assert rig.control.log == []


def test_words_polls_and_small_blocks_go_through_control(rig):
    devices = rig.devices
    devices.write64(BASE, 2**64 - 1)
    devices.write_block(BASE + 8, bytes(range(56)))
    assert devices.read64(BASE) == 2**64 - 1
    assert devices.read_block(BASE + 8, 56) == bytes(range(56))
    assert devices.poll([BASE + 8, BASE]) == (0x0706050403020100, 2**64 - 1)
    assert rig.transfers == []
    # And what is there by one way is there by the other.
    assert devices.read_block(BASE, 64) == b"\xff" * 8 + bytes(range(56))
    assert [name for name, _, _ in rig.transfers] == ["preadv"]


def test_a_batch_goes_by_the_way_that_each_block_takes_and_in_order(rig):
    """Neighbours of less than 64 bytes are one call of the control transport, and large blocks are transfers."""
    data = np.random.default_rng(3).integers(0, 256, CEILING + 8, np.uint8)
    writes = [
        (BASE, b"12345678"),
        (BASE + 8, bytes(range(56))),
        (BASE, data),
        # Both overlap it, and so does what follows them.
        (BASE + 8, b"abcdefgh"),
        (BASE + CEILING, b"ABCDEFGH"),
        (BASE + 64, data[:64]),
        (BASE + 64, data[64:128]),
        (BASE + 72, b"IJKLMNOP"),
    ]
    content = bytearray(data.tobytes())
    for at, part in ((8, b"abcdefgh"), (CEILING, b"ABCDEFGH"), (64, data[64:128].tobytes()), (72, b"IJKLMNOP")):
        content[at : at + len(part)] = part
    rig.devices.submit(writes)
    transfers = [("pwritev", BASE + start, size) for start, size in pieces(len(data))]
    assert rig.transfers == [*transfers, ("pwritev", BASE + 64, 64), ("pwritev", BASE + 64, 64)]
    assert [call for call in rig.control.log if call[0] == "submit"] == [("submit", 2), ("submit", 2), ("submit", 1)]
    rig.transfers.clear()
    rig.control.log.clear()
    spans = [(BASE + 64, 64), (BASE + 72, 8), (BASE, 56), (BASE, len(data)), (BASE + CEILING, 8)]
    found = rig.devices.collect(spans)
    assert found == tuple(bytes(content[at - BASE : at - BASE + count]) for at, count in spans)
    assert rig.transfers == [("preadv", BASE + 64, 64), *[("preadv", *transfer[1:]) for transfer in transfers]]
    assert [call for call in rig.control.log if call[0] == "collect"] == [("collect", 2), ("collect", 1)]


@given(st.lists(st.sampled_from([8, 56, 64, 72]), max_size=12))
def test_runs_of_a_batch(sizes):
    found = list(runs(sizes))
    assert [at for start, end in found for at in range(start, end)] == list(range(len(sizes)))
    for start, end in found:
        assert end > start
        assert all(size < FLOOR for size in sizes[start:end]) or end == start + 1
    # Neighbours that could have gone together did.
    for (start, _), (after, _) in pairwise(found):
        assert sizes[start] >= FLOOR or sizes[after] >= FLOOR


def test_where_a_batch_stops(rig, monkeypatch):
    """At a transfer, and then at a refusal of the control transport: the count is that of the whole batch."""
    block = (BASE, bytes(64))
    with monkeypatch.context() as patch:
        patch.setattr(transport_file.os, "pwritev", lambda file, parts, offset: 8)
        with pytest.raises(TransportError, match="8 bytes were moved") as caught:
            rig.devices.submit([(BASE, b"12345678"), (BASE + 8, b"abcdefgh"), block, (BASE, bytes(8))])
    assert carried_out(caught.value) == 2
    assert rig.devices.collect([(BASE, 8), (BASE + 8, 8)]) == (b"12345678", b"abcdefgh")
    # Words still go through, and a batch with anything else is refused as a whole.
    rig.devices.submit([(BASE, b"87654321")])
    for call in (
        lambda: rig.devices.submit([(BASE, bytes(8)), (BASE + 8, bytes(16))]),
        lambda: rig.devices.collect([(BASE, 8), (BASE + 8, 16)]),
    ):
        with pytest.raises(TransportError, match="no block is moved from then on"):
            call()
    assert rig.devices.read64(BASE) == int.from_bytes(b"87654321", "little")


@pytest.mark.parametrize(("told", "seen"), [(1, 3), (0, 2), (None, None)])
def test_where_the_control_transport_stops_a_batch(rig, monkeypatch, told, seen):
    def refuse(writes):
        problem = TransportError("no")
        raise problem if told is None else stopped(problem, told, len(writes))

    monkeypatch.setattr(rig.control, "submit", refuse)
    with pytest.raises(TransportError, match="no") as caught:
        rig.devices.submit([(BASE, bytes(64)), (BASE, bytes(64)), (BASE, bytes(8)), (BASE, bytes(8))])
    assert carried_out(caught.value) == seen
    assert getattr(caught.value, "__notes__", None) == (
        None if seen is None else [f"{seen} of 4 writes were carried out"]
    )


def test_the_agents_are_where_it_is_told_or_where_the_control_transport_says(rig):
    assert rig.devices.agents == rig.control.agents
    devices = CharacterDevices(rig.path, rig.path, rig.control, agents=AgentWindow())
    assert devices.agents == AgentWindow(0x80_0000, 0x1_0000)
    devices.close()


@pytest.mark.parametrize("moved", [0, 8, 56])
@pytest.mark.parametrize("name", ["preadv", "pwritev"])
def test_a_transfer_that_falls_short_closes_the_channels_to_blocks(rig, monkeypatch, moved, name):
    monkeypatch.setattr(transport_file.os, name, lambda file, parts, offset: moved)
    devices = rig.devices
    problem = f"{rig.path}: a transfer of 64 bytes at {BASE:#x} failed: {moved} bytes were moved"
    with pytest.raises(TransportError) as caught:
        devices.read_block(BASE, 64) if name == "preadv" else devices.write_block(BASE, bytes(64))
    assert str(caught.value) == f"{problem}. Reset the device, then open the transport again"
    for call in (
        lambda: devices.read_block(BASE, 64),
        lambda: devices.write_block(BASE, bytes(64)),
        lambda: devices.read_block(BASE, 8),
    ):
        with pytest.raises(TransportError, match=re.escape(problem) + "; no block is moved from then on"):
            call()
    # Registers are still read, to find out what the card is doing.
    assert devices.poll([BASE]) == (0,)


def test_a_file_that_ends_and_one_that_has_no_offsets(tmp_path):
    short, pipe = tmp_path / "short", tmp_path / "pipe"
    short.write_bytes(bytes(100))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    devices = CharacterDevices(pipe, short, Words(short))
    assert devices.read_block(0, 96) == bytes(96)
    with pytest.raises(TransportError, match="a transfer of 64 bytes at 0x0 failed: Illegal seek"):
        devices.write_block(0, bytes(64))
    devices.close()
    os.close(reader)
    devices = CharacterDevices(short, short, Words(short))
    with pytest.raises(TransportError, match="a transfer of 104 bytes at 0x0 failed: 100 bytes were moved"):
        devices.read_block(0, 104)
    devices.close()


def test_what_cannot_be_carried(rig):
    with pytest.raises(TransportError, match=r"read of 68 bytes at .*: a transport moves 64-bit words"):
        rig.devices.read_block(BASE, 68)
    with pytest.raises(
        TransportError, match=r"a block of 64 bytes at 0x7fffffffffffffe8: offsets in a file end at 2\^63"
    ):
        rig.devices.write_block(2**63 - 24, bytes(64))
    assert rig.transfers == []
    rig.devices.write_block(BASE, bytes(64))


def test_files_that_are_not_there(tmp_path):
    there = tmp_path / "there"
    there.write_bytes(b"")
    for h2c, c2h in ((tmp_path / "none", there), (there, tmp_path / "none")):
        control, before = Words(there), open_files()
        with pytest.raises(TransportError) as caught:
            CharacterDevices(h2c, c2h, control)
        assert str(caught.value) == f"{tmp_path / 'none'} can't be opened: No such file or directory"
        assert open_files() <= before


def test_after_close(rig):
    rig.devices.close()
    rig.devices.close()
    assert rig.control.log == ["close"]
    for call in (
        lambda d: d.read64(BASE),
        lambda d: d.write64(BASE, 0),
        lambda d: d.read_block(BASE, 64),
        lambda d: d.write_block(BASE, bytes(64)),
        lambda d: d.poll([BASE]),
        lambda d: d.submit([(BASE, bytes(8))]),
        lambda d: d.submit([(BASE, bytes(64))]),
        lambda d: d.collect([(BASE, 8)]),
        lambda d: d.collect([(BASE, 64)]),
    ):
        with pytest.raises(TransportError, match="is closed: open another one"):
            call(rig.devices)

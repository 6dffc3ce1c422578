"""What holds of every transport to a simulated card: bits, order, refusals; and what each adds."""

import re
import socket
import stat
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.transport_rig import Plain, product_is_right, serving
from tests.simulator.programs import CARD

from meshwright.errors import MachineError, TransportError
from meshwright.machine import load
from meshwright.runtime import transport_wire as wire
from meshwright.runtime.transport import AgentWindow, Delayed, InProcess, carried_out
from meshwright.runtime.transport_socket import MOST_CONNECTIONS, Remote, Server
from meshwright.runtime.transport_wire import parse_address
from meshwright.simulator import Assumptions, Card, Undefined

DRAM = CARD.host_addr(0, 0)
TCP = "tcp:127.0.0.1:0"


@pytest.fixture(params=["in process", "unix", "tcp", "delayed"])
def transport(request, tmp_path):
    card = InProcess(Card(CARD))
    if request.param == "in process":
        yield card
    elif request.param == "delayed":
        yield Delayed(card, 0.0)
    else:
        with serving(card, f"unix:{tmp_path}/card" if request.param == "unix" else TCP) as server:
            remote = Remote(str(server.address), timeout=20)
            assert remote.machine == CARD
            yield remote
            remote.close()


def test_a_product_is_dispatched_and_has_the_right_bits(transport):
    assert product_is_right(transport)


def test_a_block_is_its_words_in_ascending_order(transport):
    values = [0, 1, 0x0123_4567_89AB_CDEF, 2**64 - 1]
    transport.write_block(DRAM, np.array(values, "<u8").view(np.uint8))
    assert [transport.read64(DRAM + 8 * at) for at in range(4)] == values
    assert transport.poll([DRAM + 24, DRAM, DRAM + 24]) == (values[3], 0, values[3])
    transport.write64(DRAM + 8, 2**64 - 2)
    assert transport.read_block(DRAM, 32) == b"".join(v.to_bytes(8, "little") for v in (0, 2**64 - 2, *values[2:]))
    for data in (b"12345678", bytearray(b"abcdefgh"), memoryview(b"ABCDEFGH")):
        transport.write_block(DRAM, data)
        assert transport.read_block(DRAM, 8) == bytes(data)
    assert transport.poll([]) == ()


def test_a_batch_is_its_writes_and_reads_in_the_order_given(transport):
    """Later writes overlap earlier ones, and the registers of two agents are between blocks of DRAM."""
    register = [transport.agents.register(mesh, 0) for mesh in (0, 3)]
    transport.submit(
        [
            (DRAM, np.arange(64, dtype=np.uint8)),
            (register[1], (5).to_bytes(8, "little")),
            (DRAM + 8, b"12345678"),
            (register[0], bytearray(b"abcdefgh")),
            (DRAM + 8, memoryview(b"ABCDEFGH")),
            (register[1], (6).to_bytes(8, "little")),
        ]
    )
    expected = bytes(range(8)) + b"ABCDEFGH" + bytes(range(16, 64))
    spans = [(DRAM + 8, 8), (register[1], 8), (DRAM, 64), (register[0], 8), (DRAM, 64)]
    assert transport.collect(spans) == (b"ABCDEFGH", b"\6" + bytes(7), expected, b"abcdefgh", expected)
    assert transport.read_block(DRAM, 64) == expected


def test_empty_batches_do_nothing(transport):
    assert transport.submit([]) is None
    assert transport.collect([]) == ()
    assert transport.poll([]) == ()


def test_the_write_that_fails_stops_a_batch_and_the_error_says_how_many_were_done(transport):
    writes = [(DRAM, b"12345678"), (DRAM + 8, b"abcdefgh"), (8, bytes(8)), (DRAM, b"ABCDEFGH")]
    with pytest.raises(MachineError) as here:
        Card(CARD).write64(8, 0)
    with pytest.raises(MachineError) as there:
        transport.submit(writes)
    assert str(there.value) == str(here.value)
    assert (carried_out(there.value), there.value.__notes__) == (2, ["2 of 4 writes were carried out"])
    assert transport.read_block(DRAM, 16) == b"12345678abcdefgh"
    with pytest.raises(Undefined) as there:
        transport.collect([(DRAM, 8), (DRAM + 64, 8)])
    assert carried_out(there.value) is None


def test_the_host_is_told_where_the_agents_are(transport):
    assert transport.agents == AgentWindow(Assumptions().control_base, Assumptions().control_stride)
    # The credits of each mesh, which no other mesh has.
    for mesh in CARD.mesh_ids:
        transport.write64(transport.agents.register(mesh, 0x60), 100 + mesh)
    found = transport.poll([transport.agents.register(mesh, 0x60) for mesh in CARD.mesh_ids])
    assert found == tuple(100 + mesh for mesh in CARD.mesh_ids)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: t.read_block(DRAM, 12),
            f"read of 12 bytes at {DRAM:#x}: a transport moves 64-bit words, so the address and the size (at least one "
            "word) are multiples of 8",
        ),
        (lambda t: t.read_block(DRAM, 0), "read of 0 bytes"),
        (lambda t: t.read_block(DRAM, -8), "read of -8 bytes"),
        (lambda t: t.read64(DRAM + 4), f"read of 8 bytes at {DRAM + 4:#x}: a transport moves 64-bit words"),
        (lambda t: t.poll([DRAM, DRAM + 1]), f"read of 8 bytes at {DRAM + 1:#x}: a transport moves 64-bit words"),
        (lambda t: t.write64(DRAM + 4, 0), f"write of 8 bytes at {DRAM + 4:#x}: a transport moves 64-bit words"),
        (lambda t: t.write_block(DRAM, b"1234"), "write of 4 bytes"),
        (lambda t: t.write_block(DRAM, np.zeros(32, np.uint8)[::2]), f"write at {DRAM:#x}: the data are no run of"),
        (lambda t: t.write64(DRAM, -1), f"write of -0x1 at {DRAM:#x}: a word is 0 to 2^64 - 1"),
        (lambda t: t.write64(DRAM, 2**64), f"write of 0x10000000000000000 at {DRAM:#x}: a word is 0 to 2^64 - 1"),
        (
            lambda t: t.submit([(DRAM, bytes(8)), (DRAM + 4, bytes(8))]),
            f"write of 8 bytes at {DRAM + 4:#x}: a transport",
        ),
        (lambda t: t.submit([(DRAM, bytes(8)), (DRAM, b"")]), "write of 0 bytes"),
        (lambda t: t.submit([(DRAM, bytes(8)), (DRAM, "12345678")]), f"write at {DRAM:#x}: the data are no run of"),
        (lambda t: t.submit([(DRAM, bytes(8)), (2**64, bytes(8))]), "host addresses are 0 to 2^64 - 1"),
        (lambda t: t.collect([(DRAM, 8), (DRAM, 12)]), "read of 12 bytes"),
        (lambda t: t.collect([(DRAM, 8), (-8, 8)]), "read of 8 bytes at -0x8: host addresses are 0 to 2^64 - 1"),
        (lambda t: t.read64(2**64), "read of 8 bytes at 0x10000000000000000: host addresses are 0 to 2^64 - 1"),
        (lambda t: t.read_block(-8, 8), "read of 8 bytes at -0x8: host addresses are 0 to 2^64 - 1"),
    ],
)
def test_what_cannot_be_carried_is_refused_and_changes_nothing(transport, call, message):
    transport.write64(DRAM, 77)
    with pytest.raises(TransportError, match=re.escape(message)):
        call(transport)
    assert transport.read64(DRAM) == 77


def test_what_the_card_says_arrives_as_if_it_were_here(transport):
    """The same exceptions, messages and reports as from a card in this process; afterwards it goes on."""
    for error, call in ((MachineError, lambda t: t.read64(8)), (Undefined, lambda t: t.read64(DRAM + 64))):
        with pytest.raises(error) as here:
            call(Card(CARD))
        with pytest.raises(error) as there:
            call(transport)
        assert str(there.value) == str(here.value)
        assert getattr(there.value, "report", None) == getattr(here.value, "report", None)
    transport.write64(DRAM, 5)
    assert transport.read64(DRAM) == 5


def test_after_close_every_call_is_refused(transport):
    transport.close()
    transport.close()
    for call in (
        lambda: transport.read64(DRAM),
        lambda: transport.write64(DRAM, 1),
        lambda: transport.read_block(DRAM, 8),
        lambda: transport.write_block(DRAM, b"12345678"),
        lambda: transport.poll([DRAM]),
        lambda: transport.submit([(DRAM, b"12345678")]),
        lambda: transport.collect([(DRAM, 8)]),
    ):
        with pytest.raises(TransportError, match="closed"):
            call()


def test_delayed_charges_once_a_call():
    late = Delayed(Plain(), 0.02)
    start = time.perf_counter()
    late.write64(0, 3)
    assert late.poll([0] * 50) == (3,) * 50
    assert (late.read64(0), late.read_block(0, 8)) == (3, (3).to_bytes(8, "little"))
    late.write_block(0, b"12345678")
    late.submit([(8 * at, b"abcdefgh") for at in range(50)])
    assert late.collect([(0, 400)] * 50) == (50 * b"abcdefgh",) * 50
    assert late.calls == 7
    assert time.perf_counter() - start >= 7 * 0.02


def test_delayed_charges_nothing_for_an_empty_batch_and_for_what_it_knows():
    late = Delayed(Plain(), 60)
    start = time.perf_counter()
    assert (late.submit([]), late.collect([]), late.poll([])) == (None, (), ())
    assert late.agents == AgentWindow()
    assert late.calls == 0
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("machine", ["ktpu-v13p", "ktpu-1"])
def test_the_window_is_that_of_the_card(machine, tmp_path):
    """By a card whose agents are where no default would look, of four meshes and of one."""
    spec = load(machine)
    card = Card(spec, assumptions=Assumptions(control_base=0x4_0080_0000, control_stride=0x2_0000))
    with serving(InProcess(card), f"unix:{tmp_path}/card", spec) as server:
        for transport in (InProcess(card), Remote(str(server.address)), Delayed(InProcess(card), 0.0)):
            for mesh in spec.mesh_ids:
                address = transport.agents.register(mesh, 0x10)
                assert address == card.control(mesh, 0x10)
                assert transport.read64(address) & 0xFFFF == 288


def test_what_is_no_register_of_a_window():
    window = AgentWindow()
    assert window.register(3, 0xFFF8) == 0x83_FFF8
    for mesh, offset in ((-1, 0), (0, -8), (0, 0x10000)):
        with pytest.raises(TransportError) as caught:
            window.register(mesh, offset)
        assert str(caught.value) == (
            f"register {offset:#x} of mesh {mesh}: meshes count from 0, and registers are at offsets 0 to 0xffff of "
            "each"
        )


# Over a socket


def test_blocks_and_polls_over_the_limit_of_a_message_are_cut_up(tmp_path):
    size = wire.MOST_BLOCK + (1 << 20) + 8
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    with serving(InProcess(Card(CARD)), f"unix:{tmp_path}/card") as server:
        remote = Remote(str(server.address))
        remote.write_block(DRAM, data)
        assert remote.read_block(DRAM, size) == data.tobytes()
        addresses = [DRAM + 8 * (at % 1000) for at in range(wire.MOST_WORDS + 5)]
        assert remote.poll(addresses) == tuple(np.resize(data.view("<u8")[:1000], len(addresses)).tolist())


def test_batches_over_the_limit_of_a_message_are_cut_up(tmp_path):
    """A block of more than a message, and blocks that are more than one together."""
    generator = np.random.default_rng(2)
    sizes = [wire.MOST_BLOCK + 8, 8, *[wire.MOST_BLOCK // 4] * 5, 64]
    datas = [generator.integers(0, 256, size, np.uint8) for size in sizes]
    starts = [DRAM + start for start in np.cumsum([0, *sizes[:-1]]).tolist()]
    with serving(InProcess(Card(CARD)), f"unix:{tmp_path}/card") as server:
        remote = Remote(str(server.address))
        remote.submit(list(zip(starts, datas, strict=True)))
        assert remote.collect(list(zip(starts, sizes, strict=True))) == tuple(data.tobytes() for data in datas)


def test_a_batch_that_is_cut_up_stops_and_counts_as_one(tmp_path, monkeypatch):
    plain, many = Plain(), wire.MOST_BLOCKS + 5
    with serving(plain, f"unix:{tmp_path}/card") as server:
        remote = Remote(str(server.address))
        remote.submit([(8 * (at % 1000), at.to_bytes(8, "little")) for at in range(many)])
        assert plain.writes == [(8 * (at % 1000), at) for at in range(many)]
        monkeypatch.setattr(wire, "MOST_BLOCK", 1 << 12)
        # A write that is cut up counts when all of it is done.
        with pytest.raises(TransportError, match="a defect where the card is: ") as caught:
            remote.submit([(0, bytes(8)), (8, bytes(wire.MOST_BLOCK + 8)), (Plain.BROKEN, bytes(8)), (0, bytes(8))])
        assert (carried_out(caught.value), len(plain.writes) - many) == (2, 2 + wire.MOST_BLOCK // 8)
        with pytest.raises(TransportError, match="a defect where the card is: ") as caught:
            remote.submit([(0, bytes(8)), (Plain.BROKEN - wire.MOST_BLOCK, bytes(wire.MOST_BLOCK + 8))])
        assert (carried_out(caught.value), caught.value.__notes__) == (1, ["1 of 2 writes were carried out"])
        assert remote.collect([(0, 8)] * many) == (bytes(8),) * many


@given(st.lists(st.integers(0, 40) | st.sampled_from([8, 16]), max_size=30), st.integers(1, 20), st.integers(1, 5))
def test_messages_of_a_batch_carry_it_in_order_and_what_they_may(sizes, most, blocks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MOST_BLOCK", most)
        patch.setattr(wire, "MOST_BLOCKS", blocks)
        found = list(wire.batches(sizes))
    pieces = [piece for batch in found for piece in batch]
    assert [(block, start + at) for block, start, size in pieces for at in range(size)] == [
        (block, at) for block, size in enumerate(sizes) for at in range(size)
    ]
    for batch, after in pairwise([*found, None]):
        assert sum(size for _, _, size in batch) <= most
        assert 1 <= len(batch) <= blocks
        # No message is sent that the one before had room for.
        if after is not None:
            assert len(batch) == blocks or sum(size for _, _, size in batch) + after[0][2] > most


def test_hosts_and_threads_share_one_card(tmp_path):
    failures = []
    with serving(InProcess(Card(CARD)), f"unix:{tmp_path}/card") as server:
        shared = Remote(str(server.address))

        def work(number, remote):
            try:
                for turn in range(100):
                    remote.write64(DRAM + 8 * number, number << 32 | turn)
                    assert remote.read64(DRAM + 8 * number) == number << 32 | turn
            except BaseException as problem:
                failures.append(problem)

        remotes = [shared] * 4 + [Remote(str(server.address)) for _ in range(4)]
        threads = [threading.Thread(target=work, args=pair) for pair in enumerate(remotes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
            assert not thread.is_alive()
        assert failures == []
        assert shared.poll([DRAM + 8 * number for number in range(8)]) == tuple(n << 32 | 99 for n in range(8))


def test_requests_of_several_hosts_are_carried_out_one_at_a_time(tmp_path):
    class Watched(Plain):
        """Knows how many calls were in it at once."""

        inside = most = 0

        def poll(self, addresses):
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.02)
            self.inside -= 1
            return super().poll(addresses)

    card = Watched()
    with serving(card, f"unix:{tmp_path}/card") as server:
        remotes = [Remote(str(server.address)) for _ in range(4)]
        threads = [threading.Thread(target=remote.poll, args=([0] * at,)) for at, remote in enumerate(remotes, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
    assert (card.most, card.reads) == (1, 1 + 2 + 3 + 4)


def test_too_many_hosts_are_told_so_and_the_next_one_gets_the_place(tmp_path):
    with serving(Plain(), f"unix:{tmp_path}/card") as server:
        remotes = [Remote(str(server.address)) for _ in range(MOST_CONNECTIONS)]
        with pytest.raises(TransportError, match=r"serves 16 hosts already|connection"):
            Remote(str(server.address))
        remotes.pop().close()
        for _ in range(50):
            try:
                Remote(str(server.address)).close()
                break
            except TransportError:
                time.sleep(0.05)
        else:
            pytest.fail("no place became free")
        assert remotes[0].read64(0) == 0


def test_a_server_that_stops_leaves_no_socket_and_says_goodbye(tmp_path):
    with serving(Plain(), f"unix:{tmp_path}/card") as server:
        mode = (tmp_path / "card").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        remote = Remote(str(server.address))
        remote.write64(0, 1)
    assert not (tmp_path / "card").exists()
    with pytest.raises(TransportError, match=r"the connection to unix:\S+ was given up at a read of the word at 0x0"):
        remote.read64(0)


def test_a_dead_socket_is_replaced_and_a_living_one_and_a_file_are_not(tmp_path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "card"))
    dead.close()
    with serving(Plain(), f"unix:{tmp_path}/card") as server:
        with pytest.raises(TransportError, match="another server listens there; name another path, or end it"):
            Server(Plain(), CARD, str(server.address))
        assert Remote(str(server.address)).read64(0) == 0
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(TransportError, match="a file is there that is no socket; name another path"):
        Server(Plain(), CARD, f"unix:{file}")
    assert file.read_text() == "mine"


def test_nobody_there(tmp_path):
    with pytest.raises(TransportError) as caught:
        Remote(f"unix:{tmp_path}/none")
    assert str(caught.value) == (
        f"no card answers at unix:{tmp_path}/none (No such file or directory): start one with `meshwright simulate "
        f"--listen unix:{tmp_path}/none`"
    )
    with pytest.raises(TransportError, match="a timeout of 0 s leaves no time to answer"):
        Remote(f"unix:{tmp_path}/none", timeout=0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("unix:a/b:c", "unix:a/b:c"),
        ("tcp:127.0.0.1:80", "tcp:127.0.0.1:80"),
        ("tcp:localhost:0", "tcp:127.0.0.1:0"),
        ("tcp:127.9.9.9:65535", "tcp:127.9.9.9:65535"),
        ("tcp:[::1]:7", "tcp:[::1]:7"),
    ],
)
def test_addresses(text, shown):
    assert str(parse_address(text)) == shown
    assert parse_address(shown) == parse_address(text)


@pytest.mark.parametrize(
    "text", ["", "unix:", "card.sock", "tcp:127.0.0.1", "tcp::80", "tcp:127.0.0.1:65536", "udp:x:1"]
)
def test_what_is_no_address(text):
    with pytest.raises(TransportError) as caught:
        parse_address(text)
    assert str(caught.value) == (
        f"{text!r} is no address: write unix:PATH, or tcp:127.0.0.1:PORT with a port up to 65535"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "example.org", "[::]", "[::ffff:10.0.0.1]", "127.1"])
def test_only_loopback_is_used(host):
    for use in (Remote, lambda address: Server(Plain(), CARD, address)):
        with pytest.raises(
            TransportError, match=r"is no loopback address\. Whoever reaches the port has the whole card"
        ):
            use(f"tcp:{host}:47155")


def test_a_path_that_is_too_long():
    with pytest.raises(TransportError, match="the path of a Unix socket has 103 bytes at most"):
        parse_address("unix:" + str(Path("x" * 104)))

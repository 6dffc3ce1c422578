"""Connections that go wrong: nothing hangs, no wrong value is returned, and the process goes on with another one."""

import random
import re
import socket
import struct
import threading
import time
import zlib

import msgspec
import pytest
from tests.runtime.transport_rig import HEADER, Plain, Proxy, false_server, frame, serving, whole
from tests.simulator.programs import CARD

from meshwright.errors import TransportError
from meshwright.machine import to_json
from meshwright.runtime import transport_wire as wire
from meshwright.runtime.transport import AgentWindow
from meshwright.runtime.transport_socket import Remote

SOON = 0.5
"""Seconds of a call's timeout, where it is going to be used up."""
MOST = 5.0
"""Seconds within which anything must have ended."""
VALUE = 0x0123_4567_89AB_CDEF
VALUE_BYTES = VALUE.to_bytes(8, "little")
CALLS = {
    "write64": (lambda r: r.write64(16, 5), None, [(16, 5)], "write of 0x5 at 0x10"),
    "poll": (lambda r: r.poll([8, 16]), (VALUE, 0), [], "read of 2 words, the first at 0x8"),
    "submit": (
        lambda r: r.submit([(16, bytes([5, *bytes(15)])), (16, bytes([6, *bytes(7)]))]),
        None,
        [(16, 5), (24, 0), (16, 6)],
        "submit of 2 writes, the first at 0x10",
    ),
    "collect": (
        lambda r: r.collect([(8, 8), (0, 16)]),
        (VALUE_BYTES, bytes(8) + VALUE_BYTES),
        [],
        "collect of 2 blocks, the first at 0x8",
    ),
}
"""What a host does, its right answer, the words that it writes, and what it is called."""
WELCOME = frame(wire.Welcome(wire.VERSION, to_json(CARD), AgentWindow()))


@pytest.fixture
def plain():
    card = Plain()
    card.words[8] = VALUE
    return card


@pytest.fixture
def server(plain, tmp_path):
    with serving(plain, f"unix:{tmp_path}/card") as server:
        yield server


@pytest.fixture
def through(server, tmp_path):
    """Makes a host behind a proxy that spoils frames."""
    proxies = []

    def connect(spoil, timeout=SOON):
        proxies.append(Proxy(tmp_path / f"proxy{len(proxies)}", server.address, spoil))
        remote = Remote(proxies[-1].address, timeout=MOST)
        # Not that of the handshake: on a busy computer that takes what it takes.
        remote.timeout = timeout
        return remote

    yield connect
    for proxy in proxies:
        proxy.__exit__()


@pytest.fixture(autouse=True)
def _ends_soon():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 12 * MOST


def at(way, number, instead):
    """Spoils one frame of one way."""
    return lambda w, n, data: instead(data) if (w, n) == (way, number) else [data]


def fails(remote, call, match):
    """A call fails in time, the transport says so from then on, and there is no wrong value."""
    start = time.monotonic()
    with pytest.raises(TransportError, match=match):
        call(remote)
    with pytest.raises(TransportError, match="was given up at a"):
        remote.read64(8)
    assert time.monotonic() - start < MOST


def goes_on(server):
    remote = Remote(str(server.address), timeout=MOST)
    assert remote.read64(8) == VALUE
    remote.close()


@pytest.fixture(params=CALLS.values(), ids=CALLS)
def case(request):
    return request.param


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_dropped_message(way, case, through, server, plain):
    call, _, writes, what = case
    remote = through(at(way, 1, lambda data: []))
    fails(remote, call, rf"was given up at a {re.escape(what)}: no whole answer within 0.5 s\. ")
    # The host can't know, and is told so: it was done if the answer was lost.
    assert plain.writes == (writes if way == "down" else [])
    goes_on(server)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_delay_within_the_time_is_only_late_and_one_beyond_ends_it(way, case, through, server):
    call, right, _, _ = case
    assert call(through(at(way, 1, lambda data: [0.1, data]), timeout=MOST)) == right
    fails(through(at(way, 1, lambda data: [2 * SOON, data])), call, "no whole answer within 0.5 s")
    goes_on(server)


def test_the_time_is_that_of_the_whole_answer(through, server):
    def drip(data):
        return [item for at in range(len(data)) for item in (data[at : at + 1], 0.005)]

    assert through(at("down", 1, drip), timeout=MOST).read64(8) == VALUE
    slow = at("down", 1, lambda data: [item for byte in data for item in (bytes([byte]), 0.1)])
    fails(through(slow), lambda r: r.read64(8), "no whole answer within 0.5 s")
    goes_on(server)


def test_a_request_that_comes_twice_is_done_once(case, through, server, plain):
    call, right, writes, _ = case
    remote = through(at("up", 1, lambda data: [data, data]))
    assert call(remote) == right
    fails(remote, lambda r: r.read64(16), "request 1 came after request 1: ids ascend|the connection|other side closed")
    assert plain.writes == writes
    goes_on(server)


def test_an_answer_that_comes_twice_is_taken_for_no_other(case, through, server):
    call, right, _, _ = case
    remote = through(at("down", 1, lambda data: [data, data]))
    assert call(remote) == right
    fails(remote, call, "request 2 was answered with an answer to request 1")
    goes_on(server)


@pytest.mark.parametrize("way", ["up", "down"])
def test_no_corrupted_byte_gets_through(way, case, through, server, plain):
    """Each byte of a frame, header and body, with a bit turned; and frames with many bytes changed."""
    call, _, writes, _ = case
    generator, frames = random.Random(7), []
    call(through(at(way, 1, lambda data: [frames.append(data), data][1:]), timeout=MOST))
    size = len(frames[0])
    done = len(plain.writes)
    masks = [{where: 1 << generator.randrange(8)} for where in range(size)]
    masks += [{w: generator.randrange(1, 256) for w in generator.sample(range(HEADER, size), 5)} for _ in range(20)]
    for mask in masks:
        remote = through(at(way, 1, lambda d, m=mask: [bytes(b ^ m.get(i, 0) for i, b in enumerate(d))]), timeout=0.1)
        with pytest.raises(TransportError, match="was given up at a"):
            call(remote)
    goes_on(server)
    # Only answers were corrupted, if anything was written; whoever left early had nothing done.
    repeats, rest = divmod(len(plain.writes) - done, len(writes) or 1)
    assert (plain.writes[done:], rest) == (writes * repeats, 0)
    assert repeats <= (len(masks) if way == "down" else 0)


@pytest.mark.parametrize("way", ["up", "down"])
def test_no_corrupted_handshake_gets_through(way, server, tmp_path):
    message = wire.Hello(wire.VERSION) if way == "up" else wire.Welcome(wire.VERSION, to_json(CARD), AgentWindow())
    size, generator = len(frame(message)), random.Random(8)
    for place in {*range(HEADER + 16), *generator.sample(range(HEADER, size), min(size - HEADER, 30))}:
        turn = 1 << generator.randrange(8)

        def spoil(w, n, data, place=place, turn=turn):
            return [data[:place] + bytes([data[place] ^ turn]) + data[place + 1 :] if (w, n) == (way, 0) else data]

        if place < size:
            with (
                Proxy(tmp_path / f"proxy{place}", server.address, spoil) as proxy,
                pytest.raises(TransportError, match="is no card for us: "),
            ):
                Remote(proxy.address, timeout=0.1)
    goes_on(server)


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("kept", [0, 3, HEADER, HEADER + 4])
def test_a_connection_cut_in_the_middle(way, kept, case, through, server, plain):
    call, _, writes, _ = case
    remote = through(at(way, 1, lambda data: [data[:kept], None]), timeout=MOST)
    fails(remote, call, "connection|gave up")
    assert plain.writes == (writes if way == "down" else [])
    goes_on(server)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_message_that_is_cut_short(way, case, through, server, plain):
    call, _, writes, _ = case
    fails(through(at(way, 1, lambda data: [data[:-1]])), call, "no whole answer within 0.5 s")
    assert plain.writes == (writes if way == "down" else [])
    goes_on(server)


def test_a_batch_of_several_messages_that_fails_in_the_middle(through, server, plain, monkeypatch):
    """What was carried out is a beginning of it, and a collect is either all there or an error."""
    monkeypatch.setattr(wire, "MOST_BLOCKS", 2)
    writes = [(8 * which, which.to_bytes(8, "little")) for which in range(10, 17)]
    drop = through(at("up", 3, lambda data: []))
    fails(drop, lambda r: r.submit(writes), "was given up at a submit of 2 writes, the first at 0x70: no whole answer")
    assert plain.writes == [(8 * which, which) for which in range(10, 14)]
    cut = through(at("down", 2, lambda data: [data[:-1], None]), timeout=MOST)
    fails(cut, lambda r: r.collect([(8, 8)] * 5), "at a collect of 2 blocks, the first at 0x8: the connection")
    goes_on(server)


def test_pending_calls_of_all_threads_fail_and_none_hangs(through, server):
    remote, found = through(at("down", 5, lambda data: [None]), timeout=MOST), []

    def work():
        try:
            while True:
                assert remote.read64(8) == VALUE
        except TransportError as problem:
            found.append(str(problem))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=MOST)
        assert not thread.is_alive()
    assert len(found) == 6
    assert all(f"the connection to {remote.address} was given up" in text for text in found)
    goes_on(server)


def test_an_interrupted_call_leaves_no_answer_for_the_next_one(server, monkeypatch):
    remote, receive = Remote(str(server.address)), wire.receive

    def interrupted(*arguments, **options):
        if arguments[1] is wire.REPLY:
            raise KeyboardInterrupt
        return receive(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(wire, "receive", interrupted)
        remote.read64(8)
    with pytest.raises(TransportError, match="was given up at a read of the word at 0x8: interrupted"):
        remote.read64(16)
    goes_on(server)


# What one side sends that the other must not take


def raw(server):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(MOST)
    connection.connect(server.address.path)
    return connection


def greeted(server):
    connection = raw(server)
    connection.sendall(frame(wire.Hello(wire.VERSION)))
    assert whole(connection) == WELCOME
    return connection


def refusal(connection):
    reply = wire.ANSWER.decode(whole(connection)[HEADER:])
    assert connection.recv(1) == b""
    assert reply.id == 0
    return reply.message


def test_the_server_refuses_a_frame_that_is_too_large(server):
    connection = greeted(server)
    connection.sendall(struct.pack(">II", wire.MOST_BODY + 1, 0))
    assert refusal(connection) == "a frame of 8,388,609 bytes was announced; the most is 8,388,608"
    goes_on(server)


def test_the_server_refuses_a_block_that_is_too_large(server, plain):
    connection = greeted(server)
    connection.sendall(frame(wire.ReadBlock(1, 0, wire.MOST_BLOCK + 8)))
    assert "is none of this protocol" in refusal(connection)
    assert plain.reads == 0
    goes_on(server)


def test_the_server_refuses_another_version(server):
    connection = raw(server)
    connection.sendall(frame(wire.Hello(1)))
    assert refusal(connection) == (
        "it speaks version 2 of the protocol and this side version 1: use the same meshwright on both"
    )
    goes_on(server)


def as_before(message):
    """The frame of a message as version 1 had it, by its fields."""
    body = msgspec.msgpack.encode(message)
    size = struct.pack(">I", len(body))
    return size + struct.pack(">I", zlib.crc32(body, zlib.crc32(size))) + body


def test_an_older_host_understands_why_it_is_refused(server):
    with raw(server) as connection:
        connection.sendall(as_before({"type": "Hello", "version": 1}))
        reply = whole(connection)
    assert msgspec.msgpack.decode(reply[HEADER:]) == {
        "type": "Refused",
        "id": 0,
        "kind": "transport",
        "message": "it speaks version 2 of the protocol and this side version 1: use the same meshwright on both",
    }


def test_an_older_server_is_refused(tmp_path):
    """Whether it refuses version 2 or welcomes whoever comes."""
    message = "it speaks version 1 of the protocol and this side version 2: use the same meshwright on both"
    refuses = {"type": "Refused", "id": 0, "kind": "transport", "message": message}
    welcomes = {"type": "Welcome", "version": 1, "machine": to_json(CARD)}
    for number, answer in enumerate((refuses, welcomes)):
        with (
            false_server(tmp_path / f"old{number}", as_before(answer)) as address,
            pytest.raises(TransportError) as caught,
        ):
            Remote(address, timeout=MOST)
        assert str(caught.value) == f"{address} is no card for us: {message}"


@pytest.mark.parametrize(
    "message",
    [wire.Hello(1), wire.Done(1), wire.Poll(0, (8,)), wire.Poll(1, (-8,)), wire.WriteWord(1, 0, -1)],
    ids=str,
)
def test_the_server_refuses_what_is_no_request(message, server, plain):
    connection = greeted(server)
    connection.sendall(frame(message))
    refusal(connection)
    assert (plain.reads, plain.writes) == (0, [])
    goes_on(server)


def test_a_request_before_the_handshake_is_refused(server, plain):
    connection = raw(server)
    connection.sendall(frame(wire.WriteWord(1, 0, 1)))
    assert "is none of this protocol" in refusal(connection)
    assert plain.writes == []


def test_a_host_that_stops_in_the_middle_holds_up_nobody(server):
    connection = greeted(server)
    connection.sendall(frame(wire.WriteWord(1, 8, 1))[:-1])
    goes_on(server)
    connection.close()
    goes_on(server)


def test_a_defect_where_the_card_is_ends_neither_side(server, plain, monkeypatch):
    remote = Remote(str(server.address))
    with monkeypatch.context() as patch:
        patch.setattr(plain, "poll", lambda addresses: 1 // 0)
        with pytest.raises(TransportError, match=r"^a defect where the card is: ZeroDivisionError: "):
            remote.read64(8)
    assert remote.read64(8) == VALUE


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            struct.pack(">II", wire.MOST_BODY + 1, 0),
            "a frame of 8,388,609 bytes was announced; the most is 8,388,608",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1,213,486,160 bytes was announced"),
        (frame(wire.Done(1)), "is none of this protocol"),
        (frame(wire.Welcome(2, b"{}", AgentWindow())), "machine: "),
        (frame(wire.Welcome(2, to_json(CARD))), "is no card for us: it doesn't say where the registers of its agents"),
        (frame(wire.Welcome(2, to_json(CARD), AgentWindow(0, 0))), "is none of this protocol"),
        (frame(wire.Welcome(2, to_json(CARD), AgentWindow(-8, 8))), "is none of this protocol"),
        (frame(wire.Refused(0, "transport", "no")), "is no card for us: no"),
        (
            frame(wire.Welcome(1, b"", AgentWindow())),
            "is no card for us: it speaks version 1 of the protocol and this side version 2: use the same meshwright",
        ),
    ],
)
def test_the_host_refuses_what_is_no_welcome(answer, message, tmp_path):
    with false_server(tmp_path / "false", answer) as address, pytest.raises(TransportError, match=message):
        Remote(address, timeout=MOST)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (wire.Done(1), "a Poll was answered with Done"),
        (wire.Words(2, (VALUE,)), "request 1 was answered with an answer to request 2"),
        (wire.Words(1, ()), "0 words came back"),
        (wire.Words(1, (1, 2)), "2 words came back"),
        (wire.Words(1, (-1,)), "is none of this protocol"),
        (wire.Hello(1), "is none of this protocol"),
    ],
    ids=str,
)
def test_the_host_refuses_what_is_no_answer(answer, message, tmp_path):
    with false_server(tmp_path / "false", WELCOME, frame(answer)) as address:
        fails(Remote(address, timeout=MOST), lambda r: r.read64(8), message)


def test_the_host_refuses_a_block_of_another_size(tmp_path):
    with false_server(tmp_path / "false", WELCOME, frame(wire.Data(1, b"1234"))) as address:
        fails(Remote(address, timeout=MOST), lambda r: r.read_block(8, 8), "4 bytes came back")


def test_nobody_who_answers(tmp_path):
    with false_server(tmp_path / "false") as address, pytest.raises(TransportError, match="no whole answer within"):
        Remote(address, timeout=SOON)

"""Frames bit by bit, hosts that leave or don't listen, and long runs through a proxy that does anything to anything."""

import contextlib
import random
import socket
import threading
import time

import pytest
from tests.runtime.transport_rig import HEADER, Plain, Proxy, frame, serving, whole
from tests.simulator.programs import CARD

from meshwright.errors import TransportError
from meshwright.machine import to_json
from meshwright.runtime import transport_wire as wire
from meshwright.runtime.transport import AgentWindow
from meshwright.runtime.transport_socket import Remote
from meshwright.simulator.faults import Kind, Report

SOON = 0.4
MOST = 10.0
WORD = b"12345678"
REQUESTS = [
    wire.Poll(1, (8, 16, 2**64 - 8)),
    wire.WriteWord(2, 8, 2**64 - 1),
    wire.ReadBlock(3, 8, 64),
    wire.WriteBlock(4, 8, WORD * 2),
    wire.Submit(5, ((8, WORD), (16, WORD * 3), (8, bytes(8)))),
    wire.Collect(6, ((8, 8), (16, 64))),
]
REPLIES = [
    wire.Words(1, (0, 5, 2**64 - 1)),
    wire.Data(2, WORD),
    wire.Blocks(3, (WORD, WORD * 2)),
    wire.Done(4),
    wire.Refused(5, "machine", "no"),
    wire.Fault(6, Report(Kind.UNDEFINED, 0, "why")),
    wire.Stopped(7, 3, wire.Refused(7, "transport", "no")),
]
KINDS = [
    (wire.HELLO, wire.Hello(wire.VERSION)),
    (wire.ANSWER, wire.Welcome(wire.VERSION, to_json(CARD)[:100], AgentWindow())),
    *((wire.REQUEST, message) for message in REQUESTS),
    *((wire.REPLY, message) for message in REPLIES),
]


def received(decoder, content):
    """What comes out of a stream that is this and then ends."""
    source, sink = socket.socketpair()
    with source, sink:
        sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)
        return wire.receive(source, decoder, MOST)


@pytest.mark.parametrize(("decoder", "message"), KINDS, ids=lambda value: type(value).__name__)
def test_a_turned_bit_anywhere_in_a_frame_is_an_error(decoder, message):
    """Every bit, and many pairs of bits of the header; and a frame that ends early at any byte."""
    content = frame(message)
    assert received(decoder, content) == message
    turns = [(bit,) for bit in range(8 * len(content))]
    turns += [(one, other) for one in range(8 * HEADER) for other in random.Random(one).sample(range(one), one // 12)]
    for turn in turns:
        spoiled = bytearray(content)
        for bit in turn:
            spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TransportError, match=r"corrupted|was announced|ended in the middle"):
            received(decoder, spoiled)
    for kept in range(len(content)):
        with pytest.raises(TransportError, match=r"ended in the middle|other side closed"):
            received(decoder, content[:kept])


@pytest.mark.parametrize(
    "message",
    [
        lambda: wire.Submit(1, ((0, bytes(wire.MOST_BLOCK)), (0, bytes(8)))),
        lambda: wire.Collect(1, ((0, wire.MOST_BLOCK), (0, 8))),
    ],
)
def test_no_batch_of_more_than_a_message_may_carry_is_made(message):
    with pytest.raises(ValueError, match=r"a batch of 2,097,160 bytes; the most is 2,097,152"):
        message()


@pytest.mark.parametrize("message", [wire.Submit, wire.Collect])
def test_no_batch_of_more_than_a_message_may_carry_is_taken(message, monkeypatch, tmp_path):
    """By a server, of a host that doesn't keep to the limits."""
    plain = Plain()
    too_many = {
        wire.Submit: [((0, bytes(wire.MOST_BLOCK)), (0, bytes(8))), ((0, WORD),) * (wire.MOST_BLOCKS + 1)],
        wire.Collect: [((0, wire.MOST_BLOCK), (0, 8)), ((0, 8),) * (wire.MOST_BLOCKS + 1)],
    }
    with serving(plain, f"unix:{tmp_path}/card") as server:
        for items in too_many[message]:
            with monkeypatch.context() as patch:
                patch.setattr(wire, "MOST_BLOCK", 1 << 40)
                content = frame(message(1, items))
            with greeted(server) as connection:
                connection.sendall(content)
                reply = wire.ANSWER.decode(whole(connection)[HEADER:])
            assert "is none of this protocol" in reply.message
        assert (plain.reads, plain.writes) == (0, [])


def greeted(server):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(MOST)
    connection.connect(server.address.path)
    connection.sendall(frame(wire.Hello(wire.VERSION)))
    assert whole(connection) is not None
    return connection


class Held(Plain):
    """A card that keeps polls until it is let go."""

    def __init__(self):
        super().__init__()
        self.inside, self.go = threading.Event(), threading.Event()

    def poll(self, addresses):
        self.inside.set()
        assert self.go.wait(MOST)
        return super().poll(addresses)


@pytest.mark.parametrize("address", ["unix:{}/card", "tcp:127.0.0.1:0"])
def test_nothing_of_a_host_that_gave_up_happens_later(address, tmp_path):
    """What waits for its turn when the host leaves isn't carried out behind the back of its next connection."""
    card = Held()
    with serving(card, address.format(tmp_path)) as server:
        first, second, third = (Remote(str(server.address), timeout=MOST) for _ in range(3))
        thread = threading.Thread(target=first.poll, args=([8],))
        thread.start()
        assert card.inside.wait(MOST)
        second.timeout = third.timeout = 0.2
        for call in (lambda: second.submit([(8, WORD)]), lambda: third.write64(8, 5)):
            with pytest.raises(TransportError, match=r"no whole answer within 0\.2 s"):
                call()
        card.go.set()
        thread.join(MOST)
        again = Remote(str(server.address), timeout=MOST)
        again.write64(16, 7)
        assert again.poll([8, 16]) == (0, 7)
        assert card.writes == [(16, 7)]


def test_a_host_that_does_not_take_its_answer_holds_up_nobody(tmp_path):
    with serving(Plain(), f"unix:{tmp_path}/card") as server, greeted(server) as connection:
        connection.sendall(frame(wire.Collect(1, ((0, wire.MOST_BLOCK),))))
        # Into its answer, of which the system takes only a beginning.
        assert connection.recv(1)
        remote = Remote(str(server.address), timeout=MOST)
        remote.submit([(8, WORD)])
        assert remote.collect([(8, 8)]) == (WORD,)


# Anything may happen


def storm(seed):
    """Drops, repeats, cuts short, corrupts, tears or is late with one frame in ten or so; the count of what it did."""
    generator, done = random.Random(seed), {}

    def spoil(way, number, data):
        kind = generator.choice(["drop", "repeat", "short", "corrupt", "cut", "late", "tear", *["none"] * 60])
        done[kind] = done.get(kind, 0) + 1
        where = generator.randrange(len(data))
        turned = data[:where] + bytes([data[where] ^ 1 << generator.randrange(8)]) + data[where + 1 :]
        return {
            "drop": [],
            "repeat": [data, data],
            "short": [data[:where]],
            "corrupt": [turned],
            "cut": [data[:where], None],
            "late": [0.02, data],
            "tear": [data[:where], 0.01, data[where:]],
            "none": [data],
        }[kind]

    return spoil, done


def batch(generator):
    return [
        (8 * generator.randrange(16), generator.randbytes(8 * generator.randrange(1, 5)))
        for _ in range(generator.randrange(1, 6))
    ]


def in_words(writes):
    return [
        (address + at, int.from_bytes(data[at : at + 8], "little"))
        for address, data in writes
        for at in range(0, len(data), 8)
    ]


def block(plain, address, count):
    return b"".join(plain.words.get(at, 0).to_bytes(8, "little") for at in range(address, address + count, 8))


@pytest.mark.parametrize("seed", range(5))
def test_in_a_storm_a_call_is_right_or_an_error_and_soon(seed, tmp_path):
    """Every answer is the truth, every write is done as often as it was asked for, or an error tells the host.

    After an error it connects again. Of the call that failed, all or nothing was done, and nothing comes later.
    """
    generator, plain = random.Random(seed), Plain()
    spoil, done = storm(seed)
    failures = 0
    with (
        serving(plain, f"unix:{tmp_path}/card") as server,
        Proxy(tmp_path / "proxy", server.address, spoil) as proxy,
    ):
        remote = None
        for _ in range(60):
            while remote is None:
                with contextlib.suppress(TransportError):
                    remote = Remote(proxy.address, timeout=SOON)
            before = len(plain.writes)
            writes, spans = batch(generator), [(at, len(data)) for at, data in batch(generator)]
            begun = time.monotonic()
            try:
                match generator.randrange(4):
                    case 0:
                        asked = in_words(writes)
                        remote.submit(writes)
                    case 1:
                        asked = []
                        assert remote.collect(spans) == tuple(block(plain, *span) for span in spans)
                    case 2:
                        asked = []
                        found = remote.poll([at for at, _ in spans])
                        assert found == tuple(plain.words.get(at, 0) for at, _ in spans)
                    case _:
                        asked = in_words(writes[:1])
                        remote.write_block(*writes[0])
                assert plain.writes[before:] == asked
            except TransportError:
                failures += 1
                remote = None
                # Whatever is being carried out is done when the next host had its turn.
                Remote(str(server.address), timeout=MOST).read64(0)
                assert plain.writes[before:] in ([], asked)
            assert time.monotonic() - begun < MOST
    assert failures >= 1
    assert len(done) >= 4

"""Servers in a thread, a proxy that spoils what goes through it, and a card that is only words."""

import contextlib
import socket
import struct
import threading
import time

import numpy as np
from tests.simulator.programs import CARD, Host, Product, words

from meshwright.numerics import product
from meshwright.runtime import transport_wire as wire
from meshwright.runtime.transport import AgentWindow, stopped
from meshwright.runtime.transport_socket import Server
from meshwright.simulator import Card

HEADER = 8


class Plain:
    """A transport to a dictionary of words; `writes` has every one in order."""

    BROKEN = 1 << 40
    """A word that can't be written."""
    agents = AgentWindow()

    def __init__(self):
        self.words, self.writes, self.reads = {}, [], 0

    def read64(self, address):
        return self.poll((address,))[0]

    def write64(self, address, value):
        if address == self.BROKEN:
            raise ZeroDivisionError
        self.writes.append((address, value))
        self.words[address] = value

    def read_block(self, address, count):
        found = self.poll(range(address, address + count, 8))
        return np.array(found, np.uint64).tobytes()

    def write_block(self, address, data):
        for at, value in enumerate(np.frombuffer(data, np.uint64).tolist()):
            self.write64(address + 8 * at, value)

    def poll(self, addresses):
        self.reads += len(addresses)
        return tuple(self.words.get(address, 0) for address in addresses)

    def submit(self, writes):
        for done, (address, data) in enumerate(writes):
            try:
                self.write_block(address, data)
            except Exception as problem:
                # Of whatever kind it is: the count is added, and it is raised again.
                stopped(problem, done, len(writes))
                raise

    def collect(self, spans):
        return tuple(self.read_block(address, count) for address, count in spans)

    def close(self):
        pass


@contextlib.contextmanager
def serving(transport, address, machine=CARD):
    """A server at an address, in a thread; it has ended when the block is left."""
    server = Server(transport, machine, str(address))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(timeout=10)
        assert not thread.is_alive()


def whole(connection):
    """One frame as it came, or None at the end."""
    with contextlib.suppress(OSError):
        header = connection.recv(HEADER, socket.MSG_WAITALL)
        if len(header) == HEADER:
            return header + connection.recv(struct.unpack(">II", header)[0], socket.MSG_WAITALL)
    return None


class Proxy:
    """Between hosts and the server at `target`; listens at `address`.

    spoil(way, number, frame): what to send instead of a frame, a list of bytes, of seconds to wait and of None to cut
    the connection. way: "up" to the server or "down"; number: 0 for the handshake.
    """

    def __init__(self, path, target, spoil):
        self.address = f"unix:{path}"
        self._target, self._spoil = str(target).removeprefix("unix:"), spoil
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                host = self._listener.accept()[0]
                card = socket.socket(socket.AF_UNIX)
                card.connect(self._target)
                for way, source, sink in (("up", host, card), ("down", card, host)):
                    threading.Thread(target=self._carry, args=(way, source, sink), daemon=True).start()

    def _carry(self, way, source, sink):
        number = 0
        with contextlib.suppress(OSError):
            while (frame := whole(source)) is not None:
                for item in self._spoil(way, number, frame):
                    if item is None:
                        source.shutdown(socket.SHUT_RDWR)
                    elif isinstance(item, bytes):
                        sink.sendall(item)
                    else:
                        time.sleep(item)
                number += 1
            sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def false_server(path, *frames):
    """Answers the messages of one host with these bytes, then stays silent until the host leaves."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer():
            with listener.accept()[0] as connection:
                for frame in frames:
                    whole(connection)
                    connection.sendall(frame)
                while whole(connection) is not None:
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"unix:{path}"
        thread.join(timeout=10)
        assert not thread.is_alive()


def frame(message):
    return wire.frame(message)


class Seen:
    """A transport with what the programs of the simulator's tests ask of a card."""

    def __init__(self, transport, machine=CARD):
        self.machine = machine
        self.control = Card(machine).control
        for name in ("read64", "write64", "read_block", "write_block"):
            setattr(self, name, getattr(transport, name))


def product_is_right(transport, mesh=0, seed=5):
    """A product, dispatched through a transport by the card's procedure; whether it has the right bits."""
    a, b = np.random.default_rng(seed).standard_normal((2, 16, 96)).astype(np.float16).view(np.uint16)
    sums, card = Product(a, b, 2, 2, 1, mesh=mesh), Seen(transport)
    sums.load(card)
    Host(card, mesh).run((1, 1), words(*sums.program()))
    return np.array_equal(sums.result(card, 16, 16), product.matmul_fp16(a, b).view(np.uint16))

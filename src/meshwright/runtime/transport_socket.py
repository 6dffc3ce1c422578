"""A card behind a socket of this computer: `Remote`, the transport, and `Server`, which another process runs."""

from __future__ import annotations

import contextlib
import selectors
import socket
import stat
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from meshwright.errors import MachineError, TransportError
from meshwright.machine import MachineSpec, from_json, to_json
from meshwright.runtime import transport_wire as wire
from meshwright.runtime.transport import (
    WORD,
    AgentWindow,
    Bytes,
    Transport,
    carried_out,
    check_block,
    check_spans,
    check_value,
    stopped,
    view,
    views,
)
from meshwright.simulator import MachineFault
from meshwright.simulator.faults import raised

MOST_CONNECTIONS: Final = 16
_HANDSHAKE_SECONDS: Final = 10.0
_FRAME_SECONDS: Final = 60.0
_SHORT_SECONDS: Final = 0.1

_R = TypeVar("_R", bound=wire.Reply)


class Remote:
    """The transport to a card that a `Server` has, such as that of `meshwright simulate --listen ADDRESS`.

    address: `unix:PATH` or `tcp:127.0.0.1:PORT`. timeout: seconds that any one call may take, the simulation of what it
    waits for included. machine: the description that the server sent. Threads may share it; their calls are carried out
    one at a time.

    An answer that doesn't come in time, or isn't the answer to what was asked, ends the connection; that call and all
    later ones raise `TransportError`, and a new `Remote` may be made. Raises it where there is no server too.
    """

    def __init__(self, address: str, timeout: float = 60.0) -> None:
        if not timeout > 0:
            raise TransportError(f"a timeout of {timeout:g} s leaves no time to answer: give a positive one")
        self.address = wire.parse_address(address)
        self.timeout = timeout
        self._lock = threading.Lock()
        self._id = 0
        self._closed = False
        self._lost: str | None = None
        self._socket = self._connected()
        try:
            self.machine, self._agents = self._welcomed()
        except BaseException:
            self._socket.close()
            raise

    def _connected(self) -> socket.socket:
        family, where = wire.endpoint(self.address)
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(self.timeout, _HANDSHAKE_SECONDS))
            connection.connect(where)
        except OSError as problem:
            connection.close()
            raise TransportError(
                f"no card answers at {self.address} ({problem.strerror or problem}): start one with `meshwright "
                f"simulate --listen {self.address}`"
            ) from None
        if family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    @property
    def agents(self) -> AgentWindow:
        """Where the registers of the meshes' agents are, as the server told."""
        return self._agents

    def _welcomed(self) -> tuple[MachineSpec, AgentWindow]:
        seconds = min(self.timeout, _HANDSHAKE_SECONDS)
        try:
            wire.send(self._socket, wire.Hello(wire.VERSION), seconds)
            answer = wire.receive(self._socket, wire.ANSWER, seconds)
            if isinstance(answer, wire.Refused):
                raise TransportError(answer.message)
            if answer.version != wire.VERSION:
                raise TransportError(
                    f"it speaks version {answer.version} of the protocol and this side version {wire.VERSION}: use the "
                    "same meshwright on both"
                )
            if answer.agents is None:
                raise TransportError("it doesn't say where the registers of its agents are")
            return from_json(answer.machine), answer.agents
        except (TransportError, MachineError) as problem:
            raise TransportError(f"{self.address} is no card for us: {problem}") from None

    def read64(self, address: int) -> int:
        """The word at an address."""
        return self.poll((address,))[0]

    def write64(self, address: int, value: int) -> None:
        """Writes the word at an address."""
        check_value(address, value)
        with self._asking(f"write of {value:#x} at {address:#x}") as id:
            self._exchange(wire.WriteWord(id, address, value), wire.Done)

    def read_block(self, address: int, count: int) -> bytes:
        """`count` bytes from an address on; more than 2 MiB are fetched in pieces."""
        check_block("read", address, count)
        return b"".join(
            self._read(address + start, min(wire.MOST_BLOCK, count - start))
            for start in range(0, count, wire.MOST_BLOCK)
        )

    def _read(self, address: int, count: int) -> bytes:
        with self._asking(f"read of {count} bytes at {address:#x}") as id:
            data = self._exchange(wire.ReadBlock(id, address, count), wire.Data).data
            if len(data) != count:
                raise TransportError(f"{len(data)} bytes came back")
            return data

    def write_block(self, address: int, data: Bytes) -> None:
        """Writes consecutive bytes from an address on; more than 2 MiB are sent in pieces."""
        content = view(address, data)
        for start in range(0, len(content), wire.MOST_BLOCK):
            piece = bytes(content[start : start + wire.MOST_BLOCK])
            with self._asking(f"write of {len(piece)} bytes at {address + start:#x}") as id:
                self._exchange(wire.WriteBlock(id, address + start, piece), wire.Done)

    def poll(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """The words at many addresses, in one message for each 65536 of them."""
        for address in addresses:
            check_block("read", address, WORD)
        values: list[int] = []
        for start in range(0, len(addresses), wire.MOST_WORDS):
            part = tuple(addresses[start : start + wire.MOST_WORDS])
            many = f"{len(part)} words, the first" if len(part) > 1 else "the word"
            with self._asking(f"read of {many} at {addresses[start]:#x}") as id:
                found = self._exchange(wire.Poll(id, part), wire.Words).values
                if len(found) != len(part):
                    raise TransportError(f"{len(found)} words came back")
                values.extend(found)
        return tuple(values)

    def submit(self, writes: Sequence[tuple[int, Bytes]]) -> None:
        """Writes many blocks in order, in one message for each 2 MiB or 65536 blocks of them."""
        contents = views(writes)
        for batch in wire.batches([len(content) for _, content in contents]):
            pieces = tuple(
                (contents[block][0] + start, bytes(contents[block][1][start : start + size]))
                for block, start, size in batch
            )
            with self._asking(f"submit of {len(pieces)} writes, the first at {pieces[0][0]:#x}") as id:
                try:
                    self._exchange(wire.Submit(id, pieces), wire.Done)
                except _Answered as answer:
                    done = carried_out(answer.error)
                    if done is None or done >= len(batch):
                        raise TransportError("it is not said at which write it stopped") from None
                    # Of a write that was cut up, only all of it counts.
                    stopped(answer.error, batch[done][0], len(writes))
                    raise

    def collect(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The bytes of many blocks, in one message for each 2 MiB or 65536 blocks of them."""
        check_spans(spans)
        found: list[list[bytes]] = [[] for _ in spans]
        for batch in wire.batches([count for _, count in spans]):
            pieces = tuple((spans[block][0] + start, size) for block, start, size in batch)
            with self._asking(f"collect of {len(pieces)} blocks, the first at {pieces[0][0]:#x}") as id:
                data = self._exchange(wire.Collect(id, pieces), wire.Blocks).data
                if [len(piece) for piece in data] != [size for _, size in pieces]:
                    raise TransportError(f"{len(data)} blocks of {sum(map(len, data)):,} bytes came back")
            for (block, _, _), piece in zip(batch, data, strict=True):
                found[block].append(piece)
        return tuple(b"".join(parts) for parts in found)

    def close(self) -> None:
        """Ends the connection; the card stays as it is."""
        with self._lock:
            self._closed = True
            self._socket.close()

    @contextlib.contextmanager
    def _asking(self, what: str) -> Generator[int]:
        """The turn of one request, with its id; whatever goes wrong in the stream ends the connection."""
        with self._lock:
            if self._closed:
                raise TransportError(f"{what}: the transport to {self.address} is closed: make another one")
            if self._lost is not None:
                raise TransportError(f"{what}: {self._lost}")
            self._id += 1
            try:
                yield self._id
            except _Answered as answer:
                raise answer.error from None
            except BaseException as problem:
                # After an interruption (Ctrl-C) too, an answer may still be on its way.
                self._socket.close()
                self._lost = (
                    f"the connection to {self.address} was given up at a {what}: {str(problem) or 'interrupted'}"
                )
                if not isinstance(problem, TransportError):
                    raise
                raise TransportError(
                    f"{self._lost}. Whether it was done there is not known; make another Remote to go on"
                ) from None

    def _exchange(self, request: wire.AnyRequest, expected: type[_R]) -> _R:
        wire.send(self._socket, request, self.timeout)
        reply = wire.receive(self._socket, wire.REPLY, self.timeout)
        if isinstance(reply, wire.Refused) and reply.id == 0:
            raise TransportError(f"the other side gave up: {reply.message}")
        if reply.id != request.id:
            raise TransportError(f"request {request.id} was answered with an answer to request {reply.id}")
        if isinstance(reply, wire.Stopped) and isinstance(request, wire.Submit):
            raise _Answered(stopped(_error(reply.error), reply.carried_out, reply.carried_out + 1))
        if isinstance(reply, wire.Refused | wire.Fault):
            raise _Answered(_error(reply))
        if not isinstance(reply, expected):
            raise TransportError(f"a {type(request).__name__} was answered with {type(reply).__name__}")
        return reply


def _error(reply: wire.Refused | wire.Fault) -> Exception:
    if isinstance(reply, wire.Fault):
        return raised(reply.report)
    return MachineError(reply.message) if reply.kind == "machine" else TransportError(reply.message)


class _Answered(Exception):  # noqa: N818
    """The card said no: a good answer, after which the connection goes on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Server:
    """Serves one card to hosts of this computer, up to 16 at a time, one request at a time.

    transport: the card. machine: its description, which hosts are told. address: `unix:PATH` or `tcp:127.0.0.1:PORT`
    (port 0: one that is free); the attribute is where it listens. A Unix socket is its owner's alone; one that a dead
    process left behind is replaced. Raises `TransportError` where it can't listen.
    """

    def __init__(self, transport: Transport, machine: MachineSpec, address: str) -> None:
        self._transport = transport
        self._machine = to_json(machine)
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._listener, self.address = _listening(wire.parse_address(address))
        self._stopped, self._stop = socket.socketpair()

    def serve(self) -> None:
        """Serve until `stop` is called from another thread, or this one is interrupted; then all is closed."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                selector.register(self._stopped, selectors.EVENT_READ)
                while all(key.fileobj is self._listener for key, _ in selector.select()):
                    # Whoever knocked may have gone again.
                    with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                        self._take(self._listener.accept()[0])
        finally:
            self._close()

    def stop(self) -> None:
        """Ends `serve`."""
        self._stop.close()

    def _take(self, connection: socket.socket) -> None:
        with self._guard:
            if len(self._connections) < MOST_CONNECTIONS:
                thread = threading.Thread(target=self._converse, args=(connection,), daemon=True)
                self._connections[connection] = thread
                thread.start()
                return
        with connection, contextlib.suppress(TransportError):
            wire.send(connection, _given_up(f"it serves {MOST_CONNECTIONS} hosts already"), _SHORT_SECONDS)

    def _close(self) -> None:
        for end in (self._listener, self._stopped, self._stop):
            end.close()
        if isinstance(self.address, wire.UnixAddress):
            Path(self.address.path).unlink(missing_ok=True)
        with self._guard:
            left = dict(self._connections)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in left.values():
            thread.join(timeout=1.0)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                if connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._follow(connection)
        except (TransportError, OSError):
            # The host's end of the connection says it; the others and the card go on.
            pass
        finally:
            with self._guard:
                del self._connections[connection]

    def _follow(self, connection: socket.socket) -> None:
        try:
            hello = wire.receive(connection, wire.HELLO, _HANDSHAKE_SECONDS)
            if hello.version != wire.VERSION:
                raise TransportError(
                    f"it speaks version {wire.VERSION} of the protocol and this side version {hello.version}: use the "
                    "same meshwright on both"
                )
            wire.send(connection, wire.Welcome(wire.VERSION, self._machine, self._transport.agents), _HANDSHAKE_SECONDS)
            last = 0
            while True:
                request = wire.receive(connection, wire.REQUEST, _FRAME_SECONDS, wait=True)
                if request.id <= last:
                    raise TransportError(f"request {request.id} came after request {last}: ids ascend")
                last = request.id
                with self._turn:
                    if _left(connection):
                        # Who asked has given up; on the next connection nothing of this one may still happen.
                        return
                    answer = self._answer(request)
                wire.send(connection, answer, _FRAME_SECONDS)
        except wire.Ended:
            return
        except TransportError as problem:
            wire.send(connection, _given_up(str(problem)), _SHORT_SECONDS)

    def _answer(self, request: wire.AnyRequest) -> wire.Reply:
        try:
            return self._done(request)
        except Exception as problem:
            # A defect of the card's side is an answer too: the host is told, and the other hosts are still served.
            answer, done = _refusal(request.id, problem), carried_out(problem)
            if done is None or not isinstance(request, wire.Submit):
                return answer
            return wire.Stopped(request.id, done, answer)

    def _done(self, request: wire.AnyRequest) -> wire.Reply:
        match request:
            case wire.Poll():
                return wire.Words(request.id, self._transport.poll(request.addresses))
            case wire.WriteWord():
                self._transport.write64(request.address, request.value)
                return wire.Done(request.id)
            case wire.ReadBlock():
                return wire.Data(request.id, self._transport.read_block(request.address, request.count))
            case wire.WriteBlock():
                self._transport.write_block(request.address, request.data)
                return wire.Done(request.id)
            case wire.Submit():
                self._transport.submit(request.writes)
                return wire.Done(request.id)
            case wire.Collect():
                return wire.Blocks(request.id, self._transport.collect(request.spans))


def _refusal(id: int, problem: Exception) -> wire.Refused | wire.Fault:
    if isinstance(problem, MachineFault):
        return wire.Fault(id, problem.report)
    if isinstance(problem, MachineError):
        return wire.Refused(id, "machine", str(problem))
    if isinstance(problem, TransportError):
        return wire.Refused(id, "transport", str(problem))
    return wire.Refused(id, "defect", f"a defect where the card is: {type(problem).__name__}: {problem}")


def _left(connection: socket.socket) -> bool:
    """Whether a host that waits for an answer has closed its end."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _given_up(message: str) -> wire.Refused:
    return wire.Refused(0, "transport", message)


def _listening(address: wire.Address) -> tuple[socket.socket, wire.Address]:
    family, where = wire.endpoint(address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(address, wire.UnixAddress):
            _remove_dead(address.path)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        if isinstance(address, wire.UnixAddress):
            # Nobody can connect before `listen`.
            Path(address.path).chmod(stat.S_IRUSR | stat.S_IWUSR)
        else:
            address = wire.TcpAddress(address.host, listener.getsockname()[1])
        listener.listen()
        listener.setblocking(False)
    except (OSError, TransportError) as problem:
        listener.close()
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise TransportError(f"can't listen at {address}: {reason}") from None
    return listener, address


def _remove_dead(path: str) -> None:
    """Remove a Unix socket that nobody listens at; `TransportError` for anything else that is there."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise TransportError("a file is there that is no socket; name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_SHORT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except OSError as problem:
            raise TransportError(f"a socket is there that can't be tried ({problem.strerror or problem})") from None
    raise TransportError("another server listens there; name another path, or end it")

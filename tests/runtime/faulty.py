"""Transports that go wrong on purpose, each one wrapped around any other, the same way every time.

An access is one word or block that is read or written; a batch has many. `when` chooses the accesses that go wrong:
`numbered(0, 5)` by a script, `at(address)` by where they are, `chance(seed, 0.01)` by a seed, and `every(a, b)` where
all of these hold. `spoiled` has the accesses that went wrong, so that a test can see that some did. Batches stay one
call of the wrapped transport, and so does everything else.

| wrapper | what goes wrong |
|---|---|
| `Drop(transport, when)` | a write is lost, and seems to have been done |
| `Stale(transport, when)` | a read answers what the same read answered before; one that is the first is true |
| `Delay(transport, when, seconds)` | a call with such an access in it is late, and else right |
| `Duplicate(transport, when)` | a write is carried out twice, one right after the other |
| `CorruptWrites(transport, when, bit)` | one bit of what is written is turned; which one, `bit` or a seed decides |
| `CorruptReads(transport, when, bit)` | one bit of what is read is turned |
| `Disconnect(transport, call, after)` | from a call on every one fails; of the first, `after` writes are done |
"""

import random
import time
from dataclasses import dataclass

from meshwright.errors import TransportError
from meshwright.runtime.transport import WORD, carried_out, check_value, stopped, view, views


@dataclass(frozen=True)
class Access:
    """One word or block; number: how many reads, or writes, came before it; size: in bytes."""

    number: int
    address: int
    size: int


def numbered(*numbers):
    """The accesses with these numbers, counted from 0."""
    return lambda access: access.number in numbers


def at(*addresses, times=None):
    """Accesses that cover one of these addresses; times: which of those, counted from 0, or all of them."""
    seen = -1

    def covers(access):
        nonlocal seen
        if not any(access.address <= address < access.address + access.size for address in addresses):
            return False
        seen += 1
        return times is None or seen in times

    return covers


def chance(seed, probability):
    """Each access with this probability; the same ones for the same seed."""
    generator = random.Random(seed)
    return lambda access: generator.random() < probability


def every(*conditions):
    """Accesses for which all of these hold, asked in this order until one doesn't."""
    return lambda access: all(condition(access) for condition in conditions)


class Through:
    """Nothing goes wrong: the others' common part. `calls`, `reads` and `writes` count what came here."""

    def __init__(self, transport, when):
        self.transport, self.when = transport, when
        self.calls = self.reads = self.writes = 0
        self.spoiled = []

    @property
    def agents(self):
        return self.transport.agents

    # What a wrapper changes: what a call costs, the writes that are made for one, and the answer of a read.

    def before(self, reads, writes):
        """Runs ahead of a call with these accesses."""

    def made(self, access, data):
        """The writes (address, bytes) that are made for one."""
        return [(access.address, data)]

    def answer(self, access, data):
        """What a read answers, where the truth is `data`."""
        return data

    def chosen(self, access):
        """Whether this access goes wrong; asked once for each."""
        if not self.when(access):
            return False
        self.spoiled.append(access)
        return True

    def read64(self, address):
        (data,) = self._read([(address, WORD)], lambda: [_bytes(self.transport.read64(address))])
        return _word(data)

    def read_block(self, address, count):
        (data,) = self._read([(address, count)], lambda: [self.transport.read_block(address, count)])
        return data

    def poll(self, addresses):
        spans = [(address, WORD) for address in addresses]
        return tuple(map(_word, self._read(spans, lambda: map(_bytes, self.transport.poll(addresses)))))

    def collect(self, spans):
        return tuple(self._read(spans, lambda: self.transport.collect(spans)))

    def write64(self, address, value):
        check_value(address, value)
        self._write([(address, _bytes(value))], lambda: self.transport.write64(address, value))

    def write_block(self, address, data):
        self._write([(address, bytes(view(address, data)))], lambda: self.transport.write_block(address, data))

    def submit(self, writes):
        self._write([(address, bytes(data)) for address, data in views(writes)], lambda: self.transport.submit(writes))

    def close(self):
        self.transport.close()

    def _read(self, spans, truth):
        accesses = [Access(number, *span) for number, span in enumerate(spans, self.reads)]
        if not accesses:
            return []
        self._count(accesses, [])
        return [self.answer(access, data) for access, data in zip(accesses, truth(), strict=True)]

    def _write(self, writes, unchanged):
        accesses = [Access(number, at, len(data)) for number, (at, data) in enumerate(writes, self.writes)]
        if not accesses:
            return
        self._count([], accesses)
        made = [
            (which, *write)
            for which, (access, (_, data)) in enumerate(zip(accesses, writes, strict=True))
            for write in self.made(access, data)
        ]
        if [write for _, *write in made] == [list(write) for write in writes]:
            unchanged()
            return
        try:
            self.transport.submit([(at, data) for _, at, data in made])
        except Exception as problem:
            # Of whatever kind it is: the count becomes that of the writes that were asked for.
            if (done := carried_out(problem)) is not None and done < len(made):
                stopped(problem, made[done][0], len(writes))
            raise

    def _count(self, reads, writes):
        self.before(reads, writes)
        self.calls += 1
        self.reads += len(reads)
        self.writes += len(writes)


class Drop(Through):
    """Writes that are lost, and seem to have been done."""

    def made(self, access, data):
        return [] if self.chosen(access) else super().made(access, data)


class Stale(Through):
    """Reads that answer what the same read (address and size) answered before; the first of them is true."""

    def __init__(self, transport, when):
        super().__init__(transport, when)
        self._before = {}

    def answer(self, access, data):
        key = (access.address, access.size)
        if key in self._before and self.chosen(access):
            return self._before[key]
        self._before[key] = data
        return data


class Delay(Through):
    """Calls that are late by `seconds`, once for each that has a chosen access in it, read or written."""

    def __init__(self, transport, when, seconds):
        super().__init__(transport, when)
        self.seconds = seconds

    def before(self, reads, writes):
        if [access for access in (*reads, *writes) if self.chosen(access)]:
            time.sleep(self.seconds)


class Duplicate(Through):
    """Writes that are carried out twice, one right after the other: a kick, for instance."""

    def made(self, access, data):
        return super().made(access, data) * (2 if self.chosen(access) else 1)


class _Corrupt(Through):
    def __init__(self, transport, when, bit=None, seed=0):
        super().__init__(transport, when)
        self._bit, self._generator = bit, random.Random(seed)

    def turned(self, data):
        bit = self._generator.randrange(8 * len(data)) if self._bit is None else self._bit
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        return bytes(turned)


class CorruptWrites(_Corrupt):
    """Writes with one bit turned, the least significant of the first byte being 0; None: one that the seed picks."""

    def made(self, access, data):
        return super().made(access, self.turned(data) if self.chosen(access) else data)


class CorruptReads(_Corrupt):
    """Reads with one bit of the answer turned, as for `CorruptWrites`."""

    def answer(self, access, data):
        return self.turned(data) if self.chosen(access) else data


class Disconnect(Through):
    """From call number `call` (from 0) on every call is a `TransportError`; of the first, `after` writes are done.

    Reads of that call, and everything later, never get to the other transport. Nothing says how much was done.
    """

    def __init__(self, transport, call, after=0):
        super().__init__(transport, lambda access: False)
        self.call, self.after = call, after

    def before(self, reads, writes):
        if self.calls > self.call:
            raise TransportError(f"the connection was lost at call {self.call}")

    def _read(self, spans, truth):
        if spans and self.calls == self.call:
            self._count([], [])
            self._lose()
        return super()._read(spans, truth)

    def _write(self, writes, unchanged):
        if writes and self.calls == self.call:
            self._count([], [])
            self.transport.submit(writes[: self.after])
            self._lose()
        super()._write(writes, unchanged)

    def _lose(self):
        raise TransportError(f"the connection was lost at call {self.call}")


def _bytes(value):
    return value.to_bytes(WORD, "little")


def _word(data):
    return int.from_bytes(data, "little")

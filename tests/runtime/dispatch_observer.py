"""Reads what a dispatcher did to a card out of the calls that it made, and holds it against the card's procedure."""

from collections import Counter, defaultdict

import numpy as np
from tests.runtime.dispatch_rig import CARD, site

from meshwright.runtime.jobs import HostJob, UnitJob
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Drain, Flit, decode_cluster, decode_payload

BLOCK = 0x1000
"""Bytes of memory of mesh 0 that each host job has: it reads and writes there."""


def number_of(word):
    """Which job a word belongs to, as `tests.runtime.test_dispatch_orders` writes it there: IMEM, GEMM and DRAIN."""
    if word >> 252 == 1:
        return decode_payload(word).addr
    word = decode_cluster(word)
    return word.addr // 2 if isinstance(word, Drain) else word.gm


class Mesh:
    def __init__(self):
        self.slots, self.latched = {}, {}
        self.busy, self.kicks, self.credit, self.idle = set(), 0, None, True


class Observer:
    """Fails, at the call that is wrong, where a log breaks a rule; knows nothing of how the dispatcher decides."""

    def __init__(self, jobs, machine, recorder):
        self.jobs, self.machine, self.recorder = jobs, machine, recorder
        self.meshes = {mesh: Mesh() for mesh in machine.mesh_ids}
        self.base, self.seen, self.expected = {}, {}, Counter()
        self.waits = defaultdict(list)
        self.sent, self.flying, self.complete = Counter(), Counter(), set()
        self.most_slots = 0
        for call in recorder.log:
            getattr(self, call[0])(*call[1:])

    def begins(self, at):
        missing = [before for before in self.jobs[at].after if not self.is_complete(before)]
        assert not missing, f"job {at} was sent before jobs {missing} were seen complete"

    def is_complete(self, at):
        job = self.jobs[at]
        if isinstance(job, UnitJob) and not len(job.program):
            return all(map(self.is_complete, job.after))
        return at in self.complete

    # Writes

    def submit(self, writes, _):
        written = set()
        for address, data in writes:
            place = self.recorder.placed(address)
            if place is None:
                at = (address & (1 << 40) - 1) // BLOCK
                self.begins(at)
                written.add(at)
            elif place[1] >= reg.STAGE:
                self.stage(*place, data)
            else:
                self.register(*place, int.from_bytes(data, "little"))
        self.complete |= written

    def stage(self, mesh, offset, data):
        state = self.meshes[mesh]
        assert not state.busy, f"mesh {mesh} is staged while {state.busy} are not through"
        assert (offset - reg.STAGE) % 40 == 0
        first = (offset - reg.STAGE) // 40
        slots = np.frombuffer(data, np.uint64).reshape(-1, 5)
        assert first + len(slots) <= self.machine.dispatch.staged_words
        self.most_slots = max(self.most_slots, len(slots))
        state.slots = {first + at: Flit.from_staged(slot.tolist()) for at, slot in enumerate(slots)}
        for flit in state.slots.values():
            self.begins(number_of(flit.payload))
        assert state.credit is not None, "credits come first, once a round"
        state.kicks, state.idle = 0, True

    def register(self, mesh, offset, value):
        state = self.meshes[mesh]
        if offset == reg.PROG_CRED:
            assert not state.busy, "credits are set in the middle of a round"
            state.credit = value
        elif offset == reg.PROG_KICK:
            self.kick(mesh, state)
        else:
            assert offset in (reg.PROG_DST, reg.PROG_BASE, reg.PROG_LEN)
            state.latched[offset] = value

    def kick(self, mesh, state):
        assert state.idle, "a kick without having seen the dispatcher at rest"
        state.idle = False
        state.kicks += 1
        where = site(mesh, *reg.place_of(state.latched[reg.PROG_DST]))
        first, count = state.latched[reg.PROG_BASE], state.latched[reg.PROG_LEN]
        assert count > 0
        assert where not in state.busy, "two kicks of one unit in a round"
        assert state.kicks < state.credit <= self.machine.dispatch.instruction_fifo
        flits = [state.slots[slot] for slot in range(first, first + count)]
        assert [flit.last for flit in flits] == [0] * (count - 1) + [1]
        state.busy.add(where)
        for flit in flits:
            self.word(where, number_of(flit.payload), flit.payload)

    def word(self, where, at, payload):
        job = self.jobs[at]
        assert job.site == where
        assert payload == job.program.encode()[self.sent[at]], "words out of order"
        self.sent[at] += 1
        self.await_at(where, at, 1)
        word = None if job.program.unit == "VC" else decode_cluster(payload)
        if isinstance(word, Drain) and word.dnode:
            mesh = word.dmesh if word.dfin else where.chip
            place = (word.dfin & 15, word.dfin >> 4) if word.dfin else (word.dst_x, word.dst_y)
            self.await_at(site(mesh, *place), at, -(-word.n // 4))

    def await_at(self, where, at, signals):
        self.expected[where] += signals
        self.waits[where].append(at)
        self.flying[at] += 1

    # Reads

    def poll(self, addresses, values):
        for address, value in zip(addresses, values, strict=True):
            mesh, offset = self.recorder.placed(address)
            if offset == reg.PROG_STAT:
                self.meshes[mesh].idle |= not value & 1
            else:
                assert offset in reg.NODE_STATUS
                self.count(site(mesh, *reg.place_of((offset - reg.NODE_STATUS.start) // 8)), value >> 8 & 0xFFFF)

    def count(self, where, count):
        base = self.base.setdefault(where, count)
        assert (count - base) % 65536 <= self.expected[where]
        if (count - base) % 65536 == self.expected[where]:
            for at in self.waits.pop(where, ()):
                self.flying[at] -= 1
                if not self.flying[at] and self.sent[at] == len(self.jobs[at].program):
                    self.complete.add(at)
            self.meshes[where.chip].busy.discard(where)

    def collect(self, spans, _):
        for address, _count in spans:
            assert self.recorder.placed(address) is None
            self.begins((address & (1 << 40) - 1) // BLOCK)

    def check_end(self):
        """Everything was sent, and seen complete."""
        for at, job in enumerate(self.jobs):
            if isinstance(job, HostJob):
                assert at in self.complete
            elif len(job.program):
                assert at in self.complete
                assert self.sent[at] == len(job.program)


def block(at):
    return CARD.host_addr(0, at * BLOCK)

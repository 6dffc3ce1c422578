"""A cluster's queue executed as a whole and one by one: the same bits, completions, memory, and reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.programs import CARD, Host, Product, words
from tests.simulator.test_cluster_faults import FAULTS

from meshwright.numerics import backend
from meshwright.numerics.backend import available
from meshwright.simulator import Card, batch
from meshwright.simulator.arithmetic import Kernels
from meshwright.simulator.cluster import Cluster
from meshwright.simulator.operands import Segment
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

AT, OTHER = (1, 1), (2, 2)
AHEAD = Cluster.execute_ahead
needs_planner = pytest.mark.skipif(batch._module() is None, reason="the planner isn't compiled here")
INPUTS = 8192
"""Bytes from 0 on that the host writes."""


class Ways:
    """Runs the same thing on a card that looks ahead and on one that doesn't, and compares all that there is."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.counts = []

    def _looking(self, ahead):
        def execute_ahead(cluster):
            done = AHEAD(cluster) if ahead else None
            if done is not None:
                self.counts.append(done.count)
            return done

        self.monkeypatch.setattr(Cluster, "execute_ahead", execute_ahead)

    def same(self, run, worth=1):
        """The card that looked ahead. run: takes a fresh card and gives what it saw."""
        found = []
        self.monkeypatch.setattr(batch, "WORTH", worth)
        self.counts.clear()
        for ahead in (True, False):
            self._looking(ahead)
            card = loaded()
            found.append((run(card), state(card)))
            if ahead:
                first = card
        (seen, after), (seen_singly, after_singly) = found
        assert seen == seen_singly
        for key, value in after.items():
            assert value == after_singly[key], key
        assert after.keys() == after_singly.keys()
        return first


@pytest.fixture
def ways(monkeypatch):
    return Ways(monkeypatch)


def loaded():
    card = Card(CARD, capture=True, threads=1)
    data = np.random.default_rng(0).standard_normal(INPUTS // 2).astype(np.float16)
    card.write_block(CARD.host_addr(0, 0), data.tobytes())
    return card


def named(event):
    return None if event is None else (event.unit, event.index, event.seen)


def entries(bank):
    """What each entry of a bank holds."""
    found = [None] * bank.entries
    for start, stop, segment, index in bank.extents:
        for at in range(start, stop):
            inside = index + at - start
            found[at] = segment.q[inside].tobytes(), segment.scale[inside].tobytes()
    return found


def cluster_state(unit):
    return {
        "counts": (unit.started, unit.retired, unit.stopped, unit.waiting, len(unit.queue)),
        "l1": [entries(bank) for side in unit._banks for bank in side],
        "codes": unit.accumulator.codes().tobytes(),
        "opened": unit.accumulator.opened,
        "busy": unit._read_now,
        "uses": [named(guarded._own) for guarded in (unit._tiles, unit._l1)],
        "arrivals": [{key: named(event) for key, event in g._arrivals.items()} for g in (unit._tiles, unit._l1)],
    }


def memory_state(dram):
    pages = {
        number: (
            page.newest,
            page.data.tobytes(),
            page.written.tobytes(),
            page.stamp.tobytes(),
            # Of the reads of one run of bytes that the host sees together only the first is ever named.
            list(dict.fromkeys((start, stop, e.unit, e.seen) for start, stop, e in page.reads)),
        )
        for number, page in dram._pages.items()
    }
    return pages, dram.stamp, dram.first_unseen, {stamp: named(event) for stamp, event in dram._unseen.items()}


def state(card):
    found = {"reports": card.reports}
    for number in CARD.mesh_ids:
        mesh = card.mesh(number)
        found[number, "memory"] = memory_state(mesh.dram)
        found[number, "credit"] = mesh.agent.dispatcher.credit
        found[number, "mirror"] = (
            {at: (node.code, node.arg, node.count) for at, node in mesh.agent.mirror._nodes.items()},
            mesh.agent.mirror._all,
        )
        for at, unit in mesh.units.items():
            if isinstance(unit, Cluster):
                found[number, at] = cluster_state(unit)
    return found


def tile(at, *, rows=2, columns=2, blocks=2, out=0x80000, count=None):
    """A tile of its own entries: fills into the banks in turn, a sweep, a drain."""
    bank = at % 2
    return (
        Fill(addr=at % 8 * 1024, n=rows * blocks, sel=0, fbank=bank),
        Fill(addr=at % 5 * 1024 + 256, n=columns * blocks, sel=1, fbank=bank),
        Gemm(gm=rows, gn=columns, nk=blocks, abank=bank, bbank=bank),
        Drain(addr=out + at * 512, n=count or rows * columns),
    )


LONG = [step for at in range(12) for step in tile(at)]
AFTER = [step for at in range(12, 20) for step in tile(at)]


@needs_planner
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_in_the_middle_of_a_long_batch(name, ways):
    """The prefix is done, the fault reported with its own index, and nothing behind it happens."""
    program, error, problem = FAULTS[name]
    fresh = problem.startswith(("entry 0 of L1", "entry 4 of L1", "a drain reads", "a sweep continues"))

    def run(card):
        # Faults of an empty cluster can't come after other tiles: they come behind fills of banks that they don't use.
        before = [Fill(addr=0, n=2, sel=at % 2, fbank=at % 2, eoff=200) for at in range(40)] if fresh else LONG
        card.submit(0, AT, words(*before, *program, *AFTER))
        card.run_until_idle()
        return len(before)

    card = ways.same(run)
    found = card.reports[0]
    assert problem in found.problem
    assert found.kind is error.kind
    assert sum(ways.counts) >= 40
    if found.index is not None and found.at == AT:
        assert found.index == (40 if fresh else len(LONG)) + len(program) - 1


MORE = {
    "an opcode that is none": [4 << 252],
    "reserved bits": [1 << 252 | 1],
    "more than 256 bits": [1 << 256],
    "a fill that waits for ever": words(Fill(addr=0, n=0)),
    "another fill that does": words(Fill(addr=0, n=256)),
    "a fill under a sweep": words(*tile(0)[:3], Fill(addr=0, n=1, sel=1, eoff=3)),
    "a drain that is read again": words(Fill(addr=0x80000 + 512, n=1, sel=0)),
    "the end of a short drain that is read again": words(*tile(1, out=0xA0000, count=3), Fill(addr=0xA0260, n=1)),
    "unwritten memory": words(Fill(addr=0xC0000, n=1)),
    "memory that a later drain writes": words(Fill(addr=0x80000 + 18 * 512, n=1)),
    "entries that are none": words(Fill(addr=4096, n=1, preq=1)),
    "a sweep over an entry that nobody filled": words(Gemm(gm=2, gn=2, nk=2, aoff=100)),
    "a sweep past the bank": words(Gemm(gm=2, gn=2, nk=2, aoff=254)),
    "a sweep of too many tiles": words(Fill(addr=0, n=33, sel=0), Fill(addr=0, n=33, sel=1), Gemm(gm=33, gn=33, nk=1)),
    "a sweep that continues too much": words(Gemm(gm=2, gn=4, nk=1, acc=1)),
    "a drain of too much": words(Drain(addr=0xB0000, n=9)),
    "a drain past the accumulator": words(Drain(addr=0xB0000, n=513)),
    "a drain to nowhere": words(Drain(addr=(1 << 32) - 256, n=4), Drain(addr=1 << 32, n=4)),
    "a drain to another mesh without one": words(Drain(addr=1 << 38, n=4)),
    "a drain across": words(Drain(addr=1 << 36, n=4)),
    "a drain over inputs": words(Drain(addr=0, n=4), Fill(addr=0, n=1, sel=0, fbank=1, eoff=128)),
    "another anchor": words(Gemm(gm=2, gn=2, nk=2, anchor=41), Drain(addr=0xB0000, n=4)),
    "a sum that goes on behind its drain": words(
        *tile(1, out=0xA0000), Gemm(gm=2, gn=2, nk=2, abank=1, bbank=1, acc=1), Drain(addr=0xA2000, n=4)
    ),
    "a drain of what two grids left": words(
        *tile(0, rows=4, columns=4, blocks=1)[:3], *tile(1)[:3], Drain(addr=0xB0000, n=16)
    ),
}


@needs_planner
@pytest.mark.parametrize("name", MORE)
def test_each_word_that_is_for_the_cluster_itself_in_the_middle_of_a_long_batch(name, ways):
    def run(card):
        card.submit(0, AT, [*words(*LONG), *MORE[name], *words(*AFTER)])
        card.run_until_idle()

    ways.same(run)
    assert sum(ways.counts) >= len(LONG)


@needs_planner
def test_races_with_another_unit_in_the_middle_of_a_long_batch(ways):
    """Another unit has written what a fill reads, has written what a drain writes, has read what one writes."""
    inputs = tile(1, out=0x4000)
    for there, here in (
        (inputs, Fill(addr=0x4200, n=1, sel=0)),
        (inputs, Drain(addr=0x4200, n=4)),
        ((Fill(addr=0x1000, n=3, sel=0),), Drain(addr=0x1200, n=2)),
    ):

        def run(card, there=there, here=here):
            card.submit(0, (1, 1), words(*there))
            card.step()
            card.submit(0, OTHER, words(*LONG, here, *AFTER))
            card.run_until_idle()

        card = ways.same(run)
        assert [report.index for report in card.reports[:1]] == [len(LONG)]
        assert "the host had not seen that complete" in card.reports[0].problem


@needs_planner
@pytest.mark.parametrize("buffer", [0, 1, 2])
def test_what_arrives_unseen_races_with_a_batch(ways, buffer):
    """Whatever of a batch uses what another unit's burst changes; nothing before it is lost."""

    def run(card):
        # Four granules are an entry: of zeros, which a sweep could read.
        card.write_block(CARD.host_addr(0, 0x40000), bytes(4096))
        for at in (AT, OTHER):
            fills = [Fill(addr=0x40000, n=2, sel=side, fbank=1) for side in range(2)]
            zeros = (*fills, Gemm(gm=2, gn=2, abank=1, bbank=1))
            card.submit(0, at, words(*zeros))
        card.run_until_idle()
        burst = Drain(n=4, dnode=1, dst_x=OTHER[0], dst_y=OTHER[1], dbuf=buffer, addr=400 if buffer < 2 else 0)
        card.submit(0, AT, words(burst))
        card.step()
        card.submit(0, OTHER, words(*LONG))
        card.run_until_idle()

    card = ways.same(run)
    assert "the host had not seen that complete" in card.reports[0].problem
    assert card.reports[0].index == (5 if buffer == 2 else 3)


@needs_planner
def test_the_host_races_with_every_instruction_of_a_batch(ways):
    """What a batch has read and written is known by instruction until the host has seen it."""

    def run(card):
        host = Host(card, 0)
        seen = []
        for round_ in range(2):
            host.write(0x60, 128)
            for slot, word in enumerate(words(*LONG)):
                host.stage(slot, word, last=slot == len(LONG) - 1)
            host.kick(AT, 0, len(LONG))
            for address in (0, 768, 1024, 4096 + 64, 0x80000, 0x80000 + 11 * 512, 0x80000 + 5 * 512):
                card.write_block(CARD.host_addr(0, address), bytes(64))
                seen.append(card.read_block(CARD.host_addr(0, address), 64))
            seen.append((round_, host.count(AT), host.read(0x60)))
        card.write_block(CARD.host_addr(0, 0), bytes(64))
        return seen

    card = ways.same(run)
    assert ways.counts == [48, 48]
    assert len({report.problem for report in card.reports}) > 10


@needs_planner
@pytest.mark.parametrize("credit", [3, 32, 128])
def test_a_product_dispatched_in_rounds(ways, credit):
    """Rounds of 128 words cut tiles anywhere, and credits cut them again."""
    a, b = np.random.default_rng(3).standard_normal((2, 96, 320)).astype(np.float16).view(np.uint16)
    product = Product(a, b, 6, 4, 2, base=1 << 20)

    def run(card):
        product.load(card)
        Host(card, 0).run(AT, words(*product.program()), credit=credit)
        return product.result(card, 96, 96).tobytes()

    ways.same(run)
    assert sum(ways.counts) == len(product.program())
    assert max(ways.counts) == credit


@needs_planner
def test_a_program_of_few_tiles_of_its_own_is_executed_whole(ways):
    """All that a product does is for the planner: nothing is left to be executed by itself."""

    def run(card):
        card.submit(0, AT, words(*LONG))
        card.run_until_idle()

    ways.same(run, worth=batch.WORTH)
    assert ways.counts == [len(LONG)]


@needs_planner
def test_another_class_of_cluster_is_asked_for_every_word():
    class Watched(Cluster):
        words = 0

        def execute(self, queued, event):
            Watched.words += 1
            return super().execute(queued, event)

    def factory(setting):
        return Watched(setting, operands)

    operands = loaded().mesh(0).units[AT].accumulator._operands
    card = Card(CARD, units={"MG": factory})
    card.write_block(CARD.host_addr(0, 0), np.ones(INPUTS // 2, np.float16).tobytes())
    card.submit(0, AT, words(*LONG))
    card.run_until_idle()
    assert Watched.words == len(LONG)


@st.composite
def steps(draw):
    """Any instruction, right or wrong, over so few places that they meet."""
    kind = draw(st.sampled_from(["fill", "gemm", "drain", "fill", "gemm", "drain", "far"]))
    few = st.integers(0, 5)
    if kind == "fill":
        source = draw(st.sampled_from([*[0, 512, 1024, 2048] * 4, 0x8000, 0x8100, 0x1F00, 0x20000]))
        return Fill(
            addr=source,
            n=draw(st.integers(1, 8)),
            sel=draw(st.integers(0, 1)),
            fbank=draw(st.integers(0, 1)),
            eoff=draw(few) * 4,
        )
    if kind == "gemm":
        return Gemm(
            gm=draw(st.integers(1, 3)),
            gn=draw(st.integers(1, 3)),
            nk=draw(st.integers(1, 2)),
            acc=draw(st.integers(0, 1)),
            abank=draw(st.integers(0, 1)),
            bbank=draw(st.integers(0, 1)),
            aoff=draw(few) * 4,
            boff=draw(few) * 4,
        )
    if kind == "drain":
        return Drain(addr=draw(st.sampled_from([0x8000, 0x8100, 0x8200, 0x20000, 0x30000])), n=draw(st.integers(1, 9)))
    return Drain(n=draw(st.integers(1, 4)), dnode=1, dst_x=2, dst_y=2, dbuf=2, dflags=1, dack_y=1, addr=draw(few) * 2)


FILLED = [Fill(addr=256 * (side + bank), n=32, sel=side, fbank=bank) for side in range(2) for bank in range(2)]


@needs_planner
@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(steps(), min_size=1, max_size=14), min_size=1, max_size=5), st.data())
def test_any_programs_of_two_clusters_end_alike(programs, data):
    """Units take turns; the host looks at some of them in between, reads and writes, and is told the same."""
    places = [data.draw(st.sampled_from([AT, OTHER])) for _ in programs]
    looks = [data.draw(st.sampled_from([None, AT, OTHER, 0x8000, 0])) for _ in programs]

    def run(card):
        host = Host(card, 0)
        seen = []
        for at in (AT, OTHER):
            card.submit(0, at, words(*FILLED, Gemm(gm=3, gn=3, nk=2)))
        card.run_until_idle()
        for program, at, look in zip(programs, places, looks, strict=True):
            card.submit(0, at, words(*program))
            card.step()
            if isinstance(look, tuple):
                seen.append(host.count(look))
            elif look is not None:
                seen.append(card.read_block(CARD.host_addr(0, look), 256))
                card.write_block(CARD.host_addr(0, look), bytes(32))
        card.run_until_idle()
        return seen

    with pytest.MonkeyPatch.context() as monkeypatch:
        Ways(monkeypatch).same(run)


@needs_planner
def test_the_planner_refuses_arrays_that_would_lead_it_outside_of_them():
    module, (fields, reserved) = batch._module(), batch._layout()
    figures = (512, 256, 255, 40, 0, 36, 2, 1 << 32)
    data = b"".join(word.to_bytes(32, "little") for word in words(*LONG))
    program = np.frombuffer(data, np.uint64).reshape(-1, 4)
    found = module.decode(program, fields, reserved, figures)
    assert found.count == len(LONG)
    assert len(found.fills) == len({(w.addr, w.n) for w in LONG if isinstance(w, Fill)})
    with pytest.raises(ValueError, match=r"words must be \[n, 4\]"):
        module.decode(program.reshape(-1, 2), fields, reserved, figures)
    with pytest.raises(ValueError, match=r"fields must be \[fields, 4\]"):
        module.decode(program, fields[:-1], reserved, figures)
    with pytest.raises(ValueError, match="a field is outside its word"):
        module.decode(program, fields + 250, reserved, figures)
    with pytest.raises(ValueError, match="a fill is of 256 entries at most"):
        module.decode(program, fields, reserved, (512, 256, 257, *figures[3:]))
    l1 = np.full((4, 256), -1, np.int32)
    state = [0] * 8, 0, [], None, None
    slots = [0] * len(found.fills)
    assert found.plan(len(LONG), slots, l1, *state)[0] == len(LONG)
    with pytest.raises(ValueError, match=r"l1 must be \[sides \* banks, entries\]"):
        found.plan(len(LONG), slots, l1[:, :255].copy(), *state)
    with pytest.raises(ValueError, match="each fill needs a slot"):
        found.plan(len(LONG), slots[1:], l1, *state)
    with pytest.raises(ValueError, match="a slot is outside the names of entries"):
        found.plan(len(LONG), [-1, *slots[1:]], l1, *state)
    with pytest.raises(ValueError, match="the last layer's operands must be"):
        found.plan(len(LONG), slots, l1, [0] * 8, 4, [(2, 2, 1, True, False)], None, None)


# The kernel of a batch's products


def segments_of(rng, counts):
    return [
        Segment(at, rng.integers(-63, 64, (n, 4, 32), dtype=np.int8), rng.integers(0, 256, (n, 4), dtype=np.uint8))
        for at, n in enumerate(counts)
    ]


@pytest.mark.parametrize("name", available()[1:])
@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_products_of_entries_have_the_bits_of_the_twin(name, threads, data):
    """Every A with every B, in any order, is one product; anything else is as many as there are pairs."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    segments = segments_of(rng, [3, 255, 7])
    names = np.array([slot << 8 | at for slot, s in enumerate(segments) for at in range(len(s.q))], np.int32)
    lefts, rights = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    gm, gn, blocks = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 35))
    a, b = rng.choice(names, (lefts, gm, blocks)), rng.choice(names, (rights, gn, blocks))
    pairs = rng.permutation(np.stack(np.divmod(np.arange(lefts * rights), rights)).T)
    if data.draw(st.booleans()):
        pairs = rng.integers(0, (lefts, rights), (data.draw(st.integers(1, 5)), 2))
    index = tuple(np.ascontiguousarray(column, dtype=np.int64) for column in pairs.T)
    with backend.using("numpy"):
        wanted = Kernels().tiles(segments, a, b, index)
    with backend.using(name):
        found = Kernels(threads).tiles(segments, a, b, index)
    assert np.array_equal(found, wanted)


@pytest.mark.skipif(len(available()) == 1, reason="no kernel is compiled here")
def test_the_kernel_refuses_entries_that_are_none():
    segments = segments_of(np.random.default_rng(0), [3])
    one, pair = np.zeros((1, 1, 1), np.int32), (np.zeros(1, np.int64), np.zeros(1, np.int64))
    for wrong in (-1, 3, 1 << 8):
        with pytest.raises(ValueError, match="an entry is of no segment"):
            Kernels(1).tiles(segments, one, np.full((1, 1, 1), wrong, np.int32), pair)
    with pytest.raises(ValueError, match="a batch index is outside its operand"):
        Kernels(1).tiles(segments, one, one, (np.ones(1, np.int64), np.zeros(1, np.int64)))
    with pytest.raises(ValueError, match="both operands need the same K"):
        Kernels(1).tiles(segments, one, np.zeros((1, 1, 2), np.int32), pair)


def test_without_compiled_kernels_every_word_is_executed_by_itself(ways):
    with backend.using("numpy"):

        def run(card):
            card.submit(0, AT, words(*LONG))
            card.run_until_idle()

        card = ways.same(run)
    assert ways.counts == []
    assert card.mesh(0).units[AT].retired == len(LONG)

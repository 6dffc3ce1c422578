"""DRAM of a mesh, and L1 as runs of entries of segments: against plain arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.programs import CARD, drained, words

from meshwright.numerics import mxfp7, product
from meshwright.simulator import Card
from meshwright.simulator.decode import decode
from meshwright.simulator.faults import Kind, Trouble
from meshwright.simulator.memory import PAGE, Dram
from meshwright.simulator.operands import Bank, Operands, Segment
from meshwright.simulator.ordering import Event, Issue
from meshwright.simulator.unit import UnitData
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm, decode_cluster

WORDS = st.tuples(st.integers(0, 40), st.integers(1, 12))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WORDS, st.booleans()), max_size=12), WORDS)
def test_dram_is_bytes_that_were_written_across_pages(writes, read):
    """Runs around the border of two pages, in words of 8 bytes; some are spoiled afterwards."""
    start = PAGE - 160
    dram = Dram(0, 2 * PAGE)
    model, known = np.zeros(512, np.uint8), np.zeros(512, bool)
    for number, ((first, count), spoiled) in enumerate(writes):
        where = slice(8 * first, 8 * (first + count))
        data = np.full(8 * count, number + 1, np.uint8)
        if spoiled:
            dram.spoil(start + 8 * first, 8 * count, Event("unit", 0))
        else:
            dram.write(start + 8 * first, data)
            model[where] = data
        known[where] = not spoiled
    where = slice(8 * read[0], 8 * (read[0] + read[1]))
    if known[where].all():
        assert np.array_equal(dram.read(start + where.start, where.stop - where.start), model[where])
        return
    unknown = where.start + int(np.argmin(known[where]))
    with pytest.raises(Trouble, match=f"local address {start + unknown:#x} "):
        dram.read(start + where.start, where.stop - where.start)


def test_bytes_that_are_not_populated():
    dram = Dram(1, 1 << 20)
    for call in (lambda: dram.read((1 << 20) - 8, 16), lambda: dram.write(1 << 20, np.zeros(8, np.uint8))):
        with pytest.raises(Trouble, match="mesh 1 has bytes up to 0x100000"):
            call()


def test_a_write_is_in_order_once_the_host_has_seen_it():
    dram = Dram(0, PAGE)
    event = Event("MG (1, 1) of mesh 0", 4)
    dram.write(0, np.zeros(64, np.uint8), event)
    dram.ordered(64, 64, Issue(1), "it reads")
    with pytest.raises(
        Trouble, match=r"it reads 8 bytes from local address 0x38 on, which instruction 4 of MG \(1, 1\)"
    ):
        dram.ordered(56, 8, Issue(1), "it reads")
    dram.ordered(0, 64, Issue(1), "it writes", "MG (1, 1) of mesh 0")
    event.seen = 5
    with pytest.raises(Trouble):
        dram.ordered(0, 8, Issue(4), "it reads")
    dram.ordered(0, 8, Issue(6), "it reads")
    dram.ordered(0, 8, None, "the host reads")
    dram.forget_seen()
    dram.ordered(0, 8, Issue(4), "it reads")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 31), st.integers(1, 12)), max_size=10),
    st.integers(0, 31),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_a_bank_holds_what_was_filled_last(fills, first, groups, blocks):
    bank, model = Bank("L1 A, bank 0", 40), np.full((40, 4, 32), -1, np.int8)
    for number, (start, wanted) in enumerate(fills):
        count = min(wanted, 40 - start)
        q = np.random.default_rng(number).integers(0, 64, (count, 4, 32)).astype(np.int8)
        bank.fill(start, Segment(number, q, np.zeros((count, 4), np.uint8)))
        model[start : start + count] = q
    wanted = model[first : first + groups * blocks]
    if len(wanted) < groups * blocks or wanted.min() < 0:
        with pytest.raises(Trouble):
            bank.part(first, groups, blocks)
        return
    operand = Operands().of([bank.part(first, groups, blocks)])
    assert np.array_equal(
        operand.q, wanted.reshape(groups, blocks, 4, 32).transpose(0, 2, 1, 3).reshape(groups * 4, blocks * 32)
    )


def test_operands_are_kept_up_to_a_limit():
    operands, bank = Operands(limit=2 * 4 * 32), Bank("L1 A, bank 0", 8)
    bank.fill(0, Segment(0, np.zeros((8, 4, 32), np.int8), np.zeros((8, 4), np.uint8)))
    first = operands.of([bank.part(0, 1, 1)])
    assert operands.of([bank.part(0, 1, 1)]) is first
    for entry in (1, 2):
        operands.of([bank.part(entry, 1, 1)])
    assert operands.of([bank.part(0, 1, 1)]) is not first


def test_entries_that_come_in_by_bursts_are_operands():
    """Packed words, four granules an entry, bank 1 behind bank 0."""
    random = np.random.default_rng(1)
    a, b = random.standard_normal((2, 8, 64)).astype(np.float16)
    card, at = Card(CARD), (1, 1)
    for buffer, bank, x in ((0, 0, a), (1, 1, b)):
        packed = mxfp7.pack_words(mxfp7.quantise(x)).reshape(-1, 32)
        offset = 4 * 256 * bank
        for start in range(0, len(packed), 8):
            card.mesh(0).send(
                UnitData(
                    source=(0, (1, 2)),
                    mesh=0,
                    dst=at,
                    data=packed[start : start + 8],
                    issue=Issue(0),
                    buffer=buffer,
                    offset=offset + start,
                )
            )
    card.run_until_idle()
    card.submit(0, at, words(Gemm(gm=2, gn=2, nk=2, bbank=1), Drain(addr=0, n=4)))
    card.run_until_idle()
    found = drained(card.read_block(CARD.host_addr(0, 0), 128), (1, 1), 2, 2)
    assert np.array_equal(found, product.matmul_fp16(a, b).view(np.uint16))


FIELDS = {"addr": 40, "n": 16, "gm": 8, "nk": 8, "anchor": 8, "eoff": 8, "boff": 8, "dbuf": 8, "dack_x": 4, "dfin": 8}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([Fill, Gemm, Drain]), st.data())
def test_the_fields_that_the_simulator_takes_are_those_of_the_word(kind, data):
    values = {name: data.draw(st.integers(0, (1 << bits) - 1)) for name, bits in FIELDS.items()}
    (word,) = kind(**values).words()
    decoded = decode_cluster(word)
    found = dict(decode(word))
    assert found.pop("op") == word >> 252
    assert set(kind.uses) <= set(found)
    assert found == {name: getattr(decoded, name) for name in found}


def test_trouble_has_a_kind():
    with pytest.raises(Trouble) as caught:
        decode(0)
    assert caught.value.kind is Kind.UNDEFINED

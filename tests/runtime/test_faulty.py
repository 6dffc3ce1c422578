"""The wrappers for trials of faults: each does its one fault where it was asked to, and nothing else."""

import time

import pytest
from tests.runtime.faulty import (
    Access,
    CorruptReads,
    CorruptWrites,
    Delay,
    Disconnect,
    Drop,
    Duplicate,
    Stale,
    Through,
    at,
    chance,
    every,
    numbered,
)
from tests.runtime.transport_rig import Plain, product_is_right
from tests.simulator.programs import CARD

from meshwright.errors import TransportError
from meshwright.runtime.transport import AgentWindow, Delayed, InProcess, carried_out
from meshwright.simulator import Card


def never(access):
    return False


def word(value):
    return value.to_bytes(8, "little")


@pytest.fixture
def plain():
    return Plain()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: Through(t, never),
        lambda t: Drop(t, never),
        lambda t: Stale(t, never),
        lambda t: Delay(t, never, 60),
        lambda t: Duplicate(t, never),
        lambda t: CorruptWrites(t, never),
        lambda t: CorruptReads(t, never),
        lambda t: Disconnect(t, 1000),
    ],
    ids=["none", "drop", "stale", "delay", "duplicate", "corrupt writes", "corrupt reads", "disconnect"],
)
def test_without_a_fault_all_is_as_it_would_be(wrap, plain):
    """The same calls of the card, at the same price, with the same answers; and a product with the right bits."""
    late = Delayed(plain, 0.0)
    faulty = wrap(late)
    assert faulty.agents == AgentWindow()
    faulty.write64(0, 5)
    faulty.write_block(8, word(6) + word(7))
    faulty.submit([(24, word(8)), (32, word(9)), (24, word(10))])
    assert faulty.read64(0) == 5
    assert faulty.read_block(8, 16) == word(6) + word(7)
    assert faulty.poll([24, 32, 24]) == (10, 9, 10)
    assert faulty.collect([(0, 16), (32, 8)]) == (word(5) + word(6), word(9))
    assert (faulty.poll([]), faulty.collect([]), faulty.submit([])) == ((), (), None)
    assert plain.writes == [(0, 5), (8, 6), (16, 7), (24, 8), (32, 9), (24, 10)]
    assert (late.calls, faulty.calls, faulty.writes, faulty.reads) == (7, 7, 5, 7)
    assert faulty.spoiled == []
    with pytest.raises(TransportError, match="write of 4 bytes at 0x8"):
        faulty.submit([(0, word(1)), (8, bytes(4))])
    assert product_is_right(wrap(InProcess(Card(CARD))))


def test_which_accesses_are_chosen():
    accesses = [Access(number, 8 * number, 16) for number in range(200)]
    assert [access.number for access in filter(numbered(3, 150), accesses)] == [3, 150]
    assert [access.number for access in filter(at(64, 800), accesses)] == [7, 8, 99, 100]
    assert [access.number for access in filter(at(64, 800, times=(1, 2)), accesses)] == [8, 99]
    drawn = [list(filter(chance(seed, 0.1), accesses)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(5 < len(found) < 50 for found in drawn)
    assert list(filter(chance(1, 0.0), accesses)) == []
    assert [access.number for access in filter(every(at(64), numbered(8, 20)), accesses)] == [8]


def test_dropped_writes_are_not_done(plain):
    faulty = Drop(plain, numbered(0, 3))
    faulty.write64(0, 1)
    faulty.write64(8, 2)
    faulty.submit([(16, word(3)), (24, word(4)), (32, word(5))])
    assert plain.writes == [(8, 2), (16, 3), (32, 5)]
    assert faulty.spoiled == [Access(0, 0, 8), Access(3, 24, 8)]


def test_where_a_batch_stops_is_counted_as_the_host_sees_it(plain):
    writes = [(0, word(1)), (8, word(2)), (Plain.BROKEN, word(3)), (16, word(4))]
    for wrap in (Drop, Duplicate):
        with pytest.raises(ZeroDivisionError) as caught:
            wrap(plain, numbered(1)).submit(writes)
        assert carried_out(caught.value) == 2


def test_a_stale_answer_is_the_one_before(plain):
    faulty = Stale(plain, at(8, times=(0, 1)))
    faulty.write64(8, 1)
    assert faulty.poll([8, 16]) == (1, 0)
    faulty.write64(8, 2)
    assert faulty.poll([8]) == (1,)
    assert faulty.read64(8) == 1
    assert faulty.read64(8) == 2
    # One that is of more was never answered before.
    assert faulty.collect([(0, 16)]) == (word(0) + word(2),)
    assert len(faulty.spoiled) == 2


def test_a_late_call_is_late_once(plain):
    faulty = Delay(plain, at(8), 0.05)
    start = time.perf_counter()
    for _ in range(20):
        faulty.write64(0, 1)
        assert faulty.poll([0, 16]) == (1, 0)
    assert faulty.spoiled == []
    faulty.poll([8] * 20)
    faulty.write64(8, 3)
    assert time.perf_counter() - start >= 0.1
    assert time.perf_counter() - start < 20 * 0.05
    assert plain.words[8] == 3


def test_a_write_that_is_carried_out_twice(plain):
    faulty = Duplicate(plain, at(8))
    faulty.write64(8, 1)
    faulty.submit([(0, word(2)), (8, word(3)), (16, word(4))])
    assert plain.writes == [(8, 1), (8, 1), (0, 2), (8, 3), (8, 3), (16, 4)]


def test_a_turned_bit(plain):
    CorruptWrites(plain, numbered(1), bit=64).submit([(0, word(5) + word(5)), (16, word(5) + word(5))])
    assert plain.read_block(0, 32) == word(5) * 3 + word(4)
    faulty = CorruptReads(plain, numbered(1, 3), bit=9)
    assert faulty.poll([0, 0, 0]) == (5, 5 | 1 << 9, 5)
    assert faulty.read64(0) == 5 | 1 << 9
    assert plain.words[0] == 5
    found = [[CorruptReads(plain, numbered(0), seed=seed).read64(0) for seed in range(20)] for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0])) > 5
    assert all((value ^ 5).bit_count() == 1 for value in found[0])


@pytest.mark.parametrize("after", [0, 2, 3])
def test_a_connection_that_is_lost_in_the_middle_of_a_batch(plain, after):
    faulty = Disconnect(plain, 1, after)
    faulty.write64(0, 1)
    with pytest.raises(TransportError, match="the connection was lost at call 1") as caught:
        faulty.submit([(8, word(2)), (16, word(3)), (24, word(4))])
    assert carried_out(caught.value) is None
    for call in (lambda: faulty.read64(0), lambda: faulty.collect([(0, 8)]), lambda: faulty.write64(0, 9)):
        with pytest.raises(TransportError, match="the connection was lost at call 1"):
            call()
    assert plain.writes == [(0, 1), (8, 2), (16, 3), (24, 4)][: 1 + after]
    assert plain.reads == 0


def test_a_connection_that_is_lost_at_a_read(plain):
    faulty = Disconnect(plain, 0)
    for _ in range(2):
        with pytest.raises(TransportError, match="the connection was lost at call 0"):
            faulty.poll([0])
    assert plain.reads == 0


def test_faults_add_up(plain):
    """A wrapper of a wrapper: a kick that comes twice, the second time with another value."""
    faulty = Duplicate(CorruptWrites(plain, numbered(1), bit=0), at(8))
    faulty.write64(8, 2)
    assert plain.writes == [(8, 2), (8, 3)]

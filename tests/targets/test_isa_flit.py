"""Flits: staging, bursts between units, and what a burst can't be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.targets.ktpu.isa import Flit, InstructionError
from meshwright.targets.ktpu.isa.flit import CU_DATA, HEADER, Burst, FlitType

flits = st.builds(
    Flit,
    type=st.sampled_from([kind.value for kind in FlitType]),
    **{name: st.integers(*field.limits) for name, field in HEADER.free.items() if name != "type"},
)


@given(flits)
def test_flits_come_back_from_their_bits_and_from_staging(flit):
    assert Flit.decode(flit.encode()) == flit
    words = flit.staged()
    assert len(words) == 5
    assert words[4] >> 32 == 0
    assert sum(word << 64 * i for i, word in enumerate(words[:4])) == flit.payload
    assert Flit.from_staged(words) == flit


def test_the_types_that_there_are():
    assert [kind.value for kind in FlitType] == [*range(9), 15]
    for kind in range(9, 15):
        with pytest.raises(InstructionError, match=rf"type {kind} is unknown; there are 0 MEM_RD_REQ, 1 MEM_WR_REQ"):
            Flit.decode(kind << 268)


@pytest.mark.parametrize("words", [(0,) * 4, (0,) * 6, (0, 0, 0, 0, 1 << 64), (0, 0, 0, -1, 0)])
def test_a_staging_slot_is_five_words(words):
    with pytest.raises(InstructionError, match=r"^a staged flit is 5 words of 64 bits; got "):
        Flit.from_staged(words)


def test_the_upper_half_of_the_fifth_word_is_no_flit():
    with pytest.raises(InstructionError, match=r"is not of 288 bits$"):
        Flit.from_staged((0, 0, 0, 0, 1 << 32))


def test_a_burst_in_the_same_mesh():
    burst = Burst(src=(1, 2), dst=(2, 3), granules=(7, 8, 9), buffer=2, offset=6, signal=True, ack=(0, 1))
    descriptor, *data = burst.flits()
    assert CU_DATA.unpack(descriptor.payload) == {
        "buf_id": 2,
        "offset_granules": 6,
        "len_minus1": 2,
        "flags": 1,
        "ack_y": 1,
        "ack_x": 0,
    }
    assert [flit.payload for flit in data] == [7, 8, 9]
    for flit in burst.flits():
        assert (flit.type, flit.txn, flit.rsvd) == (FlitType.CU_DATA, 0, 0)
        assert (flit.src_x, flit.src_y, flit.dst_x, flit.dst_y) == (1, 2, 2, 3)
    assert [flit.last for flit in burst.flits()] == [0, 0, 0, 1]


def test_a_burst_to_another_mesh_says_so_on_every_flit():
    burst = Burst(src=(1, 2), dst=(0, 1), granules=(1, 2), mesh=3, fin=(2, 1), ack=(0, 1))
    assert {(flit.txn, flit.rsvd) for flit in burst.flits()} == {(0x12, 0b111)}


UNACKNOWLEDGED = (
    "across meshes (0, 0) would be the sender's coordinate in mesh 3; name where to acknowledge with ack=(x, y)"
)
ELSEWHERE = {"src": (1, 2), "dst": (0, 1), "mesh": 3, "fin": (2, 1), "ack": (0, 1), "granules": (0,)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"granules": ()}, "0 granules; a burst carries 1 to 256"),
        ({"granules": (0,) * 257}, "257 granules; a burst carries 1 to 256"),
        (
            {"ack": None},
            UNACKNOWLEDGED,
        ),
        (
            {"ack": (0, 0)},
            UNACKNOWLEDGED,
        ),
        ({"fin": None}, "in mesh 3, where? name the receiver there with fin=(x, y)"),
        ({"fin": (0, 0)}, "in mesh 3, where? name the receiver there with fin=(x, y)"),
        ({"fin": (16, 1)}, "fin (16, 1) does not fit 4 bits a coordinate: 0 to 15"),
        ({"mesh": 4}, "mesh 4 does not fit 2 bits: 0 to 3"),
        ({"mesh": None}, "fin (2, 1) is a place in another mesh, and no mesh is named"),
    ],
)
def test_a_burst_that_would_get_lost_is_refused(changed, message):
    assert len(Burst(**ELSEWHERE | {"granules": (0,) * 256}).flits()) == 257
    with pytest.raises(InstructionError) as refused:
        Burst(**ELSEWHERE | changed).flits()
    assert str(refused.value) == f"burst from (1, 2) to (0, 1): {message}"


def test_a_unit_does_not_send_to_itself():
    with pytest.raises(InstructionError) as refused:
        Burst(src=(1, 2), dst=(1, 2), granules=(0,)).flits()
    assert str(refused.value) == "burst from (1, 2) to (1, 2): a unit that sends to itself waits for itself"

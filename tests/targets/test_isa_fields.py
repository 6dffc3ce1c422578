"""Field tables: declarations that can't be right raise, values that would wrap are refused, words round trip."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.targets.ktpu.isa import cluster, flit, payload, vector_formats
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError

FORMATS = [
    *cluster.FORMATS.values(),
    *payload.FORMATS.values(),
    payload.DIMENSION,
    *vector_formats.FORMATS.values(),
    vector_formats.IMMEDIATE,
    vector_formats.PEER_RECORD,
    flit.HEADER,
    *flit.PAYLOADS,
]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((Field("a", 7, 4), Field("b", 4, 0)), "format X: bit 4 is in both a and b"),
        ((Field("a", 1, 0, upper=(6, 5)), Field("b", 5, 5)), "format X: bit 5 is in both a and b"),
        ((Field("a", 3, 0, upper=(3, 2)),), "format X: bit 2 is in both a and a"),
        ((Field("a", 8, 0),), "format X: field a is at [8:0]; the word has bits [7:0]"),
        ((Field("a", 3, 4),), "format X: field a is at [3:4]; the word has bits [7:0]"),
        ((Field("a", 3, -1),), "format X: field a is at [3:-1]; the word has bits [7:0]"),
        ((Field("a", 3, 0), Field("a", 7, 4)), "format X: two fields are called a"),
        ((Field("a", 1, 0, default=4),), "format X: default 4 of field a does not fit its 2 bits [1:0]: 0 to 3"),
        (
            (Field("a", 1, 0, default=2, signed=True),),
            "format X: default 2 of field a does not fit its 2 bits [1:0]: -2 to 1",
        ),
        ((Field("a", 3, 3, const=2),), "format X: constant 2 of field a does not fit its 1 bits [3]: 0 to 1"),
    ],
)
def test_a_wrong_declaration_raises(fields, message):
    with pytest.raises(InstructionError) as refused:
        Format("X", 8, fields)
    assert str(refused.value) == message


SPLIT = Format(
    "S",
    16,
    (Field("op", 15, 12, const=5), Field("v", 7, 4, default=None, upper=(11, 10)), Field("s", 2, 0, signed=True)),
)


def test_the_high_bits_of_a_split_field_are_in_its_upper_part():
    assert SPLIT.pack({"v": 0b10_0110, "s": -3}) == 0b0101_10_00_0110_0_101
    assert SPLIT.unpack(0b0101_10_00_0110_0_101) == {"v": 0b10_0110, "s": -3}
    assert SPLIT.free["v"].bits == "[11:10][7:4]"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"v": 64}, "S: v = 64 does not fit its 6 bits [11:10][7:4]: 0 to 63; the machine would read 0"),
        ({"v": -1}, "S: v = -1 does not fit its 6 bits [11:10][7:4]: 0 to 63; the machine would read 63"),
        ({"v": 0, "s": 4}, "S: s = 4 does not fit its 3 bits [2:0]: -4 to 3; the machine would read -4"),
        ({}, "S: field v is missing, and it has no default"),
        ({"v": 0, "w": 0}, "S has no field 'w'; it has v, s"),
        ({"v": 0, "op": 5}, "S has no field 'op'; it has v, s"),
    ],
)
def test_a_value_that_would_wrap_is_refused(values, message):
    with pytest.raises(InstructionError) as refused:
        SPLIT.pack(values)
    assert str(refused.value) == message
    assert SPLIT.pack({"v": 63, "s": 3}) and SPLIT.pack({"v": 0, "s": -4})


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (0x6000, "S: word 0x6000 has 6 in op [15:12], which is 5 in every S"),
        (0x5308, "S: word 0x5308 sets reserved bits [9:8] [3], which are zero in every S"),
        (0x15000, "S: word 0x15000 is not of 16 bits"),
        (-1, "S: word -0x001 is not of 16 bits"),
    ],
)
def test_a_word_that_is_none_is_refused(word, message):
    with pytest.raises(InstructionError) as refused:
        SPLIT.unpack(word)
    assert str(refused.value) == message


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_values_come_back(format_, data):
    values = {name: data.draw(st.integers(*field.limits), label=name) for name, field in format_.free.items()}
    word = format_.pack(values)
    assert 0 <= word < 1 << format_.bits
    assert word & format_.reserved == 0
    assert format_.unpack(word) == values


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_every_field_has_its_limits(format_):
    lowest = {name: field.limits[0] for name, field in format_.free.items()}
    for name, field in format_.free.items():
        low, high = field.limits
        for value in (low, high):
            assert format_.unpack(format_.pack(lowest | {name: value}))[name] == value
        for value in (low - 1, high + 1):
            with pytest.raises(
                InstructionError, match=rf"^{format_.name}: {name} = {value} does not fit its {field.width} bits"
            ):
                format_.pack(lowest | {name: value})


@pytest.mark.parametrize("format_", [f for f in FORMATS if f.reserved], ids=lambda f: f.name)
def test_every_reserved_bit_is_refused(format_):
    word = format_.pack({name: field.limits[0] for name, field in format_.free.items()})
    for bit in range(format_.bits):
        if format_.reserved >> bit & 1:
            with pytest.raises(InstructionError, match=rf"sets reserved bits \[{bit}\],"):
                format_.unpack(word | 1 << bit)

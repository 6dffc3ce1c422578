"""Graphs as JSON and MessagePack: there and back, equal bytes for equal graphs, and what a hostile file can do."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluate.random_graphs import Case, cases
from ir.random_records import graphs
from ir.samples import SAMPLES
from meshwright.errors import GraphError
from meshwright.ir.expression import Binary, BinaryOp, Constant, Operand, Special, Unary, UnaryOp
from meshwright.ir.flow import block_counts
from meshwright.ir.form import faults
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId, GroupId
from meshwright.ir.operation import Generic
from meshwright.ir.pattern import Affine
from meshwright.ir.records import Compute, Group, Recv, Scalar, Site, Stage, Tensor
from meshwright.ir.scalar import Arithmetic, Number, Register, ScalarBody, ScalarExpr, ScalarOp, SetRegister
from meshwright.ir.serialise import from_json, from_msgpack, to_json, to_msgpack
from meshwright.ir.spec import COPIED, Spec

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def there_and_back(graph: Graph) -> None:
    for write, read in ((to_json, from_json), (to_msgpack, from_msgpack)):
        data = write(graph)
        again = read(data)
        assert again == graph
        assert write(again) == data


@settings(parent=quick, max_examples=200)
@given(graphs)
def test_arbitrary_records_survive(graph: Graph) -> None:
    there_and_back(graph)


@quick
@given(cases)
def test_well_formed_graphs_survive(case: Case) -> None:
    there_and_back(case.graph)
    assert not faults(from_json(to_json(case.graph)))


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_survive(name: str) -> None:
    there_and_back(SAMPLES[name]())


def one_tensor(specs: tuple[Spec, ...] | None) -> Graph:
    named: dict[str, Any] = {} if specs is None else {"specs": specs}
    return Graph((Tensor("x", (2,), ElementType.F32, (ChipId(0),), **named),), (), (), ())


def one_expr(constant: Constant) -> Graph:
    return Graph((), (), (), (Stage(Compute(Generic((constant,), ()))),))


def test_equal_graphs_give_equal_bytes_however_they_were_made() -> None:
    made = [one_tensor(None), one_tensor((COPIED,)), one_tensor((Spec(),)), from_json(to_json(one_tensor((Spec(),))))]
    assert len({to_json(g) for g in made}) == 1 and len({to_msgpack(g) for g in made}) == 1
    assert all(g == made[0] for g in made)
    assert to_json(one_expr(Constant(2))) == to_json(one_expr(Constant(2.0)))
    assert msgspec.json.encode(Affine((0,), (1,), pad=0)) == msgspec.json.encode(Affine((0,), (1,), pad=-0.0))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (float("inf"), Special.INFINITY),
        (float("-inf"), Special.NEGATIVE_INFINITY),
        (float("nan"), Special.NAN),
        (-0.0, Special.NEGATIVE_ZERO),
    ],
)
def test_constants_without_a_number_of_their_own_are_kept_by_name(value: float, kept: Special) -> None:
    assert Constant(value) == Constant(kept)
    assert str(Constant(value).number) == str(value)
    there_and_back(one_expr(Constant(value)))
    assert json.loads(to_json(one_expr(Constant(value))))["stages"][0]["kind"]["op"]["exprs"][0]["value"] == kept.value


def test_the_two_zeros_are_different_constants() -> None:
    assert Constant(0.0) != Constant(-0.0)


@pytest.mark.parametrize("pad", [float("inf"), float("-inf"), float("nan")])
def test_pads_that_json_has_no_number_for_are_refused(pad: float) -> None:
    with pytest.raises(GraphError) as error:
        Affine((0,), (1,), pad=pad)
    assert str(error.value) == (
        f"Affine(pad={pad}): a pad is a finite number. "
        "For a maximum or minimum over a halo use one that no element passes."
    )


# What a hostile file can do.

EMPTY = '{"tensors":[],"buffers":[],"groups":[],"stages":[]}'


def with_stage(stage: str) -> str:
    return '{"tensors":[],"buffers":[],"groups":[],"stages":[' + stage + "]}"


def nested_expr(depth: int) -> str:
    inner = '{"node":"unary","op":"neg","a":' * depth + '{"node":"operand","index":0}' + "}" * depth
    return with_stage('{"kind":{"kind":"compute","op":{"op":"generic","maps":[],"exprs":[' + inner + "]}}}")


def nested_loops(depth: int) -> str:
    inner = '{"scalar":"repeat","register":0,"count":2,"body":[' * depth + "]}" * depth
    return with_stage('{"kind":{"kind":"scalar","body":{"registers":1,"statements":[' + inner + "]}}}")


TOO_LONG_A_NUMBER = "1" + "0" * 5000
LONG_NUMBER = "1" + "0" * 4000
JSON_REFUSED = [
    ("", "Input data was truncated"),
    ("[]", "Expected `object`, got `array`"),
    ("nan", "Input data was truncated"),
    (EMPTY[:-1], "Input data was truncated"),
    (EMPTY + "x", "JSON is malformed: trailing characters (byte 52)"),
    ("{}", "Object missing required field `tensors`"),
    (EMPTY.replace("groups", "group"), "Object contains unknown field `group`"),
    (EMPTY.replace('"tensors":[]', '"tensors":{}'), "Expected `array`, got `object` - at `$.tensors`"),
    (
        with_stage('{"kind":{"kind":"explode"}}'),
        "Invalid value 'explode' - at `$.stages[0].kind.kind`",
    ),
    (
        with_stage('{"kind":{"kind":"recv","group":0.5}}'),
        "Expected `int`, got `float` - at `$.stages[0].kind.group`",
    ),
    (
        with_stage('{"kind":{"kind":"recv","group":null}}'),
        "Expected `int`, got `null` - at `$.stages[0].kind.group`",
    ),
    (
        with_stage('{"kind":{"kind":"recv","group":' + TOO_LONG_A_NUMBER + "}}"),
        "Integer value out of range - at `$.stages[0].kind.group`",
    ),
    (
        with_stage(
            '{"kind":{"kind":"store","tensor":0,"pattern":{"pattern":"affine","offset":[],"box":[],"pad":1e999}}}'
        ),
        "Number out of range - at `$.stages[0].kind.pattern.pad`",
    ),
    (
        with_stage(
            '{"kind":{"kind":"store","tensor":0,"pattern":{"pattern":"affine","offset":[],"box":[],"pad":NaN}}}'
        ),
        "JSON is malformed: invalid character (byte 141)",
    ),
    (
        '{"tensors":[{"name":"x","shape":[2],"format":"f32","chips":[0],"specs":[{"axis":0,"partial":"sum"}]}],'
        '"buffers":[],"groups":[],"stages":[]}',
        "Spec(axis=0, partial=sum): a value is split or partial, not both. Use Spec.on(axis) for pieces of a value, or "
        "Spec(partial=pool) for contributions to one. - at `$.tensors[0].specs[0]`",
    ),
    (nested_expr(300), "Shapes: stage s0: an expression is nested more than 256 deep"),
    (nested_loops(300), "Shapes: stage s0: a scalar program is nested more than 256 deep"),
    ("[" * 1_000_000, "Expected `object`, got `array`"),
]


@pytest.mark.parametrize(("text", "reason"), JSON_REFUSED, ids=range(len(JSON_REFUSED)))
def test_hostile_json_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(GraphError) as error:
        from_json(text)
    assert str(error.value) == f"not a stage graph in JSON: {reason}"


@pytest.mark.parametrize("text", [nested_expr(10_000), nested_expr(1_000_000), nested_loops(10_000)], ids=range(3))
def test_very_deep_json_is_refused(text: str) -> None:
    """By the decoder where it runs out of levels first, which depends on the interpreter, else by the stated bound."""
    with pytest.raises(GraphError, match=r"nested (too deeply|more than 256 deep)$"):
        from_json(text)


def test_hostile_bytes_are_refused() -> None:
    with pytest.raises(GraphError, match=r"^not a stage graph in JSON: "):
        from_json(b'{"tensors":[{"name":"\xff"')
    with pytest.raises(GraphError, match=r"^not a stage graph in MessagePack: Input data was truncated$"):
        from_msgpack(b"")
    with pytest.raises(GraphError, match=r"^not a stage graph in MessagePack: Expected `object`, got `int`$"):
        from_msgpack(b"\x01")


def test_a_message_that_promises_billions_takes_no_memory() -> None:
    """An array header that claims 2^32 - 1 entries, and a map and a string that do."""
    start = b"\x84\xa7tensors"
    tracemalloc.start()
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
        with pytest.raises(GraphError, match=r"^not a stage graph in MessagePack: "):
            from_msgpack(start + claim)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_nan_in_messagepack() -> None:
    """MessagePack has a NaN: a constant keeps it by name, a pad refuses it."""
    graph = json.loads(to_json(one_expr(Constant(0.0))))
    graph["stages"][0]["kind"]["op"]["exprs"][0]["value"] = float("nan")
    assert from_msgpack(msgspec.msgpack.encode(graph)) == one_expr(Constant(Special.NAN))
    load = {
        "kind": "store",
        "tensor": 0,
        "pattern": {"pattern": "affine", "offset": [], "box": [], "pad": float("nan")},
    }
    graph["stages"] = [{"kind": load}]
    with pytest.raises(GraphError, match=r"Affine\(pad=nan\): a pad is a finite number\..* - at `\$\.stages\[0\]"):
        from_msgpack(msgspec.msgpack.encode(graph))


def deep(depth: int) -> Graph:
    expr = Operand(0)
    for _ in range(depth):
        expr = Unary(UnaryOp.NEG, expr)
    return Graph((), (), (), (Stage(Compute(Generic((expr,), ()))),))


def wide(doublings: int) -> Graph:
    expr = Operand(0)
    for _ in range(doublings):
        expr = Binary(BinaryOp.ADD, expr, expr)
    return Graph((), (), (), (Stage(Compute(Generic((expr,), ()))),))


def deep_program(depth: int) -> Graph:
    value: ScalarExpr = Register(0)
    for _ in range(depth):
        value = Arithmetic(ScalarOp.ADD, value, Number(1))
    return Graph((), (), (), (Stage(Scalar(ScalarBody(1, (SetRegister(0, value),)))),))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (deep(10_000), "an expression is nested more than 256 deep"),
        (wide(60), "an expression has more than 65536 nodes, counting a shared one wherever it stands"),
        (deep_program(10_000), "a scalar program is nested more than 256 deep"),
    ],
    ids=["deep", "wide", "program"],
)
def test_trees_too_large_to_recurse_over_are_refused_everywhere(graph: Graph, reason: str) -> None:
    assert str(faults(graph)[0]) == f"Shapes: stage s0: {reason}"
    with pytest.raises(GraphError) as error:
        to_json(graph)
    assert str(error.value) == f"this graph can't be written as JSON: Shapes: stage s0: {reason}"
    with pytest.raises(GraphError) as error:
        to_msgpack(graph)
    assert str(error.value) == f"this graph can't be written as MessagePack: Shapes: stage s0: {reason}"


def test_the_deepest_tree_that_is_allowed_works_everywhere() -> None:
    there_and_back(deep(255))
    assert str(deep(255).stages[0].kind.op.exprs[0]).count("neg") == 255  # type: ignore[union-attr]


def test_numbers_of_thousands_of_digits_are_faults_like_others() -> None:
    """Python refuses to print an integer of more than 4300 digits, and products of sizes have more."""
    loop = '{"extent":' + LONG_NUMBER + ',"stride":[0]}'
    pattern = '{"pattern":"affine","offset":[0],"box":[1],"loops":[' + loop + "," + loop + "]}"
    load = '{"kind":{"kind":"load","tensor":0,"pattern":' + pattern + ',"num_blocks":-1},"outs":[0]}'
    repeat = '{"scalar":"repeat","register":0,"count":' + LONG_NUMBER + ',"body":['
    scalar = '{"kind":{"kind":"scalar","body":{"registers":1,"statements":[' + repeat * 3 + "]}]}]}" + ']}},"outs":[1]}'
    text = (
        '{"tensors":[{"name":"x","shape":[1],"format":"f32","chips":[0]}],"buffers":['
        + ",".join(['{"site":{"chip":0,"x":0,"y":0},"block":[1],"format":"f32","depth":1}'] * 2)
        + '],"groups":[],"stages":['
        + load
        + ","
        + scalar
        + "]}"
    )
    found = [str(f) for f in faults(from_json(text))]
    assert found[0] == "Shapes: stage s0: num_blocks is -1, and the pattern makes more than 2147483648"
    assert found[-1] == "Shapes: stage s1: takes more than 1048576 steps a firing, which is the most that is possible"
    assert len(found) == 3


def test_huge_splits_and_rectangles_cost_nothing() -> None:
    huge = 10**400
    tensor = Tensor("x", (huge + 1,), ElementType.F32, (ChipId(0), ChipId(1)), (Spec(axis=0),))
    (fault,) = faults(Graph((tensor,), (), (), ()))
    assert "is not a multiple of 2" in str(fault) and f"Pad axis 0 to {huge + 2} first" in str(fault)
    group = Group(Site(ChipId(0), 0, 0), (0, 0), (1023, 1023))
    stages = (Stage(Recv(GroupId(0))),) * 10_000
    assert len(faults(Graph((), (), (group,), stages))) == 10_000


# Whatever a file says, there is a graph or one `GraphError`, and the form of that graph can be asked.

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-2, 3), st.floats(), st.text(max_size=3))
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3), leaves, max_size=2)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        found += places(below, (*path, key))
    return found


@settings(parent=quick, max_examples=300)
@given(st.data())
def test_changed_files_are_read_or_refused(data: st.DataObject) -> None:
    document = {"graph": json.loads(to_json(SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]()))}
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([p for p in places(document) if len(p) > 1]))
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        if data.draw(st.booleans()) and isinstance(at, list):
            del at[path[-1]]
        else:
            numbers = st.integers(-2, 3) if type(at[path[-1]]) is int else values
            at[path[-1]] = data.draw(numbers | values)
    ask(from_msgpack, msgspec.msgpack.encode(document["graph"], enc_hook=str) if fits(document) else b"")
    ask(from_json, json.dumps(document["graph"]).encode())


def fits(value: Any) -> bool:
    """Whether MessagePack can hold the integers in it."""
    if isinstance(value, dict):
        return all(map(fits, value.values()))
    if isinstance(value, list):
        return all(map(fits, value))
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


@quick
@given(st.binary(max_size=40) | st.builds(lambda g, n: to_msgpack(g)[:n], graphs, st.integers(0, 200)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    ask(from_msgpack, data)
    ask(from_json, data)


def ask(read: Any, data: bytes) -> None:
    try:
        graph = read(data)
    except GraphError:
        return
    if not faults(graph):
        assert str(graph)
        try:
            block_counts(graph)
        except GraphError:
            return

"""Machines written out and read back are equal; equal machines have equal hashes."""

import subprocess
import sys
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_samples import OWN, fabrics

from meshwright.machine import canonical_hash, dumps, from_json, load, loads, presets, to_json
from meshwright.machine.positions import line_of, positions


@pytest.mark.parametrize("name", presets())
def test_presets_come_back_equal(name):
    machine = load(name)
    assert from_json(to_json(machine)) == machine
    assert loads(dumps(machine)) == machine
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(machine), type=type(machine)) == machine
    assert hash(from_json(to_json(machine))) == hash(machine)


@given(fabrics, st.text(st.characters(codec="utf-8"), min_size=1), st.floats(1e-9, 1e18))
def test_random_machines_come_back_equal(machine, name, rate):
    noc = msgspec.structs.replace(
        machine.noc, rates=(msgspec.structs.replace(machine.noc.rates[0], bytes_per_cycle=rate),)
    )
    machine = msgspec.structs.replace(machine, name=name, noc=noc)
    for back in (from_json(to_json(machine)), loads(dumps(machine))):
        assert back == machine
        assert canonical_hash(back) == canonical_hash(machine)


def test_the_hash_is_of_the_data_and_not_of_the_text_or_the_process():
    spaced = OWN.replace(" = ", "   =  ").replace("\n[", "\n# a remark\n[")
    listed = OWN.replace("rectangle = [[1, 1], [1, 2]]", "at = [[1, 1], [1, 2]]")
    assert canonical_hash(loads(spaced)) == canonical_hash(loads(listed)) == canonical_hash(loads(OWN))
    code = "from meshwright.machine import *; print(canonical_hash(load('ktpu-v13p')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == canonical_hash(load("ktpu-v13p"))


def test_any_changed_figure_changes_the_hash():
    machine = load("ktpu-v13p")
    raw = msgspec.json.decode(to_json(machine))
    seen = {canonical_hash(machine)}

    def numbers(value, path=()):
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in pairs:
                yield from numbers(inner, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path

    paths = [path for path in numbers(raw) if path[0] in ("cluster", "vector_core", "dispatch", "memory_port", "clock")]
    for path in paths:
        changed = msgspec.json.decode(to_json(machine))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] += 1
        seen.add(canonical_hash(from_json(msgspec.json.encode(changed))))
    assert len(paths) > 30 and len(seen) == len(paths) + 1


def paths_of(value, path=()):
    """Every key path of a TOML document as tomllib reads it."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_of(inner, (*path, key))


AWKWARD = '''\
"quoted key" = 1 # [not.a.table]
'it''s' = 2
a . b = { c = [1, [2, "]"], { d = "\\"#" }], e.f = 1979-05-27 07:32:00 }
many = """
[not.a.table]
""\\""" quotes """""
raw = \'\'\'
k = 1\'\'\'\'
[x.y] # comment
list = [
  1, # one
  # two
  2,
]
[[x.z]]
n = 1
[x.z.deep]
k = true
[[x.z]]
[[x.z.inner]]
q = -inf
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize("text", [AWKWARD, AWKWARD.replace("\n", "\r\n"), OWN, "", "# nothing", "a=1"])
def test_every_key_has_a_line_and_nothing_else_has(text):
    assert set(positions(text)) == set(paths_of(tomllib.loads(text)))


def test_lines_are_those_of_the_text():
    found = positions(AWKWARD)
    lines = AWKWARD.splitlines()
    assert lines[found["x", "y", "list", 1] - 1] == "  2,"
    assert lines[found["raw",] - 1] == "raw = '''"
    assert lines[found["x", "z", 1, "inner", 0, "q"] - 1] == "q = -inf"
    assert lines[found["x", "z", 0, "deep"] - 1] == "[x.z.deep]"
    assert line_of(("x", "z", 0, "nowhere", 5), found) == found["x", "z", 0]
    assert line_of(("nowhere",), found) == 1


keys = st.text("ab-_1", min_size=1, max_size=3)
strings = st.text(st.characters(codec="utf-8"), max_size=6)
values = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=4), st.dictionaries(keys, values, max_size=4))
def test_random_documents_have_a_line_for_every_key(top, table):
    def inline(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{key}" = {inline(inner)}' for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",\n".join(inline(inner) for inner in value) + "]"
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")

    def pairs(mapping):
        return [f"{key} = {inline(value)}" for key, value in mapping.items()]

    text = "\n".join([*pairs(top), "[[table.x]]", *pairs(table), "[[table.x]]", *pairs(table)])
    if "table" in top:
        return
    assert set(positions(text)) == set(paths_of(tomllib.loads(text)))

"""Whatever is in a file, `check` answers: a certificate, or one line that says why there is none."""

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from meshwright.cli import app

GRAPHS = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "report" / "samples").glob("*.json"))
    if path.stat().st_size < 1 << 14
]
SCALARS = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([-1, 0, 1, 2**31, 2**62]), st.floats(), st.text(max_size=4), st.none()
)
JSON = st.recursive(SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below))


def places(node, path=()):
    """Every place in a tree of lists and objects."""
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def exchanged(node, path, value):
    """The tree with another value at one place."""
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = exchanged(copy[path[0]], path[1:], value)
    return copy


@st.composite
def damaged(draw):
    """A sound graph with one to three places exchanged."""
    graph = draw(st.sampled_from(GRAPHS))
    for _ in range(draw(st.integers(1, 3))):
        graph = exchanged(graph, draw(st.sampled_from(list(places(graph)))), draw(JSON))
    return json.dumps(graph).encode()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(damaged(), st.binary(max_size=200)), ending=st.sampled_from([".json", ".msgpack"]))
def test_any_file_gets_an_answer(data, ending):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"graph{ending}"
        file.write_bytes(data)
        done = CliRunner().invoke(app, ["check", str(file), "--machine", "grid-2x4x4"])
    assert done.exit_code in (0, 1, 2, 3), done.output
    if done.exit_code == 2:
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")

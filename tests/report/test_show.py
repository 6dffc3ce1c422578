"""`meshwright show`: what it prints and writes, and files that hold something else, or mean harm."""

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.multicast_samples import sample_graphs
from typer.testing import CliRunner

from meshwright.cli import app
from meshwright.ir.serialise import to_json, to_msgpack
from meshwright.machine import load
from meshwright.report import overview, picture, summarise

GRAPHS = sample_graphs()
GRAPH = GRAPHS["all-reduce-max-pair"]


def show(*arguments):
    return CliRunner().invoke(app, ["show", *map(str, arguments)], prog_name="meshwright")


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "graph.json"
    made.write_bytes(to_json(GRAPH))
    return made


def refused(result):
    """The message of a refusal: one line, nothing on stdout, status 2."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    assert all(c.isprintable() for c in result.stderr[:-1])
    return result.stderr.removeprefix("error: ").rstrip("\n")


def test_json_and_messagepack_are_told_apart_by_what_they_hold(file, tmp_path):
    other = tmp_path / "graph.json.txt"
    other.write_bytes(to_msgpack(GRAPH))
    padded = tmp_path / "padded"
    padded.write_bytes(b"\n  " + to_json(GRAPH) + b"\n")
    for path in (file, other, padded):
        result = show(path)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == overview(summarise(GRAPH))


def test_on_a_machine(file):
    result = show(file, "--machine", "grid-2x4x4")
    assert result.stdout == overview(summarise(GRAPH, load("grid-2x4x4")))
    assert result.stdout.endswith("links\n  0 -> 1  8 KiB\n  1 -> 0  8 KiB\n")


def test_the_graph_itself(file):
    assert show(file, "--text").stdout == f"{GRAPH}\n"


def test_a_picture(file, tmp_path):
    target = tmp_path / "graph.svg"
    result = show(file, "--svg", target, "--machine", "grid-2x4x4")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"wrote {target}\n"
    machine = load("grid-2x4x4")
    assert target.read_text("utf-8") == picture(summarise(GRAPH, machine), machine)
    assert show(file, "--svg", target, "--text").stdout == f"{GRAPH}\n"


def test_files_that_are_not_there(tmp_path):
    assert refused(show(tmp_path / "none")) == f"{tmp_path}/none: a graph file was expected, there is nothing"
    assert refused(show(tmp_path)) == f"{tmp_path}: a graph file was expected, there is a directory"
    assert refused(show("/dev/zero")) == "/dev/zero: a graph file was expected, there is a device or a pipe"


def test_a_file_that_can_not_be_written(file, tmp_path):
    target = tmp_path / "nowhere" / "x.svg"
    assert refused(show(file, "--svg", target)) == f"{target}: can't be written: No such file or directory"


def test_a_file_that_is_too_large(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate((1 << 28) + 1)
    assert refused(show(large)) == f"{large}: 268,435,457 bytes; files of up to 268,435,456 are read"


def test_a_machine_that_is_not_there_or_has_no_such_chip(file):
    assert refused(show(file, "--machine", "grid")).startswith('no machine and no file is called "grid"')
    assert refused(show(file, "--machine", "grid-8x8")) == "grid-8x8 has no mesh 1; its meshes are 0"


HOSTILE = {
    b"": "not a stage graph in MessagePack: ",
    b"{": "not a stage graph in JSON: ",
    b"null": "not a stage graph in MessagePack: ",
    b"\xff\xfe{}": "not a stage graph in MessagePack: ",
    b'{"tensors":[]}': "not a stage graph in JSON: Object missing required field",
    b'{"tensors":[],"buffers":[],"groups":[],"stages":' + b"[" * 100_000: "not a stage graph in JSON: ",
    b'{"tensors":[],"buffers":[],"groups":[],"stages":[],"more\\u001b[31m\\n":1}': "not a stage graph in JSON: ",
}


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_files_that_hold_something_else(tmp_path, data):
    path = tmp_path / "graph"
    path.write_bytes(data)
    assert refused(show(path)).startswith(f"{path}: {HOSTILE[data]}")


def test_several_faults_on_one_line(tmp_path):
    path = tmp_path / "graph"
    path.write_bytes(
        to_json(GRAPH).replace(b'"format":"bf16"', b'"format":"f32"', 1).replace(b'"depth":2', b'"depth":0')
    )
    message = refused(show(path))
    assert message.startswith(f"{path}: this graph is not well formed: Shapes: buffer b0: depth 0 must be at least 1; ")
    assert len(message) < 900


def test_names_can_not_reach_the_terminal_or_the_picture(tmp_path):
    name = "\x1b]0;x\x07\u202e<script>alert(1)</script>&\"'\n" + "y" * 5000
    tensors = (msgspec.structs.replace(GRAPH.tensors[0], name=name), *GRAPH.tensors[1:])
    path, target = tmp_path / "graph", tmp_path / "graph.svg"
    path.write_bytes(to_json(msgspec.structs.replace(GRAPH, tensors=tensors)))
    for result in (show(path), show(path, "--text"), show(path, "--svg", target)):
        assert result.exit_code == 0
        assert all(c.isprintable() or c == "\n" for c in result.stdout)
    assert max(map(len, show(path).stdout.splitlines())) < 400
    root = ElementTree.fromstring(target.read_text("utf-8"))
    assert not [e for e in root.iter() if "script" in e.tag]
    assert any("<script>" in (e.text or "") for e in root.iter())


def test_numbers_that_are_too_large_to_draw(tmp_path):
    path = tmp_path / "graph"
    text = to_json(GRAPH).decode()
    for old, new in (
        ('"num_blocks":1', '"num_blocks":9' + "9" * 30),
        ('"x":0', '"x":' + "9" * 25),
        ('"depth":2', '"depth":' + "9" * 12),
    ):
        assert old in text
        path.write_bytes(text.replace(old, new).encode())
        result = show(path, "--svg", tmp_path / "graph.svg")
        if result.exit_code:
            refused(result)
        else:
            ElementTree.fromstring((tmp_path / "graph.svg").read_text("utf-8"))


encoded = st.sampled_from([*(to_json(g) for g in GRAPHS.values()), *(to_msgpack(g) for g in GRAPHS.values())])
DIGITS = re.compile(rb"-?\d+")


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(encoded, st.data())
def test_damaged_files_are_shown_or_refused(tmp_path, data, draw):
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(damaged) - 1))
        match draw.draw(st.sampled_from(["byte", "cut", "number"])):
            case "byte":
                damaged[at] = draw.draw(st.integers(0, 255))
            case "cut":
                del damaged[at : at + draw.draw(st.integers(1, 40))]
            case "number":
                found = DIGITS.search(damaged, at)
                if found:
                    number = draw.draw(st.sampled_from([-1, 0, 1, 2, 7, 1023, 1 << 31, 1 << 40, 10**25]))
                    damaged[found.start() : found.end()] = str(number).encode()
        if not damaged:
            break
    path, target = Path(tmp_path) / "graph", Path(tmp_path) / "graph.svg"
    path.write_bytes(bytes(damaged))
    for arguments in ((), ("--text",), ("--svg", target), ("--machine", "grid-2x4x4")):
        result = show(path, *arguments)
        if result.exit_code:
            refused(result)

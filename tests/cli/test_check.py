"""`meshwright check` and `meshwright recheck`: tables, exit statuses, certificates, and input of any kind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from certify.broken_graphs import BROKEN
from certify.hand_made import chain_sum, part, pipeline, two_branches
from certify.hand_made import copies as copies_of
from ir.samples import SAMPLES
from meshwright.certify import OBLIGATIONS, from_json
from meshwright.ir.serialise import to_json, to_msgpack


@pytest.fixture
def graph(tmp_path: Path):
    """Writes a graph to a file and gives its name."""

    def write(made, name: str = "graph.json") -> str:
        file = tmp_path / name
        file.write_bytes(to_msgpack(made) if name.endswith(".msgpack") else to_json(made))
        return str(file)

    return write


def test_what_holds(run, graph) -> None:
    result = run("check", graph(pipeline()), "--machine", "grid-8x8")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(OBLIGATIONS)]] == list(OBLIGATIONS)
    assert lines[-1].startswith("held: ")
    assert lines[-1].endswith(" on grid-8x8")


def test_messagepack(run, graph) -> None:
    assert run("check", graph(chain_sum(), "graph.msgpack")).exit_code == 0


def test_what_is_broken_says_where_and_what_would_help(run, graph) -> None:
    result = run("check", graph(two_branches(4, 3)), "--machine", "grid-8x8")
    assert result.exit_code == 1
    text = result.stdout
    assert (
        "NoDeadlock: 5 stages wait for each other:\n    s0 (Load at 0:(0,0)), in firing 3, waits for room in b0" in text
    )
    assert "  stages   s0, s5, s4, s3, s2\n  buffers  b0, b2, b3, b1\n  chips    0\n" in text
    assert "  change   make b0 4 blocks deep instead of 3\n" in text
    assert "CreditsBounded      not decided  there is no firing order to look at: NoDeadlock doesn't hold" in text


def test_elements_are_named(run, graph) -> None:
    made = copies_of(("x", part(0, 3), "y", part(0, 3)), ("x", part(5, 8), "y", part(5, 8)))
    result = run("check", graph(made), "--machine", "grid-8x8")
    assert result.exit_code == 1
    assert "Covered: nothing stores [3:5] of 'y', which is a result\n" in result.stdout
    assert "  elements y[3:5]\n" in result.stdout


def test_what_is_not_decided_where_no_accumulator_is_stated(run, graph) -> None:
    made = BROKEN["an accumulator opened over its sums"].graph
    result = run(
        "check", graph(made), "--machine", "grid-8x8", "--waive", "OpenedBeforeAdd", "--reason", "r", "--who", "w"
    )
    assert result.exit_code == 3
    assert "AccumulatorFits     not decided  grid-8x8 states no accumulator" in result.stdout


def test_json_is_the_certificate(run, graph) -> None:
    result = run("check", graph(pipeline()), "--machine", "grid-8x8", "--json")
    assert from_json(result.stdout.strip()).verdict == "held"


def test_a_certificate_is_written_and_rechecked(run, graph, tmp_path: Path) -> None:
    file, out = graph(chain_sum()), str(tmp_path / "out.json")
    assert run("check", file, "--certificate", out).exit_code == 0
    result = run("recheck", out, file)
    assert (result.exit_code, result.stdout) == (0, "25 obligations held, each by its evidence\n")
    result = run("recheck", out, graph(chain_sum((0, 1)), "other.json"))
    assert result.exit_code == 1
    assert result.stdout.startswith("refused: this certificate is of another graph: sha256:")
    result = run("recheck", out, file, "--machine", "ktpu-v13p-published")
    assert result.exit_code == 1
    assert result.stdout == "refused: this certificate is of another machine than ktpu-v13p-published\n"


def test_an_edited_certificate_is_refused(run, graph, tmp_path: Path) -> None:
    file, out = graph(chain_sum()), tmp_path / "out.json"
    run("check", file, "--certificate", str(out))
    out.write_bytes(out.read_bytes().replace(b'"verdict":"held"', b'"verdict":"waived"', 1))
    result = run("recheck", str(out), file)
    assert result.exit_code == 2
    assert "this certificate was changed after it was written" in result.stderr


def test_waivers(run, graph, tmp_path: Path) -> None:
    file, out = graph(two_branches(4, 3)), str(tmp_path / "out.json")
    waive = ["--waive", "NoDeadlock", "--waive", "CreditsBounded", "--reason", "run by hand", "--who", "A. Person"]
    result = run("check", file, "--machine", "grid-8x8", "--certificate", out, *waive)
    assert result.exit_code == 0
    assert "NoDeadlock          waived   by A. Person: run by hand" in result.stdout
    result = run("recheck", out, file, "--machine", "grid-8x8")
    assert result.exit_code == 0
    assert result.stdout.endswith("; waived: NoDeadlock, CreditsBounded\n")
    result = run("recheck", out, file, "--machine", "grid-8x8", "--no-waivers")
    assert (result.exit_code, result.stdout) == (1, "refused: NoDeadlock is not promised: it is waived\n")


def test_a_waiver_needs_a_reason_and_a_name(run, graph) -> None:
    result = run("check", graph(pipeline()), "--waive", "NoDeadlock")
    assert result.exit_code == 2
    assert "waiver of NoDeadlock: say why, and who says so" in result.stderr
    result = run("check", graph(pipeline()), "--reason", "none")
    assert result.exit_code == 2
    assert "--reason and --who go with --waive" in result.stderr


def test_the_same_function_as_a_reference(run, graph, tmp_path: Path) -> None:
    reference, out = graph(pipeline(), "reference.json"), str(tmp_path / "out.json")
    deeper = graph(pipeline(depth=3), "deeper.json")
    result = run("check", deeper, "--machine", "grid-8x8", "--reference", reference, "--certificate", out)
    assert result.exit_code == 0
    assert "SameFunction        held     equal in 2 rounds" in result.stdout
    result = run("recheck", out, deeper, "--machine", "grid-8x8")
    assert result.exit_code == 1
    assert run("recheck", out, deeper, "--machine", "grid-8x8", "--reference", reference).exit_code == 0
    other = graph(pipeline(5), "other.json")
    assert run("recheck", out, deeper, "--machine", "grid-8x8", "--reference", other).exit_code == 1


def test_another_function_than_the_reference(run, graph) -> None:
    made = pipeline()
    swapped = replace(made, stages=(*made.stages[:2], replace(made.stages[2], kind=replace(
        made.stages[2].kind, pattern=replace(made.stages[2].kind.pattern, offset=(3, 0),
                                             loops=(replace(made.stages[2].kind.pattern.loops[0], stride=(-1, 0)),))
    ))))  # fmt: skip
    result = run("check", graph(swapped), "--machine", "grid-8x8", "--reference", graph(made, "reference.json"))
    assert result.exit_code == 1
    assert "SameFunction: broken: 'y' is not what was promised" in result.stdout


# Input of any kind: one line, status 2, and soon.


def unusable(run, file: Path, message: str) -> None:
    result = run("check", str(file))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"error: {file}: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b"\x80\x81", "malformed"),
        (b"[" * 100_000, ""),
        (b'{"a":' * 100_000, ""),
        (to_json(pipeline())[:300], "truncated"),
        (b'{"tensors":[],"buffers":[],"groups":[],"stages":7}', "Expected `array`, got `int` - at `$.stages`"),
    ],
)
def test_what_is_no_graph(run, tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "graph.json"
    file.write_bytes(data)
    unusable(run, file, message)


def test_what_is_no_file(run, tmp_path: Path) -> None:
    unusable(run, tmp_path / "none.json", "there is no such file")
    unusable(run, tmp_path, "there is no such file")


def test_too_many_stages(run, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    stage = '{"kind":{"kind":"recv","group":0}}'
    file.write_text(f'{{"tensors":[],"buffers":[],"groups":[],"stages":[{",".join([stage] * 140_000)}]}}')
    unusable(run, file, "140000 stages; graphs of up to 131072 are checked")


def test_no_such_machine(run, graph) -> None:
    result = run("check", graph(pipeline()), "--machine", "none")
    assert result.exit_code == 2
    assert "none" in result.stderr


def test_ids_out_of_range(run, tmp_path: Path) -> None:
    for name, wrong in (
        ('"tensor":0', '"tensor":-1'),
        ('"outs":[0]', '"outs":[99999999999]'),
        ('"ins":[1]', '"ins":[-1]'),
    ):
        file = tmp_path / "graph.json"
        file.write_text(to_json(pipeline()).decode().replace(name, wrong, 1))
        result = run("check", str(file), "--machine", "grid-8x8")
        assert result.exit_code == 1
        assert "Remapped            broken" in result.stdout


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ('"extent":4', f'"extent":{2**40}'),
        ('"extent":4', f'"extent":{2**62}'),
        ('"depth":2', f'"depth":{2**62}'),
        ('"num_blocks":4', f'"num_blocks":{2**31}'),
        ('"shape":[4,4]', f'"shape":[{2**50},4]'),
        ('"shape":[4,4]', f'"shape":[{2**50},{2**50}]'),
        ('"box":[1,4]', f'"box":[{2**40},4]'),
        ('"stride":[1,0]', f'"stride":[{2**60},{-(2**60)}]'),
        ('"offset":[0,0]', f'"offset":[{-(2**63)},0]'),
        ('"offset":[0,0]', f'"offset":[{10**30},0]'),
        ('"chip":0', f'"chip":{2**60}'),
        ('"x":0', f'"x":{-(2**60)}'),
    ],
)
def test_huge_numbers_take_no_time(run, tmp_path: Path, name: str, wrong: str) -> None:
    text = to_json(pipeline()).decode()
    assert name in text
    for count in (1, -1):
        file = tmp_path / "graph.json"
        file.write_text(text.replace(name, wrong, count))
        started = time.process_time()
        result = run("check", str(file), "--machine", "grid-8x8")
        assert result.exit_code in (0, 1, 2, 3), result.output
        assert time.process_time() - started < 10


def test_many_stores_to_one_tensor_take_seconds(run, graph) -> None:
    """Of 3000 stores every two might meet: more pairs than are held against each other."""
    made = copies_of(*((f"x{i % 3}", part(i, i + 1), "y", part(i, i + 1)) for i in range(3000)), shape=(3000,))
    started = time.process_time()
    result = run("check", graph(made), "--machine", "grid-8x8")
    assert result.exit_code == 3
    assert "Covered             not decided  over 2097152 pairs of accesses to the same pieces" in result.stdout
    assert time.process_time() - started < 30


def test_a_tangle_of_many_stages_takes_seconds(run, graph) -> None:
    """Four hundred ways that are all one block too shallow, each by itself."""
    one = two_branches(4, 3)
    tensors, buffers, groups, stages, orders = [], [], [], [], []
    for number in range(60):
        to = len(buffers)

        def moved(buffer, to=to):
            return buffer + to

        first = len(stages)
        for stage in one.stages:
            kind = stage.kind
            for name, by in (("tensor", len(tensors)), ("multicast", len(groups)), ("group", len(groups))):
                if getattr(kind, name, None) is not None:
                    kind = replace(kind, **{name: getattr(kind, name) + by})
            stages.append(replace(stage, kind=kind).remap_buffers(moved))
        orders += [replace(e, before=e.before + first, after=e.after + first) for e in one.precedences]
        tensors += [replace(t, name=f"{t.name}{number}") for t in one.tensors]
        buffers += one.buffers
        groups += one.groups
    made = replace(one, tensors=tuple(tensors), buffers=tuple(buffers), groups=tuple(groups), stages=tuple(stages),
                   precedences=tuple(orders))  # fmt: skip
    started = time.process_time()
    result = run("check", graph(made), "--machine", "grid-8x8")
    assert result.exit_code == 1
    assert "make b0 4 blocks deep instead of 3; make b5 4 blocks deep instead of 3" in result.stdout
    assert time.process_time() - started < 60


def leaves(value, path=()):
    """Every number and string in a JSON value, with the way to it."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    elif isinstance(value, list):
        for key, below in enumerate(value):
            yield from leaves(below, (*path, key))
    else:
        yield path


def mangled(value, random: Random):
    """A copy of a JSON value with some leaves replaced, list entries doubled, dropped or swapped."""
    made = json.loads(json.dumps(value))
    for _ in range(random.choice([1, 1, 2, 4])):
        path = random.choice(list(leaves(made)))
        at = made
        for key in path[:-1]:
            at = at[key]
        old = at[path[-1]]
        if isinstance(old, int) and not isinstance(old, bool):
            at[path[-1]] = random.choice([old + 1, old - 1, 0, -1, 2 * old, 7, 10**6, 2**33, -(2**63), 2**63, 10**25])
        elif isinstance(at, list) and random.random() < 0.5:
            at.insert(path[-1], old)
        else:
            at[path[-1]] = random.choice(["", "sum", "f16", None, 3, [], {}, 1.5, True])
        if random.random() < 0.2 and made.get("stages"):
            stages = made["stages"]
            random.choice([stages.reverse, lambda s=stages: s.pop(random.randrange(len(s)))])()
            if not list(leaves(made)):
                break
    return made


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_mangled_graphs_give_an_answer(run, tmp_path: Path, first: int) -> None:
    """Held, broken, not decided, or one line that says why it can't be used: never a defect, and soon."""
    graphs = [json.loads(to_json(made)) for made in (
        pipeline(), two_branches(4, 4), chain_sum(), *(make() for make in SAMPLES.values())
    )]  # fmt: skip
    started = time.process_time()
    for seed in range(first, first + 60):
        random = Random(seed)
        file = tmp_path / "graph.json"
        file.write_text(json.dumps(mangled(random.choice(graphs), random)))
        machine = random.choice(["grid-8x8", "ktpu-v13p", "grid-2x4x4"])
        result = run("check", str(file), "--machine", machine)
        assert result.exit_code in (0, 1, 2, 3), f"seed {seed}: {result.output}"
        if result.exit_code == 2:
            assert result.stderr.count("\n") == 1, f"seed {seed}: {result.stderr}"
    assert time.process_time() - started < 60

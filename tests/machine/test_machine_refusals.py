"""Broken descriptions, one defect each in refusals.toml, with the whole message that people see."""

import tomllib
from pathlib import Path

import msgspec
import pytest
from machine_samples import OWN, linked

from meshwright.errors import MachineError
from meshwright.machine import MachineKeyError, from_json, load, loads, presets, to_json

REFUSED = tomllib.loads((Path(__file__).parent / "refusals.toml").read_text(encoding="utf-8"))


def test_the_sample_is_accepted_as_it_stands():
    assert loads(OWN).mesh_ids == (0, 1, 3)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_file_line_and_key(tmp_path, monkeypatch, name):
    case = REFUSED[name]
    assert case["old"] in OWN
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.toml").write_text(OWN.replace(case["old"], case["new"], 1), encoding="utf-8")
    with pytest.raises(MachineError) as caught:
        load("bench.toml")
    assert str(caught.value) == case["message"]


def refusal(call, *args, **kwargs):
    with pytest.raises(MachineError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_a_name_that_is_nearly_a_preset():
    assert refusal(load, "ktpu-v13") == (
        'no machine and no file is called "ktpu-v13" (did you mean "ktpu-v13p"?). Machines: grid-2x4x4, grid-8x8, '
        "ktpu-1, ktpu-v13p, ktpu-v13p-published. A file of your own is named by its path, such as ./mine.toml"
    )


def test_a_file_that_is_missing(tmp_path):
    missing = tmp_path / "mine.toml"
    assert refusal(load, missing) == (
        f'no machine and no file is called "{missing}". Machines: {", ".join(presets())}. A file of your own is '
        "named by its path, such as ./mine.toml"
    )


def test_a_folder_and_bytes_that_are_no_text(tmp_path):
    assert refusal(load, tmp_path) == f"{tmp_path}: can't be read: Is a directory"
    (tmp_path / "binary.toml").write_bytes(b'name = "\xff"')
    assert refusal(load, tmp_path / "binary.toml") == f"{tmp_path}/binary.toml: not UTF-8 text, so not TOML (byte 8)"


def test_json_is_refused_by_key():
    raw = msgspec.json.decode(to_json(load("ktpu-1")))
    raw["cluster"]["l1_banks"] = 0
    assert refusal(from_json, msgspec.json.encode(raw), "machine.json") == (
        "machine.json: cluster.l1_banks: expected a whole number >= 1, found 0"
    )
    assert refusal(from_json, b"{", "machine.json") == "machine.json: not JSON: Input data was truncated"
    assert refusal(from_json, b"[]", "machine.json") == "machine.json: machine: expected a table, found an array of 0"


def test_building_one_in_python_is_refused_by_key():
    with pytest.raises(MachineKeyError) as caught:
        linked([0, 1, 2], [(0, 1), (1, 2), (2, 0)], topology="chain")
    assert caught.value.key == ("link", 2, "between")
    two_rings = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    assert refusal(linked, [0, 1, 2, 3, 4, 5], two_rings, topology="ring") == (
        'topology: "ring", but the links make several rings. Add what is missing, or say topology = "chain"'
    )


def test_a_grid_of_meshes_refuses_what_is_not_next_to_it():
    at = {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}
    ring = [(0, 1), (1, 3), (3, 2), (2, 0)]
    assert linked([0, 1, 2, 3], ring, topology="grid2d", at=at).neighbours(0) == (1, 2)
    assert refusal(linked, [0, 1, 2, 3], [*ring, (0, 3)], topology="grid2d", at=at) == (
        'link[4].between: topology = "grid2d", but 0 at (0, 0) and 3 at (1, 1) are not next to each other'
    )
    assert refusal(linked, [0, 1], [], topology="grid2d", at={0: (0, 0), 1: (0, 0)}) == (
        "mesh[1].at: two meshes at (0, 0) of the grid"
    )
    assert refusal(linked, [0], [], topology="chain") == 'topology: "chain", but there is one mesh; say "one"'
    assert refusal(linked, [], [], topology="one") == "mesh: a machine has one mesh at least"

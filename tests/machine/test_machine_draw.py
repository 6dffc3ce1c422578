"""What `meshwright machines` prints, pinned as text in snapshots/."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from machine_samples import fabrics, linked
from rich.console import Console

from meshwright.machine import load, presets
from meshwright.machine.draw import describe, machines_table, picture, rate, size

SNAPSHOTS = Path(__file__).parent / "snapshots"


def check(name, text):
    """Equal to the snapshot; with MESHWRIGHT_UPDATE_SNAPSHOTS=1 the snapshot is written instead."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("MESHWRIGHT_UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", presets())
def test_presets(name):
    check(name, describe(load(name)))


def test_table():
    console = Console(width=120, record=True, file=open(os.devnull, "w"), legacy_windows=False)  # noqa: SIM115, PTH123
    console.print(machines_table())
    check("table", console.export_text())


def test_a_grid_of_meshes_stands_at_its_places():
    at = {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1), 4: (2, 1)}
    check("grid2d", picture(linked([0, 1, 2, 3, 4], [(0, 1), (0, 2), (2, 3), (3, 4)], topology="grid2d", at=at)))


def test_a_narrow_page_takes_a_chain_in_several_rows():
    check("narrow", picture(load("ktpu-v13p"), width=40))
    assert max(len(line) for line in picture(load("ktpu-v13p"), width=40).splitlines()[:-1]) <= 40


def test_a_missing_mesh_is_a_gap():
    check("gap", describe(load("ktpu-v13p").without_mesh(3)))


@given(fabrics)
def test_every_mesh_is_drawn_once(machine):
    text = picture(machine)
    words = text.replace("─", " ").split()
    drawn = [int(words[i + 1]) for i, word in enumerate(words) if word == "mesh" and words[i + 1].isdigit()]
    assert sorted(drawn) == sorted(machine.mesh_ids)


def test_sizes_and_rates():
    assert [size(n) for n in (5, 1024, 1536, 3 << 30, 1 << 40)] == ["5 bytes", "1 KiB", "1536 bytes", "3 GiB", "1 TiB"]
    assert [rate(r) for r in (5.0, 98e6, 3.2e9, 1500.0)] == ["5 B/s", "98 MB/s", "3.2 GB/s", "1.5 kB/s"]

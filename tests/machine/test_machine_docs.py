"""The reference page: its worked file loads and prints as shown, and every key has its row."""

import re
from pathlib import Path

import pytest
from machine_samples import OWN
from msgspec import inspect

from meshwright.machine import MachineSpec, load, loads, presets
from meshwright.machine.draw import describe, picture

PAGE = (Path(__file__).parent.parent.parent / "docs" / "machine.md").read_text(encoding="utf-8")


def keys_of(info):
    """Every key that a description may have, wherever it stands."""
    if isinstance(info, inspect.StructType):
        for field in info.fields:
            yield field.encode_name
            yield from keys_of(field.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from keys_of(member)
    elif isinstance(info, inspect.VarTupleType):
        yield from keys_of(info.item_type)


def test_every_key_is_on_the_page():
    keys = set(keys_of(inspect.type_info(MachineSpec)))
    assert len(keys) > 80
    assert {key for key in keys if not re.search(rf"\W{key}\W", PAGE[PAGE.index("## Every key") :])} == set()


def test_the_worked_file_is_the_one_that_is_tested_and_prints_as_shown():
    (worked,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert worked == OWN
    assert describe(loads(OWN)) in PAGE
    assert picture(load("ktpu-v13p")) in PAGE


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_on_the_page(name):
    assert f"| `{name}` |" in PAGE


def test_the_python_on_the_page():
    card = load("ktpu-v13p")
    assert card.mesh_ids == (0, 1, 3, 2)
    assert card.coords(0, "VC") == ((1, 0), (1, 4))
    assert card.chain_order([2, 3]) == (3, 2)
    assert card.path(0, 2) == (0, 1, 3, 2)
    assert card.global_addr(3, 0x100) == 0x3000000100

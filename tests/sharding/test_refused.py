"""Programs that are refused, one a file in `refused`, each with the whole message that it is refused with beside it.

`pytest tests/sharding/test_refused.py --update-messages` writes the messages anew, to be read in the diff.
"""

import runpy
from pathlib import Path

import pytest

from meshwright.errors import MeshwrightError

PROGRAMS = sorted((Path(__file__).parent / "refused").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_program_is_refused_with_this_message(program, request):
    with pytest.raises(MeshwrightError) as caught:
        runpy.run_path(str(program))
    assert isinstance(caught.value, (ValueError, TypeError, RuntimeError))
    found = f"{type(caught.value).__name__}: {caught.value}\n"
    expected = program.with_suffix(".txt")
    if request.config.getoption("--update-messages", default=False):
        expected.write_text(found, encoding="utf-8")
    assert found == expected.read_text(encoding="utf-8")


def test_every_message_has_its_program():
    assert len(PROGRAMS) > 80
    messages = (Path(__file__).parent / "refused").glob("*.txt")
    assert sorted(path.stem for path in messages) == [path.stem for path in PROGRAMS]


def test_programs_are_refused_before_anything_ran():
    """A refusal costs nothing: no piece was put, no graph was run by the call that is refused."""
    from meshwright.sharding import MeshGroup
    from sharding.samples import CARD

    group = MeshGroup.open(CARD)
    messages = set()
    for _ in range(2):
        with pytest.raises(MeshwrightError) as caught:
            group.split([[1.0] * 256] * 6, axis=0)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert all(device.sent == 0 and device.used == 0 for device in group.stats().devices.values())

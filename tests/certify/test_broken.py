"""Every obligation broken, in every way that has its own message: what is said, where, and what would help."""

from __future__ import annotations

import pytest

from certify.broken_graphs import BROKEN
from meshwright.certify import OBLIGATIONS, Verdict, Waiver, certify


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    case = BROKEN[name]
    certificate = certify(case.graph, case.machine, spans=case.spans)
    entry = certificate.entry(case.obligation)
    assert entry.verdict is Verdict.BROKEN
    assert entry.message == case.message
    assert entry.witness is not None
    assert entry.witness.change == case.change
    assert certificate.verdict is Verdict.BROKEN
    assert entry.evidence is None


@pytest.mark.parametrize("name", BROKEN)
def test_what_doesnt_rest_on_it_is_still_decided(name: str) -> None:
    """A fault breaks its own obligation; of the others only those that have no meaning without it say so."""
    case = BROKEN[name]
    certificate = certify(case.graph, case.machine, spans=case.spans)
    assert tuple(e.obligation for e in certificate.entries) == OBLIGATIONS
    for entry in certificate.entries:
        if entry.verdict is Verdict.NOT_DECIDED:
            assert entry.message


def test_every_obligation_has_a_broken_graph() -> None:
    """But for `CreditsBounded`: a firing order that went past a depth would be no order, and is not found."""
    assert set(OBLIGATIONS) - {case.obligation for case in BROKEN.values()} == {"CreditsBounded"}


def test_witnesses_name_places() -> None:
    """A stage, a buffer, a chip and a range of elements, wherever there is such a thing."""
    entry = certify(BROKEN["two stores in no order"].graph, BROKEN["two stores in no order"].machine).entry(
        "WrittenOnce"
    )
    assert entry.witness is not None
    assert entry.witness.stages == (1, 3)
    assert entry.witness.chips == (0,)
    assert (entry.witness.tensor, entry.witness.elements) == ("y", ((2, 5),))
    case = BROKEN["a FIFO one block too shallow under a multicast"]
    stuck = certify(case.graph, case.machine).entry("NoDeadlock").witness
    assert stuck is not None
    assert (stuck.stages, stuck.buffers, stuck.chips) == ((0, 5, 4, 3, 2), (0, 2, 3, 1), (0,))


def test_a_waiver_is_written_into_the_certificate() -> None:
    case = BROKEN["more stages than a round has commands"]
    waiver = Waiver("RoundFits", "dispatched in two rounds by hand", "A. Person")
    certificate = certify(case.graph, case.machine, [waiver])
    entry = certificate.entry("RoundFits")
    assert (entry.verdict, entry.waiver, entry.message) == (Verdict.WAIVED, waiver, case.message)
    assert certificate.verdict is Verdict.HELD
    assert "(waived by A. Person: dispatched in two rounds by hand)" in str(certificate)


def test_a_waiver_of_what_holds_changes_nothing() -> None:
    case = BROKEN["more stages than a round has commands"]
    certificate = certify(case.graph, case.machine, [Waiver("NoDeadlock", "looked at it", "A. Person")])
    assert certificate.entry("NoDeadlock").verdict is Verdict.HELD
    assert certificate.entry("NoDeadlock").waiver is None


@pytest.mark.parametrize(
    ("waiver", "message"),
    [
        (Waiver("Deadlock", "why not", "A. Person"), "^waiver of 'Deadlock': asked are Shapes, Ports, .*UnitPresent$"),
        (Waiver("NoDeadlock", " ", "A. Person"), "^waiver of NoDeadlock: say why, and who says so$"),
        (Waiver("NoDeadlock", "why not", ""), "^waiver of NoDeadlock: say why, and who says so$"),
    ],
)
def test_waivers_that_say_too_little(waiver: Waiver, message: str) -> None:
    case = BROKEN["one summand missing"]
    with pytest.raises(ValueError, match=message):
        certify(case.graph, case.machine, [waiver])


def test_what_is_given_has_to_be_there() -> None:
    case = BROKEN["a result with a gap"]
    with pytest.raises(ValueError, match=r"^given: there is no tensor 'q'; the graph has x, y$"):
        certify(case.graph, case.machine, given=["q"])
    assert certify(case.graph, case.machine, given=["y"]).entry("Covered").verdict is Verdict.HELD

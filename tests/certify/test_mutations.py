"""Faults put into sound graphs: the certificate can fail, each fault by the obligation that it belongs to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from meshwright.certify import MEANING, OBLIGATIONS, Verdict, certify, recheck
from meshwright.certify.mutation import KINDS, Answer, Kind, Mutant, complaints, every, judge, judged, mutants, rows
from meshwright.cli.app import app
from meshwright.cli.mutate import as_markdown, chosen
from meshwright.cli.mutation_subjects import subjects
from meshwright.errors import UsageError

SUBJECTS = {subject.name: subject for subject in subjects()}
PAGE = Path(__file__).parents[2] / "docs" / "certificate" / "mutations.md"
OWNERS = {kind.name: kind.belongs for kind in KINDS}


def pages_rows() -> list[list[str]]:
    """The cells of the table in the documentation."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def sampled() -> list[tuple[Kind, str]]:
    """Each kind with two graphs that it applies to: other ones for each kind, so that all graphs come up."""
    found: list[tuple[Kind, str]] = []
    for number, kind in enumerate(KINDS):
        fitting = [name for name, subject in SUBJECTS.items() if mutants(kind, subject, 1)]
        found += [
            (kind, name)
            for name in dict.fromkeys((fitting[number % len(fitting)], fitting[(7 * number + 3) % len(fitting)]))
        ]
    return found


@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_is_said_of_a_sound_graph(name: str) -> None:
    assert complaints(SUBJECTS[name]) == []


@pytest.mark.parametrize("name", [n for n in SUBJECTS if n.startswith(("product", "chain"))])
def test_a_product_needs_no_vector_core(name: str) -> None:
    subject = SUBJECTS[name]
    meshes = subject.machine.meshes
    bare = tuple(msgspec.structs.replace(m, units=tuple(u for u in m.units if u.type != "VC")) for m in meshes)
    machine = msgspec.structs.replace(subject.machine, meshes=bare)
    certificate = certify(subject.graph, machine)
    assert certificate.verdict is Verdict.HELD
    recheck(certificate, subject.graph, machine)


def test_a_sample_of_mutants() -> None:
    found = [j for kind, name in sampled() for j in judged([(kind, SUBJECTS[name])], cap=1)]
    assert len(found) >= 1.5 * len(KINDS)
    assert [str(j) for j in found if j.answer is Answer.MISSED] == []
    assert len({j.subject for j in found}) >= 20
    for judgement in found:
        if judgement.answer is Answer.CAUGHT:
            assert judgement.by in OWNERS[judgement.kind]


def test_the_same_mutants_each_time() -> None:
    for kind in KINDS:
        for subject in list(SUBJECTS.values())[::7]:
            first, again = (mutants(kind, subject) for _ in range(2))
            assert [(m.place, m.graph) for m in first] == [(m.place, m.graph) for m in again]
            assert len({m.place for m in first}) == len(first) <= 4
            assert all(m.graph != subject.graph or m.machine != subject.machine or m.spans for m in first)


def test_a_fault_that_nothing_is_said_of_is_missed() -> None:
    """The judge can fail as well: another result that is said to belong to `NoDeadlock`, and a sound graph."""
    subject = SUBJECTS["product by columns"]
    kind = Kind("elsewhere", ("NoDeadlock",), next(k for k in KINDS if k.name == "a load one element off").make)
    wrong = mutants(kind, subject, 1)[0]
    misplaced = judge(kind, subject, msgspec.structs.replace(wrong, belongs=("NoDeadlock",)))
    assert (misplaced.answer, "NoDeadlock held" in misplaced.why) == (Answer.MISSED, True)
    same = Mutant("nowhere", ("NoDeadlock",), subject.graph, subject.machine)
    assert (judge(kind, subject, same).answer, judge(kind, subject, same).by) == (Answer.EQUIVALENT, "bits")


def test_every_obligation_has_a_kind() -> None:
    """But for `CreditsBounded`: a firing order that went past a depth would be no order, and is not found."""
    owned = {name for kind in KINDS for name in kind.belongs}
    assert {*OBLIGATIONS, MEANING} - owned == {"CreditsBounded"}


def test_the_page_has_every_kind() -> None:
    """That its numbers are those of today, `test_the_page_is_current` says, which takes minutes."""
    cells = pages_rows()
    assert [(c[0], c[1]) for c in cells] == [(kind.name, ", ".join(kind.belongs)) for kind in KINDS]
    assert {c[8] for c in cells} == {"0"}
    assert [name for name in SUBJECTS if f"{name}" not in PAGE.read_text()] == []


@pytest.mark.parametrize("name", ["a pool without its combine", "sums that nobody takes out", "a second sender"])
def test_some_rows_of_the_page(name: str) -> None:
    kinds = chosen(name)
    (row,) = rows(kinds, judged(list(every(kinds, list(SUBJECTS.values())))))
    assert as_markdown([row]).splitlines()[2] in PAGE.read_text().splitlines()


@pytest.mark.long
def test_the_page_is_current() -> None:
    table = rows(KINDS, judged(list(every(KINDS, list(SUBJECTS.values())))))
    assert sum(row.missed for row in table) == 0
    assert sum(row.mutants for row in table) >= 300
    assert sum(count for row in table for _, count in row.when_run) <= 3
    caught = {name for row in table for name, _ in (*row.caught, *row.earlier)}
    assert {*OBLIGATIONS, MEANING} - caught == {"CreditsBounded"}
    assert as_markdown(table) in PAGE.read_text()


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["mutate", "--kind", "takes out"])
    assert result.exit_code == 0
    assert "6 mutants of 1 kind: 6 caught, 0 caught earlier, 0 equivalent, 0 when run, 0 missed\n" in result.stdout
    data = msgspec.json.decode(CliRunner().invoke(app, ["mutate", "--kind", "takes out", "--json"]).stdout)
    assert [row["kind"] for row in data["rows"]] == ["sums that nobody takes out"]
    assert (data["missed"], data["complaints"]) == ([], [])


def test_a_kind_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"^--kind gremlin: no kind of fault is called like that; leave it out to see"):
        chosen("gremlin")

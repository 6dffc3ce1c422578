"""What the certificate says of a mutant: caught by what its fault belongs to, equivalent, or missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from meshwright.certify.certificate import MEANING, OBLIGATIONS, Certificate, Entry, FieldAgreement, Verdict
from meshwright.certify.checker import recheck
from meshwright.certify.indices import ranges_of
from meshwright.certify.mutation.subject import Kind, Mutant, Subject, places
from meshwright.certify.obligations import certify
from meshwright.certify.pieces import join_logical
from meshwright.certify.real_check import TOLERANCE
from meshwright.certify.systems import RealSystem, draw_inputs, fold, split_inputs, tensor_named
from meshwright.errors import MeshwrightError
from meshwright.evaluate.arithmetic import Array
from meshwright.evaluate.walk import evaluate
from meshwright.ir.graph import Graph

CAP: Final = 4
"""Mutants of one kind made of one graph: spread evenly over the places where it applies."""
_SEED: Final = 20


class Answer(StrEnum):
    """What came of a mutant."""

    CAUGHT = "caught"
    """An obligation that the fault belongs to is broken."""
    EARLIER = "earlier"
    """An earlier obligation is broken, without which the one it belongs to has no meaning."""
    EQUIVALENT = "equivalent"
    """Everything holds, and the graph computes the same: in residues and bit for bit in float64 (by "bits"); or up to
    float64's rounding, where it sums in another order or a law of exp makes it the same (by "reals")."""
    WHEN_RUN = "when run"
    """The obligation it belongs to can't be decided before tokens are known, for a store looks its positions up, so
    nothing is promised; and a run is refused for that very obligation."""
    MISSED = "missed"
    """None of these."""


class Judgement(Struct, frozen=True):
    """One mutant: where the fault was put, the answer, which obligations are broken, and more for one that is missed.

    by: the obligation that caught it, or the earlier one.
    """

    kind: str
    subject: str
    place: str
    answer: Answer
    by: str = ""
    broken: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        broken = f" (broken: {', '.join(self.broken)})" if self.broken else ""
        return f"{self.kind}, {self.subject}, {self.place}: {self.answer.value}{broken} {self.why}".rstrip()


class Complaint(Struct, frozen=True):
    """An obligation that doesn't hold on a graph without a fault."""

    subject: str
    obligation: str
    message: str


Progress = Callable[[int, int], None]
"""Called with (mutants judged, mutants in all)."""


def complaints(subject: Subject) -> list[Complaint]:
    """What is said of a graph without a fault, its pieces in DRAM placed and itself as the reference."""
    spans = places(subject.graph, subject.machine)
    certificate = certify(subject.graph, subject.machine, reference=subject.graph, spans=spans)
    return [
        Complaint(subject.name, entry.obligation, entry.message)
        for entry in certificate.entries
        if entry.verdict is not Verdict.HELD
    ]


def mutants(kind: Kind, subject: Subject, cap: int = CAP) -> list[Mutant]:
    """At most `cap` mutants of one kind, spread evenly over all places, the same ones each time."""
    found = list(kind.make(subject))
    count = min(cap, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def judged(pairs: Sequence[tuple[Kind, Subject]], cap: int = CAP, progress: Progress | None = None) -> list[Judgement]:
    """Every mutant of these kinds and subjects."""
    made = [(kind, subject, mutant) for kind, subject in pairs for mutant in mutants(kind, subject, cap)]
    found: list[Judgement] = []
    for number, (kind, subject, mutant) in enumerate(made, start=1):
        found.append(judge(kind, subject, mutant))
        if progress is not None:
            progress(number, len(made))
    return found


def judge(kind: Kind, subject: Subject, mutant: Mutant) -> Judgement:
    """What the certificate says of one mutant. Meaning is asked only where nothing that it belongs to is broken."""
    certificate = certify(mutant.graph, mutant.machine, spans=mutant.spans)
    answer = _answer(certificate, mutant)
    if answer is None or answer[0] is Answer.MISSED:
        certificate = certify(mutant.graph, mutant.machine, reference=subject.graph, spans=mutant.spans)
        answer = _answer(certificate, mutant)
    broken = tuple(e.obligation for e in certificate.entries if e.verdict is Verdict.BROKEN)
    why = ""
    if answer is None:
        by, why = _compared(certificate, subject, mutant)
        answer = (Answer.EQUIVALENT if by else Answer.MISSED), by
    elif answer[0] is Answer.WHEN_RUN and not (why := _refused(subject, mutant, answer[1])):
        answer = Answer.MISSED, ""
    if answer[0] is Answer.MISSED:
        why = why or _said(certificate, mutant)
    return Judgement(kind.name, subject.name, mutant.place, *answer, broken, why)


def _answer(certificate: Certificate, mutant: Mutant) -> tuple[Answer, str] | None:
    """The answer, or None where everything is held."""
    entries = {entry.obligation: entry for entry in certificate.entries}
    for name in mutant.belongs:
        if name in entries and entries[name].verdict is Verdict.BROKEN:
            return Answer.CAUGHT, name
    for name in mutant.belongs:
        cause = _cause(name, entries)
        if cause:
            return Answer.EARLIER, cause
    if MEANING in entries and all(e.verdict is Verdict.HELD or _by_a_law(e) for e in entries.values()):
        return None
    for name in mutant.belongs:
        entry = entries.get(name)
        if entry is not None and entry.verdict is Verdict.NOT_DECIDED and "looks its positions up" in entry.message:
            return Answer.WHEN_RUN, name
    return Answer.MISSED, ""


def _cause(name: str, entries: Mapping[str, Entry]) -> str:
    """The broken obligation for want of which one couldn't be asked; nothing where it was asked."""
    seen: set[str] = set()
    while name in entries and name not in seen:
        seen.add(name)
        entry = entries[name]
        if entry.verdict is not Verdict.NOT_DECIDED:
            return name if entry.verdict is Verdict.BROKEN else ""
        name = entry.message.split(" is ", 1)[0]
    return ""


def _by_a_law(entry: Entry) -> bool:
    """Whether graphs differ on residues alone."""
    undecided = entry.obligation == MEANING and entry.verdict is Verdict.NOT_DECIDED
    return undecided and "agree in real arithmetic" in entry.message


def _said(certificate: Certificate, mutant: Mutant) -> str:
    asked = [e for e in certificate.entries if e.obligation in mutant.belongs or e.verdict is not Verdict.HELD]
    return "; ".join(f"{e.obligation} {e.verdict.value}: {e.message}"[:400] for e in asked)


def _compared(certificate: Certificate, subject: Subject, mutant: Mutant) -> tuple[str, str]:
    """In what a mutant on which everything holds is the same, "bits" or "reals"; or nothing, and why it isn't."""
    try:
        if certificate.verdict is Verdict.HELD:
            recheck(certificate, mutant.graph, mutant.machine, same_function=_decided_just_now)
        names = _outputs(subject.graph)
        expected, found = (_evaluated(graph, subject.graph, names) for graph in (subject.graph, mutant.graph))
    except MeshwrightError as error:
        return "", f"everything holds, and {error}"
    same = "bits" if certificate.verdict is Verdict.HELD else "reals"
    for name in names:
        for a, b in zip(expected[name], found[name], strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE):
                return "", f"everything holds, and {name!r} has other values in float64"
            same = same if a.tobytes() == b.tobytes() else "reals"
    return same, ""


def _refused(subject: Subject, mutant: Mutant, obligation: str) -> str:
    """What a run of the mutant is refused with, where that is for want of `obligation`; else nothing."""
    try:
        _evaluated(mutant.graph, subject.graph, _outputs(subject.graph))
    except MeshwrightError as error:
        return str(error) if f"{obligation}: " in str(error) else ""
    return ""


def _decided_just_now(_graph: Graph, _evidence: FieldAgreement) -> bool:
    return True


def _outputs(graph: Graph) -> list[str]:
    return [graph.tensors[t].name for t in graph.outputs()]


def _evaluated(graph: Graph, reference: Graph, names: Sequence[str]) -> dict[str, tuple[Array, ...]]:
    """The results in float64, on inputs that no round of residues has seen: pieces, or contributions folded."""
    system = RealSystem(_SEED)
    inputs = {reference.tensors[t].name: reference.tensors[t] for t in reference.inputs()}
    drawn = draw_inputs(system, inputs, ranges_of(inputs, {}, reference, reference, {}))
    pieces = evaluate(graph, split_inputs(system, graph, drawn, {}), system.arithmetic, names)
    found: dict[str, tuple[Array, ...]] = {}
    for name in names:
        tensor = tensor_named(graph, name)
        whole = join_logical(tensor, pieces[name], partial(fold, system, tensor.format))
        found[name] = (np.asarray(whole),)
        if all(spec.partial is None for spec in tensor.specs):
            found[name] += tuple(np.asarray(piece) for piece in pieces[name])
    return found


class Row(Struct, frozen=True):
    """One kind in the table: how many mutants, what caught them, how many are the same graph, and what was missed."""

    kind: str
    belongs: tuple[str, ...]
    graphs: int
    mutants: int
    caught: tuple[tuple[str, int], ...]
    earlier: tuple[tuple[str, int], ...]
    equivalent: tuple[tuple[str, int], ...]
    when_run: tuple[tuple[str, int], ...]
    missed: int


def rows(kinds: Sequence[Kind], judgements: Sequence[Judgement]) -> tuple[Row, ...]:
    """The table, in the order of the kinds."""
    return tuple(_row(kind, [j for j in judgements if j.kind == kind.name]) for kind in kinds)


def _row(kind: Kind, mine: Sequence[Judgement]) -> Row:
    def by(answer: Answer) -> tuple[tuple[str, int], ...]:
        names = [j.by for j in mine if j.answer is answer]
        return tuple((name, names.count(name)) for name in (*OBLIGATIONS, MEANING, "bits", "reals") if name in names)

    return Row(
        kind.name,
        kind.belongs,
        len({j.subject for j in mine}),
        len(mine),
        by(Answer.CAUGHT),
        by(Answer.EARLIER),
        by(Answer.EQUIVALENT),
        by(Answer.WHEN_RUN),
        sum(j.answer is Answer.MISSED for j in mine),
    )


def every(kinds: Sequence[Kind], subjects: Sequence[Subject]) -> Iterator[tuple[Kind, Subject]]:
    """Each kind with each subject."""
    return ((kind, subject) for kind in kinds for subject in subjects)

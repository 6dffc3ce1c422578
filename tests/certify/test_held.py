"""Everything holds on the graphs that the project makes, and its evidence can be followed."""

from __future__ import annotations

from certify.hand_made import CARD, GRID, chain_sum, multicast, on_partials, pipeline, two_branches
from certify.project_graphs import Named, kernels, plans
from meshwright.certify import Verdict, certify, from_json, recheck, to_json
from meshwright.certify.certificate import FiringOrder
from meshwright.ir.expression import Operand
from meshwright.ir.pool import Pool
from meshwright.ir.spec import PARTIAL, Spec


def holds(case: Named) -> None:
    name, graph, machine = case
    certificate = certify(graph, machine)
    assert certificate.verdict is Verdict.HELD, f"{name}\n{certificate}"
    assert from_json(to_json(certificate)) == certificate
    recheck(certificate, graph, machine, allow_waivers=False)


def test_kernels() -> None:
    for case in kernels():
        holds(case)


def test_plans() -> None:
    for case in plans():
        holds(case)


def test_hand_made() -> None:
    """The sound graph beside each kind of broken one."""
    for name, graph, machine in [
        ("pipeline", pipeline(), GRID),
        ("branches", two_branches(4, 4), GRID),
        ("multicast", multicast(8, 8), GRID),
        ("chain", chain_sum(), CARD),
        ("star", chain_sum((0, 1, 3), [(0, 1), (2, 1)], drain=1), CARD),
        ("twice", on_partials(Operand(0) * 2.0, result=PARTIAL), CARD),
        ("maximum", on_partials(Operand(0) * 2.0, Pool.MAX, Spec(partial=Pool.MAX)), CARD),
        ("one factor partial", on_partials(Operand(0) * Operand(1), others=(Spec(),), result=PARTIAL), CARD),
        ("two partials", on_partials(Operand(0) - Operand(1), others=(PARTIAL,), result=PARTIAL), CARD),
    ]:
        holds((name, graph, machine))


def test_evidence_stays_short() -> None:
    """However often a loop turns."""
    sizes = []
    for blocks in (1000, 1 << 30):
        certificate = certify(pipeline(blocks), GRID)
        assert certificate.entry("NoDeadlock").verdict is Verdict.HELD
        order = certificate.entry("NoDeadlock").evidence
        assert isinstance(order, FiringOrder)
        assert sum(part.times * sum(run.steps for run in part.runs) for part in order.parts) == 3 * blocks
        sizes.append(len(to_json(certificate)))
    assert sizes[1] - sizes[0] < 200


def test_the_certificate_prints() -> None:
    text = str(certify(two_branches(4, 3), GRID))
    assert text.startswith("broken: graph sha256:")
    assert "NoDeadlock          broken       5 stages wait for each other:" in text
    assert "to change: make b0 4 blocks deep instead of 3" in text

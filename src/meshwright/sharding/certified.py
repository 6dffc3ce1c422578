"""The certificate of a plan's graph; a plan that has none is not run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshwright.certify import Certificate, CertificateError, Verdict, Waiver, certify
from meshwright.ir.graph import Graph
from meshwright.machine import MachineSpec
from meshwright.sharding.lower import graph_of
from meshwright.sharding.steps import Steps


def certificate_of(plan: Steps, waivers: Sequence[Waiver] = ()) -> Certificate:
    """What can be promised of the plan's graph on its machine; found once for plans that differ only in their values.

    Raises what `graph_of` does, and `CertificateError` for a waiver of what isn't asked.
    """
    steps = Steps(plan.machine, plan.given, plan.slots, plan.steps, plan.into)
    try:
        return _known(steps, tuple(waivers))
    except TypeError:  # A kernel of one's own that has no hash.
        return certify(graph_of(steps), steps.machine, waivers)


@lru_cache(maxsize=256)
def _known(steps: Steps, waivers: tuple[Waiver, ...]) -> Certificate:
    return certify(graph_of(steps), steps.machine, waivers)


def require_certified(plan: Steps, waivers: Sequence[Waiver] = ()) -> Certificate:
    """The plan's certificate; `CertificateError` with each obligation's message where one is broken or not decided."""
    certificate = certificate_of(plan, waivers)
    open_ = [e for e in certificate.entries if e.verdict in (Verdict.BROKEN, Verdict.NOT_DECIDED)]
    if open_:
        lines = [f"{e.obligation} is {e.verdict.value}: {e.message}" for e in open_]
        raise CertificateError(
            "this plan's graph is not certified, so it is not run:\n  " + "\n  ".join(lines) + "\n"
            "Change the plan, or waive an obligation by name, with a reason: group.run(plan, waivers=[Waiver(...)])"
        )
    return certificate


def certify_plan(
    what: Steps | Graph, machine: MachineSpec | None = None, waivers: Sequence[Waiver] = ()
) -> Certificate:
    """The certificate of a plan, or of a stage graph on a machine.

    Raises `TypeError` for a graph without a machine, and what `certify` and `graph_of` raise.
    """
    if isinstance(what, Graph):
        if machine is None:
            raise TypeError("certify(graph) needs a machine to hold it against: certify(graph, machine)")
        return certify(what, machine, waivers)
    return certificate_of(what, waivers)

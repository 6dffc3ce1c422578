"""What the certificate says of the sample graphs: everything holds that does not depend on what tokens choose."""

import pytest
from tests.kernels.multicast_machines import line, places, ring
from tests.kernels.multicast_samples import KERNELS, sample_graphs, sample_machines

from meshwright import targets
from meshwright.certify import CertificateError, Verdict, certify, recheck
from meshwright.ir.formats import ElementType as E
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.grid import Route, all_gather, all_reduce, multicast_matmul
from meshwright.kernels.matmul import MatrixProduct

GRAPHS, MACHINES = sample_graphs(), sample_machines()
ROUTED = {"ReadAfterWrite", "WrittenOnce"}


@pytest.mark.parametrize("name", GRAPHS)
def test_sample_graphs_are_certified(name):
    certificate = certify(GRAPHS[name], MACHINES[name])
    verdicts = {entry.obligation: entry.verdict for entry in certificate.entries}
    # Where a token's results go is decided by its scores; the evaluator asks when it runs.
    open_ = ROUTED if name == "experts" else set()
    assert {o for o, verdict in verdicts.items() if verdict is not Verdict.HELD} == open_
    assert all(verdicts[o] is Verdict.NOT_DECIDED for o in open_)
    if open_:
        with pytest.raises(CertificateError):
            recheck(certificate, GRAPHS[name], MACHINES[name])
    else:
        recheck(certificate, GRAPHS[name], MACHINES[name])


@pytest.mark.parametrize("name", ["matmul", "matmul-ragged", "matmul-shallow", "matmul-spill"])
def test_a_multicast_product_is_the_product(name):
    machine, _, operands = KERNELS[name]
    reference = graph_alone(MatrixProduct(), targets.placement(machine, 0), operands)
    certificate = certify(GRAPHS[name], machine, reference=reference)
    assert {e.verdict for e in certificate.entries} == {Verdict.HELD}


def test_an_epilogue_too_many_is_another_function():
    machine, _, operands = KERNELS["matmul-shallow"]
    place = targets.placement(machine, 0)
    other = graph_alone(multicast_matmul(epilogue=lambda x: x * 2.0), place, operands)
    reference = graph_alone(MatrixProduct(), place, operands)
    certificate = certify(other, machine, reference=reference)
    broken = [e.obligation for e in certificate.entries if e.verdict is Verdict.BROKEN]
    assert broken == ["SameFunction"]


@pytest.mark.parametrize("build", [all_gather, all_reduce])
@pytest.mark.parametrize("make", [line, ring])
def test_collectives_of_sixteen_chips_are_certified(build, make):
    machine = make(16, 2, 1)
    certificate = certify(build(Route.along(machine), places(machine), (16, 3), E.F32), machine)
    assert {e.verdict for e in certificate.entries} == {Verdict.HELD}

"""A plan is run only if its graph is certified."""

import msgspec
import numpy as np
import pytest

import meshwright as mw
from meshwright import kernels
from meshwright.certify import CertificateError, Verdict, Waiver
from meshwright.kernels.elementwise import Elementwise
from meshwright.sharding.certified import certificate_of


class Deep(Elementwise, frozen=True):
    """An elementwise kernel whose input FIFO at every site is a block too large for the vector core."""

    def emit(self, builder, placement, operands, result):
        stores = super().emit(builder, placement, operands, result)
        for index, buffer in enumerate(builder._buffers):
            if buffer.block:
                builder._buffers[index] = msgspec.structs.replace(buffer, depth=4096)
        return stores


@pytest.fixture
def group():
    return mw.MeshGroup.open("ktpu-v13p")


def test_every_obligation_of_an_ordinary_plan_is_held(group):
    x = group.split(np.ones((8, 64)), axis=0)
    plan = group.plan_each(kernels.gelu, x)
    certificate = plan.certificate()
    assert certificate.verdict is Verdict.HELD
    assert mw.certify(plan) == certificate
    assert mw.certify(plan.graph(), group.machine) == certificate


def test_plans_that_differ_in_their_values_share_a_certificate(group):
    first, second = (group.plan_each(kernels.gelu, group.copy(np.full((8, 64), v))) for v in (1.0, 2.0))
    assert certificate_of(first) is certificate_of(second)


def test_a_plan_that_is_not_certified_is_not_run(group):
    deep = Deep("deep", kernels.gelu.expr, 1)
    plan = group.plan_each(deep, group.copy(np.ones((8, 64))))
    with pytest.raises(CertificateError) as caught:
        group.run(plan)
    message = str(caught.value)
    assert message.startswith("this plan's graph is not certified, so it is not run:\n  BufferFits is broken: ")
    assert message.endswith(
        "Change the plan, or waive an obligation by name, with a reason: group.run(plan, waivers=[Waiver(...)])"
    )
    assert group.stats().graphs_run == 0


def test_a_waiver_is_written_into_the_certificate_and_lets_the_plan_run(group):
    deep = Deep("deep", kernels.gelu.expr, 1)
    x = group.copy(np.ones((8, 64)))
    plan = group.plan_each(deep, x)
    waiver = Waiver("BufferFits", "the depth is stated for a core with more memory", "tests")
    entry = plan.certificate([waiver]).entry("BufferFits")
    assert entry.verdict is Verdict.WAIVED
    assert entry.waiver == waiver
    assert np.array_equal(group.run(plan, waivers=[waiver]).numpy(), group.each(kernels.gelu, x).numpy())


def test_a_waiver_of_what_is_not_asked_is_refused(group):
    plan = group.plan_each(kernels.gelu, group.copy(np.ones((8, 64))))
    with pytest.raises(CertificateError, match="NoSuchThing"):
        group.run(plan, waivers=[Waiver("NoSuchThing", "a reason", "tests")])


def test_a_graph_needs_its_machine(group):
    plan = group.plan_each(kernels.gelu, group.copy(np.ones((8, 64))))
    with pytest.raises(TypeError, match="a machine"):
        mw.certify(plan.graph())

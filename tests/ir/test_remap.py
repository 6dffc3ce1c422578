"""Renaming the buffers of a stage: all of them, wherever it names them."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir.random_records import stages
from ir.samples import SAMPLES
from meshwright.ir.ids import BufferId
from meshwright.ir.operation import Matmul
from meshwright.ir.pattern import Affine, Gather
from meshwright.ir.records import Compute, Load, Stage, Store

quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
# Injective, and out of the range (0 to 9) of the ids that the random stages name.
renamings = st.permutations(range(100, 110)).map(lambda to: {BufferId(i): BufferId(n) for i, n in enumerate(to)})


def named(stage: Stage) -> list[int]:
    """Every buffer that a stage names, found in its written form by the names of the fields."""
    found = [*stage.ins, *stage.outs]
    written = msgspec.to_builtins(stage.kind)
    for holder in (written.get("op", {}), written.get("pattern", {})):
        found += [holder[field] for field in ("bias", "spill", "index") if isinstance(holder.get(field), int)]
    return found


@quick
@given(stages, renamings)
def test_no_stage_keeps_an_old_name(stage: Stage, to: dict[BufferId, BufferId]) -> None:
    renamed = stage.remap_buffers(to.__getitem__)
    assert named(renamed) == [to[BufferId(b)] for b in named(stage)]
    assert sorted([*renamed.ins, *renamed.outs, *renamed.hidden()]) == sorted(named(renamed))


@quick
@given(stages, renamings, renamings)
def test_renaming_twice_is_renaming_by_the_composition(
    stage: Stage, first: dict[BufferId, BufferId], then: dict[BufferId, BufferId]
) -> None:
    second = {BufferId(100 + i): n for i, n in then.items()}
    twice = stage.remap_buffers(first.__getitem__).remap_buffers(second.__getitem__)
    assert twice == stage.remap_buffers(lambda b: second[first[b]])


@quick
@given(stages, renamings)
def test_only_names_change(stage: Stage, to: dict[BufferId, BufferId]) -> None:
    assert stage.remap_buffers(lambda b: b) == stage
    back = {n: b for b, n in to.items()}
    assert stage.remap_buffers(to.__getitem__).remap_buffers(back.__getitem__) == stage


def test_each_hidden_name_is_renamed() -> None:
    def far(b: BufferId) -> BufferId:
        return BufferId(b + 100)

    gather = Gather(Affine((0,), (2,)), 0, BufferId(3))
    for kind in (Load(0, gather, 1), Store(0, gather)):
        assert Stage(kind).remap_buffers(far).hidden() == (103,)
    matmul = Stage(Compute(Matmul((1, 1, 1), 1, bias=BufferId(4), spill=BufferId(5))), (0, 1), (2,))
    renamed = matmul.remap_buffers(far)
    assert (renamed.ins, renamed.outs, renamed.hidden()) == ((100, 101), (102,), (104, 105))
    assert renamed.takes() == (100, 101, 104)


def test_roles() -> None:
    roles = {type(s.kind).__name__: s.role() for make in SAMPLES.values() for s in make().stages}
    assert roles == {
        "Load": "reader",
        "Recv": "reader",
        "Compute": "compute",
        "Store": "writer",
        "AllReduce": "link",
        "Scalar": "scalar",
    }

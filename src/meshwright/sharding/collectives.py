"""Collectives as plans: every byte moves from a mesh to a neighbour, and the plan says so before anything runs.

Partials that are in DRAM are folded on vector units, in rank order from both ends towards the rank that
collects. A mesh without vector units passes on what arrives together with its own. Along a grid axis with one rank
nothing moves: a collective then gives the same elements under the spec that it promises.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.lines import Line, lines, neighbouring_lines, require_axis, without_axis
from meshwright.sharding.plan import Plan
from meshwright.sharding.steps import Copy, Ref
from meshwright.sharding.value import Ranks, Sharded

_NAMES = ("value",)


def plan_to_one(machine: MachineSpec, value: Sharded, root: int, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded onto the rank at position `root` of each line along a grid axis, converging from both ends.

    Raises `SplitError` unless the value is partial along that axis, `PlacementError` where ranks aren't neighbours.
    """
    what = "reduce"
    _require(what, value, along, "partial")
    count = value.ranks.grid[along]
    if not 0 <= root < count:
        raise SplitError(f"reduce(root={root}): {value} has ranks 0 to {count - 1} along grid axis {along}")
    pool = value.specs[along].partial or Pool.SUM
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    every = neighbouring_lines(machine, what, value.ranks, along)
    left = without_axis(value.ranks, along, [line[root] for line in every])
    specs = (*value.specs[:along], *value.specs[along + 1 :]) or (COPIED,)
    into = build.slot(pool.value, value.shaped, specs, left)
    for number, ranks in enumerate(every):
        line = Line(build, value.meshes, ranks)
        line.place(line.folded([Ref(0, rank) for rank in ranks], pool, root), Ref(into, number))
    return build.plan(left, into, f"{value.specs[along]} folded onto one rank, neighbour to neighbour")


def plan_all_reduce(machine: MachineSpec, value: Sharded, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded towards the middle of each line and copied back out to all of it."""
    what = "all_reduce"
    _require(what, value, along, "partial")
    pool = value.specs[along].partial or Pool.SUM
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    into = build.slot(pool.value, value.shaped, _changed(value, along, COPIED), value.ranks)
    for ranks in neighbouring_lines(machine, what, value.ranks, along):
        line = Line(build, value.meshes, ranks)
        root = line.middle()
        total = line.folded([Ref(0, rank) for rank in ranks], pool, root)
        line.spread(total, root, lambda at, ref, line=line: line.place(ref, Ref(into, line.ranks[at])))
    return build.plan(value.ranks, into, f"{value.specs[along]} folded towards the middle, then copied to all")


def plan_reduce_scatter(machine: MachineSpec, value: Sharded, axis: int, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded slice by slice, each slice of `axis` onto the rank that will hold it."""
    what = "reduce_scatter"
    _require(what, value, along, "partial")
    _require_cut(what, value, axis, along)
    pool = value.specs[along].partial or Pool.SUM
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    into = build.slot(pool.value, value.shaped, _changed(value, along, Spec.on(axis)), value.ranks)
    for ranks in neighbouring_lines(machine, what, value.ranks, along):
        line = Line(build, value.meshes, ranks)
        for position, owner in enumerate(ranks):
            slices = [line.sliced(Ref(0, rank), axis, position, rank) for rank in ranks]
            line.place(line.folded(slices, pool, position), Ref(into, owner))
    return build.plan(value.ranks, into, f"{value.specs[along]} folded slice by slice onto its rank")


def plan_all_gather(machine: MachineSpec, value: Sharded, along: int, hosts: Sequence[int]) -> Plan:
    """Every rank's slice copied to all ranks of its line."""
    what = "all_gather"
    _require(what, value, along, "split")
    axis = value.specs[along].axis
    if axis is not None:
        _outer_first(what, value, axis, along)
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    into = build.slot("gathered", value.shaped, _changed(value, along, COPIED), value.ranks)
    for ranks in neighbouring_lines(machine, what, value.ranks, along):
        line = Line(build, value.meshes, ranks)
        for position, rank in enumerate(ranks):
            line.spread(
                Ref(0, rank),
                position,
                lambda at, ref, line=line, position=position: line.place(
                    ref, Ref(into, line.ranks[at]), axis, position
                ),
            )
    return build.plan(value.ranks, into, f"{value.specs[along]}: every slice copied to every rank, hop by hop")


def plan_broadcast(machine: MachineSpec, value: Sharded, ranks: Ranks) -> Plan:
    """A value that is on one rank of every line along some grid axes, copied to all ranks of those lines.

    That is what `reduce` leaves. Raises `SplitError` for a value that isn't on such ranks of `ranks`.
    """
    homes = {mesh: rank for rank, mesh in enumerate(ranks.meshes)}
    found = _missing_axes(value, ranks, homes)
    if found is None:
        raise SplitError(
            f"broadcast: {value} is not on one rank of every line of {ranks}, which is where group.reduce leaves a "
            "value. What is on all ranks already needs no broadcast: group.reshard changes how it is spread"
        )
    axes, specs = found
    build = PlanBuilder(machine, ranks.meshes, (value,), _NAMES)
    into = build.slot(value.name or "value", value.shaped, specs, ranks)
    here = {homes[mesh]: Ref(0, number) for number, mesh in enumerate(value.meshes)}
    for axis in axes:
        for line_ranks in neighbouring_lines(machine, "broadcast", ranks, axis):
            line = Line(build, ranks.meshes, line_ranks)
            for rank in [r for r in line_ranks if r in here]:
                line.spread(here[rank], line_ranks.index(rank), lambda at, ref, line=line: _note(here, line, at, ref))
    for rank, ref in sorted(here.items()):
        build.step(rank, Copy(), [ref], Ref(into, rank))
    return build.plan(ranks, into, f"on mesh {', '.join(map(str, value.meshes))}, copied outwards hop by hop")


def _note(here: dict[int, Ref], line: Line, at: int, ref: Ref) -> None:
    here[line.ranks[at]] = ref


def _missing_axes(
    value: Sharded, ranks: Ranks, homes: dict[int, int]
) -> tuple[tuple[int, ...], tuple[Spec, ...]] | None:
    """The grid axes along which the value is on one rank only, and its specs with `COPIED` along those."""
    if not all(mesh in homes for mesh in value.meshes):
        return None
    if len(value.meshes) == 1 and not value.is_partial:
        return tuple(range(len(ranks.grid))), (COPIED,) * len(ranks.grid)
    for along in range(len(ranks.grid)):
        inside = [[homes[m] for m in value.meshes if homes[m] in line] for line in lines(ranks, along)]
        left = (*ranks.grid[:along], *ranks.grid[along + 1 :])
        if value.ranks.grid == left and [ranks.meshes[r] for (r, *_) in filter(None, inside)] == list(value.meshes):
            return (along,), (*value.specs[:along], COPIED, *value.specs[along:])
    return None


def plan_shift(machine: MachineSpec, value: Sharded, by: int, along: int, hosts: Sequence[int]) -> Plan:
    """Every rank's piece moved `by` positions along its line, around the end; over each link on the way."""
    _require("shift", value, along, "split")
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    into = build.slot("shifted", value.shaped, value.specs, value.ranks)
    for ranks in neighbouring_lines(machine, "shift", value.ranks, along):
        for position, rank in enumerate(ranks):
            goal = ranks[(position + by) % len(ranks)]
            there = build.copied_along(Ref(0, rank), value.meshes[goal], rank)
            build.step(goal, Copy(), [there], Ref(into, goal))
    return build.plan(value.ranks, into, f"every piece {by} rank{'s' if abs(by) != 1 else ''} further, around the end")


def plan_all_to_all(machine: MachineSpec, value: Sharded, axis: int, along: int, hosts: Sequence[int]) -> Plan:
    """A value split on one axis split on another instead: rank r sends slice s of its piece to rank s."""
    what = "all_to_all"
    _require(what, value, along, "split")
    before = value.specs[along].axis
    if before == axis and value.ranks.grid[along] > 1:
        raise SplitError(f"all_to_all(axis={axis}): {value} is split on that axis already; use it as it is")
    _require_cut(what, value, axis, along)
    if before is not None:
        _outer_first(what, value, before, along)
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    specs = _changed(value, along, Spec.on(axis))
    into = build.slot("resplit", value.shaped, specs, value.ranks)
    for ranks in neighbouring_lines(machine, what, value.ranks, along):
        line = Line(build, value.meshes, ranks)
        for position, rank in enumerate(ranks):
            for goal, owner in enumerate(ranks):
                piece = line.sliced(Ref(0, rank), axis, goal, rank)
                there = build.copied_along(piece, value.meshes[owner], rank)
                line.place(there, Ref(into, owner), before, position)
    reason = f"{value.specs[along]} to {specs[along]}: every rank sends a slice to every other"
    return build.plan(value.ranks, into, reason)


def plan_slice(machine: MachineSpec, value: Sharded, axis: int, along: int, hosts: Sequence[int]) -> Plan:
    """A copied value split on `axis`: every rank keeps its slice, and nothing moves between meshes."""
    _require("slice", value, along, "copied")
    _require_cut("slice", value, axis, along)
    build = PlanBuilder(machine, hosts, (value,), _NAMES)
    into = build.slot("sliced", value.shaped, _changed(value, along, Spec.on(axis)), value.ranks)
    for ranks in lines(value.ranks, along):
        line = Line(build, value.meshes, ranks)
        for position, rank in enumerate(ranks):
            corner, extent = line.cut(build.shaped(Ref(0, rank)).shape, axis, position)
            build.step(rank, Copy(corner, None, extent), [Ref(0, rank)], Ref(into, rank))
    return build.plan(value.ranks, into, f"copied to {Spec.on(axis)}: every rank keeps its slice")


def plan_reshard(machine: MachineSpec, value: Sharded, spec: Spec, along: int, hosts: Sequence[int]) -> Plan:
    """From the value's spec along a grid axis to another; `SplitError` where nothing would change or no way leads."""
    require_axis("reshard", value.ranks, along)
    now = value.specs[along]
    if now == spec:
        raise SplitError(f"reshard: {value} is {spec} already; use it as it is")
    if spec.partial is not None:
        raise SplitError(
            f"reshard: {value} can't be made a {spec}: contributions come out of an operation, and whoever made them "
            "up would choose what each rank has. A product over a split contraction gives one: group.matmul"
        )
    if now.partial is not None:
        if spec.axis is None:
            return plan_all_reduce(machine, value, along, hosts)
        return plan_reduce_scatter(machine, value, spec.axis, along, hosts)
    if now.axis is None:
        assert spec.axis is not None
        return plan_slice(machine, value, spec.axis, along, hosts)
    if spec.axis is None:
        return plan_all_gather(machine, value, along, hosts)
    return plan_all_to_all(machine, value, spec.axis, along, hosts)


def _changed(value: Sharded, along: int, spec: Spec) -> tuple[Spec, ...]:
    return tuple(spec if axis == along else s for axis, s in enumerate(value.specs))


_OF = {
    "partial": "folds contributions, and only a partial has any",
    "split": "moves slices between ranks, and only a split value has any",
    "copied": "keeps a slice of what every rank has whole",
}


def _require(what: str, value: Sharded, along: int, wanted: str) -> None:
    """Raises `SplitError` unless the value is spread as wanted; on one rank whatever isn't partial is."""
    require_axis(what, value.ranks, along)
    spec = value.specs[along]
    found = "partial" if spec.partial is not None else "copied" if spec.is_copied else "split"
    if found == wanted or (value.ranks.grid[along] == 1 and found != "partial"):
        return
    instead = {
        ("split", "partial"): "Fold it first: group.all_reduce(value), or group.reduce_scatter(value, axis=...)",
        ("split", "copied"): "Every rank has all of it already",
        ("partial", "copied"): "Every rank has the whole value already",
        ("partial", "split"): "group.all_gather(value) gives every rank the whole value",
    }.get((wanted, found), "group.reshard(value, spec) goes from any spec to another")
    where = f" along grid axis {along}" if value.ranks.grid[1:] else ""
    raise SplitError(f"{what}{where} of {value}: it {_OF[wanted]}. {instead}")


def _require_cut(what: str, value: Sharded, axis: int, along: int) -> None:
    """Raises `SplitError` where the pieces can't be cut along `axis` into one a rank."""
    _outer_first(what, value, axis, along)
    try:
        Spec.on(axis).local(value.local, value.ranks.grid[along])
    except SplitError as error:
        raise SplitError(f"{what} of {value}: {error}") from None


def _outer_first(what: str, value: Sharded, axis: int, along: int) -> None:
    """Nested splits of one tensor axis are cut outer grid axis first, and have to be put together inner first."""
    for inner in range(along + 1, len(value.specs)):
        if value.specs[inner].axis == axis:
            raise SplitError(
                f"{what}(along={along}): {value}; grid axis {inner} cuts the same tensor axis {axis} into slices of "
                f"slices, and those lie inside. Bring them together first: group.reshard(value, COPIED, along={inner})"
            )

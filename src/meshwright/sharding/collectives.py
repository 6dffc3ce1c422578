"""Collectives as plans: every byte moves from a mesh to a neighbour, and the plan says so before anything runs.

Partials that are in DRAM are folded on vector units, in rank order from both ends towards the rank that
collects. A mesh without vector units passes on what arrives together with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from meshwright import targets
from meshwright.errors import PlacementError, SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.elementwise import Elementwise
from meshwright.kernels.kernel import Shaped
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.plan import Copy, Plan, Ref
from meshwright.sharding.planner import copied_along, host_of
from meshwright.sharding.reductions import lines, without_axis
from meshwright.sharding.value import Ranks, Sharded

_NAMES = ("the value",)


def fold_of(pool: Pool, count: int) -> Elementwise:
    """The elementwise fold of `count` pieces in a pool."""
    return Elementwise(f"{pool.value} of {count}", pool.fold(count)[0], count)


class _Line:
    """One line of ranks along a grid axis, within a plan under construction."""

    def __init__(self, build: PlanBuilder, value: Sharded, along: int, ranks: Sequence[int]) -> None:
        self.build = build
        self.value = value
        self.along = along
        self.ranks = list(ranks)
        self.meshes = [value.meshes[rank] for rank in ranks]

    def local_slice(self, shape: Sequence[int], axis: int, position: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Corner and extent of slice number `position` of `shape` cut into one a rank along `axis`."""
        size = Spec.on(axis).local(shape, len(self.ranks))[axis]
        corner = tuple(position * size if a == axis else 0 for a in range(len(shape)))
        return corner, tuple(size if a == axis else s for a, s in enumerate(shape))

    def sliced(self, ref: Ref, axis: int, position: int, rank: int) -> Ref:
        """Slice number `position` of a piece as a private piece on the same mesh."""
        shaped = self.build.shaped(ref)
        corner, extent = self.local_slice(shaped.shape, axis, position)
        name = f"{self.build.slots[ref.slot].name}_slice{position}"
        target = self.build.private(name, Shaped(extent, shaped.format), self.build.mesh_of(ref))
        self.build.step(rank, Copy(corner, None, extent), [ref], target, node=self.build.mesh_of(ref))
        return target

    def folded(self, pieces: Sequence[Ref], pool: Pool, root: int, hosts: Sequence[int]) -> Ref:
        """All pieces (one a rank of the line) folded on the mesh at position `root`, converging from both ends."""
        arriving: list[Ref] = []
        for side in (range(root), range(len(pieces) - 1, root, -1)):
            pending: list[Ref] = []
            for position in side:
                pending = self._fold_here([*pending, pieces[position]], pool, position)
                to = self.meshes[position + side.step]
                pending = [copied_along(self.build, ref, to, self.ranks[position]) for ref in pending]
            arriving += pending
        return self._fold_at([pieces[root], *arriving], pool, root, hosts)

    def _fold_here(self, pending: list[Ref], pool: Pool, position: int) -> list[Ref]:
        mesh = self.meshes[position]
        if len(pending) < 2 or not targets.placement(self.build.machine, mesh).has_vector_units:
            return pending
        return [self._fold(pending, pool, position, mesh)]

    def _fold_at(self, pending: list[Ref], pool: Pool, position: int, hosts: Sequence[int]) -> Ref:
        if len(pending) == 1:
            return pending[0]
        mesh = self.meshes[position]
        host = host_of(self.build.machine, fold_of(pool, len(pending)), mesh, hosts)
        moved = [copied_along(self.build, ref, host, self.ranks[position]) for ref in pending]
        return copied_along(self.build, self._fold(moved, pool, position, host), mesh, self.ranks[position])

    def _fold(self, pending: Sequence[Ref], pool: Pool, position: int, mesh: int) -> Ref:
        target = self.build.private(f"{pool.value}_at_{mesh}", self.build.shaped(pending[0]), mesh)
        self.build.step(self.ranks[position], fold_of(pool, len(pending)), pending, target, mesh)
        return target

    def spread(self, ref: Ref, root: int, use: Callable[[int, Ref], None]) -> None:
        """Copies a piece on the mesh at `root` to every mesh of the line, hop by hop; `use(position, piece)` there."""
        use(root, ref)
        for side in (range(root + 1, len(self.ranks)), range(root - 1, -1, -1)):
            here = ref
            for position in side:
                here = copied_along(self.build, here, self.meshes[position], self.ranks[root])
                use(position, here)

    def place(self, ref: Ref, into: Ref, axis: int | None, position: int) -> None:
        """Copies a private piece into the result piece on the same mesh; with `axis`, into its slice `position`."""
        if axis is None:
            self.build.step(into.rank, Copy(), [ref], into)
            return
        corner, extent = self.local_slice(self.build.shaped(into).shape, axis, position)
        self.build.step(into.rank, Copy(None, corner, extent), [ref], into)


def _checked_line(machine: MachineSpec, what: str, value: Sharded, along: int) -> list[list[int]]:
    if not 0 <= along < len(value.ranks.grid):
        raise SplitError(f"{what}: the ranks have {len(value.ranks.grid)} grid axes; axis {along} is not one of them")
    for line in lines(value.ranks, along):
        for here, there in pairwise(line):
            a, b = value.meshes[here], value.meshes[there]
            if b not in machine.neighbours(a):
                raise PlacementError(
                    f"{what}: ranks on meshes {a} and {b} follow each other and are {machine.mesh_hops(a, b)} links "
                    "apart; collectives move between neighbours only. Open the group with meshes in link order"
                )
    return lines(value.ranks, along)


def _changed(value: Sharded, along: int, spec: Spec) -> tuple[Spec, ...]:
    return tuple(spec if axis == along else s for axis, s in enumerate(value.specs))


def _require(what: str, value: Sharded, along: int, wanted: str) -> None:
    spec = value.specs[along]
    found = "partial" if spec.partial is not None else "copied" if spec.is_copied else "split"
    if found != wanted:
        fix = {
            "partial": "Only a partial has something to fold",
            "split": "Only a split value has slices to bring together",
        }
        raise SplitError(f"{what}: {value}; it needs a {wanted} value. {fix.get(wanted, '')}".rstrip())


def _outer_first(what: str, value: Sharded, axis: int, along: int) -> None:
    """Nested splits of one tensor axis are cut outer grid axis first, and have to be put together inner first."""
    for inner in range(along + 1, len(value.specs)):
        if value.specs[inner].axis == axis:
            raise SplitError(
                f"{what} along grid axis {along}: {value}; grid axis {inner} cuts the same tensor axis {axis} into "
                f"slices of slices. Bring those together first: group.reshard(value, COPIED, along={inner})"
            )


def plan_to_one(machine: MachineSpec, value: Sharded, root: int, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded onto the rank at position `root` of each line along a grid axis, converging from both ends.

    Raises `SplitError` unless the value is partial along that axis, `PlacementError` where ranks aren't neighbours.
    """
    what = "reduce"
    _require(what, value, along, "partial")
    if not 0 <= root < value.ranks.grid[along]:
        raise SplitError(f"{what}: root {root} of {value.ranks.grid[along]} ranks")
    pool = value.specs[along].partial
    assert pool is not None
    build = PlanBuilder(machine, (value,), _NAMES)
    all_lines = _checked_line(machine, what, value, along)
    left = without_axis(value.ranks, along, [line[root] for line in all_lines])
    specs = (*value.specs[:along], *value.specs[along + 1 :]) or (COPIED,)
    into = build.slot(f"{pool.value}", value.shaped, specs, left)
    for number, ranks in enumerate(all_lines):
        line = _Line(build, value, along, ranks)
        total = line.folded([Ref(0, rank) for rank in ranks], pool, root, hosts)
        line.place(total, Ref(into, number), None, 0)
    return build.plan(left, into, f"{value.specs[along]} folded onto one rank, neighbour to neighbour")


def plan_all_reduce(machine: MachineSpec, value: Sharded, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded towards the middle of each line and copied back out to all of it."""
    what = "all_reduce"
    _require(what, value, along, "partial")
    pool = value.specs[along].partial
    assert pool is not None
    build = PlanBuilder(machine, (value,), _NAMES)
    into = build.slot(pool.value, value.shaped, _changed(value, along, COPIED), value.ranks)
    for ranks in _checked_line(machine, what, value, along):
        line = _Line(build, value, along, ranks)
        root = _middle(line, machine)
        total = line.folded([Ref(0, rank) for rank in ranks], pool, root, hosts)
        line.spread(total, root, lambda at, ref, line=line, ranks=ranks: line.place(ref, Ref(into, ranks[at]), None, 0))
    return build.plan(value.ranks, into, f"{value.specs[along]} folded towards the middle, then copied to all")


def _middle(line: _Line, machine: MachineSpec) -> int:
    able = [i for i, m in enumerate(line.meshes) if targets.placement(machine, m).has_vector_units]
    centre = (len(line.ranks) - 1) / 2
    return min(able or range(len(line.ranks)), key=lambda i: (abs(i - centre), -i))


def plan_reduce_scatter(machine: MachineSpec, value: Sharded, axis: int, along: int, hosts: Sequence[int]) -> Plan:
    """A partial folded slice by slice, each slice of `axis` onto the rank that will hold it."""
    what = "reduce_scatter"
    _require(what, value, along, "partial")
    pool = value.specs[along].partial
    assert pool is not None
    _outer_first("reduce_scatter", value, axis, along)
    build = PlanBuilder(machine, (value,), _NAMES)
    Spec.on(axis).local(value.local, value.ranks.grid[along])
    into = build.slot(pool.value, value.shaped, _changed(value, along, Spec.on(axis)), value.ranks)
    for ranks in _checked_line(machine, what, value, along):
        line = _Line(build, value, along, ranks)
        for position, owner in enumerate(ranks):
            slices = [line.sliced(Ref(0, rank), axis, position, rank) for rank in ranks]
            total = line.folded(slices, pool, position, hosts)
            line.place(total, Ref(into, owner), None, 0)
    return build.plan(value.ranks, into, f"{value.specs[along]} folded slice by slice onto its rank")


def plan_all_gather(machine: MachineSpec, value: Sharded, along: int) -> Plan:
    """Every rank's slice copied to all ranks of its line."""
    what = "all_gather"
    _require(what, value, along, "split")
    axis = value.specs[along].axis
    assert axis is not None
    _outer_first("all_gather", value, axis, along)
    build = PlanBuilder(machine, (value,), _NAMES)
    into = build.slot("gathered", value.shaped, _changed(value, along, COPIED), value.ranks)
    for ranks in _checked_line(machine, what, value, along):
        line = _Line(build, value, along, ranks)
        for position, rank in enumerate(ranks):
            line.spread(
                Ref(0, rank),
                position,
                lambda at, ref, line=line, ranks=ranks, position=position: line.place(
                    ref, Ref(into, ranks[at]), axis, position
                ),
            )
    return build.plan(value.ranks, into, f"{value.specs[along]}: every slice copied to every rank, hop by hop")


def plan_broadcast(machine: MachineSpec, value: Sharded, ranks: Ranks) -> Plan:
    """A value on one mesh copied to all meshes of a line of ranks that it is one of."""
    if len(value.meshes) != 1 or value.meshes[0] not in ranks.meshes or len(ranks.grid) != 1:
        raise SplitError(f"broadcast: {value}; it takes a value on one mesh of the group, and a group in one line")
    build = PlanBuilder(machine, (value,), _NAMES)
    into = build.slot(value.name or "value", value.shaped, (COPIED,), ranks)
    over_all = Sharded(ranks, value.shape, value.format, (COPIED,), value.parts * len(ranks.meshes))
    (everyone,) = _checked_line(machine, "broadcast", over_all, 0)
    line = _Line(build, over_all, 0, everyone)
    root = ranks.meshes.index(value.meshes[0])
    line.spread(Ref(0, 0), root, lambda at, ref: line.place(ref, Ref(into, at), None, 0))
    return build.plan(ranks, into, f"on mesh {value.meshes[0]}, copied outwards hop by hop")


def plan_shift(machine: MachineSpec, value: Sharded, by: int, along: int) -> Plan:
    """Every rank's piece moved `by` positions along its line, around the end; over each link on the way."""
    _require("shift", value, along, "split")
    build = PlanBuilder(machine, (value,), _NAMES)
    into = build.slot("shifted", value.shaped, value.specs, value.ranks)
    for ranks in _checked_line(machine, "shift", value, along):
        for position, rank in enumerate(ranks):
            goal = ranks[(position + by) % len(ranks)]
            there = copied_along(build, Ref(0, rank), value.meshes[goal], rank)
            build.step(goal, Copy(), [there], Ref(into, goal))
    return build.plan(value.ranks, into, f"every piece {by} ranks further")


def plan_all_to_all(machine: MachineSpec, value: Sharded, axis: int, along: int) -> Plan:
    """A value split on one axis split on another instead: rank r sends slice s of its piece to rank s."""
    what = "all_to_all"
    _require(what, value, along, "split")
    before = value.specs[along].axis
    assert before is not None
    for cut in (before, axis):
        _outer_first(what, value, cut, along)
    build = PlanBuilder(machine, (value,), _NAMES)
    specs = _changed(value, along, Spec.on(axis))
    into = build.slot("resplit", value.shaped, specs, value.ranks)
    Spec.on(axis).local(value.local, value.ranks.grid[along])
    for ranks in _checked_line(machine, what, value, along):
        line = _Line(build, value, along, ranks)
        for position, rank in enumerate(ranks):
            for goal, owner in enumerate(ranks):
                piece = line.sliced(Ref(0, rank), axis, goal, rank)
                there = copied_along(build, piece, value.meshes[owner], rank)
                line.place(there, Ref(into, owner), before, position)
    return build.plan(
        value.ranks, into, f"{value.specs[along]} to {specs[along]}: every rank sends a slice to every other"
    )


def plan_slice(machine: MachineSpec, value: Sharded, axis: int, along: int) -> Plan:
    """A copied value split on `axis`: every rank keeps its slice, and nothing moves between meshes."""
    _require("split", value, along, "copied")
    _outer_first("slice", value, axis, along)
    build = PlanBuilder(machine, (value,), _NAMES)
    into = build.slot("sliced", value.shaped, _changed(value, along, Spec.on(axis)), value.ranks)
    Spec.on(axis).local(value.local, value.ranks.grid[along])
    for ranks in lines(value.ranks, along):
        line = _Line(build, value, along, ranks)
        for position, rank in enumerate(ranks):
            corner, extent = line.local_slice(build.shaped(Ref(0, rank)).shape, axis, position)
            build.step(rank, Copy(corner, None, extent), [Ref(0, rank)], Ref(into, rank))
    return build.plan(value.ranks, into, f"copied to {Spec.on(axis)}: every rank keeps its slice")


def plan_reshard(machine: MachineSpec, value: Sharded, spec: Spec, along: int, hosts: Sequence[int]) -> Plan:
    """From the value's spec along a grid axis to another; `SplitError` where nothing would change or no way leads."""
    now = value.specs[along]
    if now == spec:
        raise SplitError(f"reshard: {value} is {spec} already; use it as it is")
    if spec.partial is not None:
        raise SplitError(f"reshard: {value} can't be made {spec}: only operations make partials")
    if now.partial is not None:
        if spec.axis is None:
            return plan_all_reduce(machine, value, along, hosts)
        return plan_reduce_scatter(machine, value, spec.axis, along, hosts)
    if now.axis is None:
        assert spec.axis is not None
        return plan_slice(machine, value, spec.axis, along)
    if spec.axis is None:
        return plan_all_gather(machine, value, along)
    return plan_all_to_all(machine, value, spec.axis, along)

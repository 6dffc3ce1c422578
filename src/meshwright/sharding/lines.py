"""Lines of ranks along one axis of a rank grid: how pieces are cut, folded and spread along them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from meshwright import targets
from meshwright.errors import PlacementError, SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Shaped
from meshwright.machine import MachineSpec
from meshwright.sharding.builder import PlanBuilder
from meshwright.sharding.planner import host_of
from meshwright.sharding.steps import Copy, Ref
from meshwright.sharding.summands import fold_of
from meshwright.sharding.value import Ranks


def lines(ranks: Ranks, along: int) -> list[list[int]]:
    """The ranks grouped into lines along one axis of the grid, each in order."""
    inner = math.prod(ranks.grid[along + 1 :])
    count = ranks.grid[along]
    starts = [o * count * inner + i for o in range(math.prod(ranks.grid[:along])) for i in range(inner)]
    return [[start + step * inner for step in range(count)] for start in starts]


def without_axis(ranks: Ranks, along: int, kept: Sequence[int]) -> Ranks:
    """The ranks `kept` (one a line) as a grid without that axis."""
    grid = (*ranks.grid[:along], *ranks.grid[along + 1 :]) or (1,)
    return Ranks(ranks.machine, tuple(ranks.meshes[r] for r in kept), grid, ranks.owner)


def require_axis(what: str, ranks: Ranks, along: int) -> None:
    """Raises `SplitError` unless the rank grid has an axis `along`."""
    if not 0 <= along < len(ranks.grid):
        axes = len(ranks.grid)
        raise SplitError(
            f"{what}(along={along}): the ranks have {axes} grid {'axis' if axes == 1 else 'axes'} ({ranks}); "
            f"along=0{' is the only one' if axes == 1 else f' to {axes - 1} are there'}"
        )


def neighbouring_lines(machine: MachineSpec, what: str, ranks: Ranks, along: int) -> list[list[int]]:
    """The lines along an axis; `PlacementError` where two ranks that follow each other aren't on neighbours."""
    require_axis(what, ranks, along)
    for line in lines(ranks, along):
        meshes = [ranks.meshes[rank] for rank in line]
        for here, there in pairwise(meshes):
            if there not in machine.neighbours(here):
                raise PlacementError(
                    f"{what} over meshes {listed(meshes)}: {here} and {there} follow each other and are "
                    f"{machine.mesh_hops(here, there)} links apart, and nothing moves but between neighbours. "
                    f"{in_link_order(machine, meshes)}"
                )
    return lines(ranks, along)


def in_link_order(machine: MachineSpec, meshes: Sequence[int]) -> str:
    """The advice that goes with meshes that don't follow the links."""
    order = [mesh for mesh in machine.mesh_ids if mesh in meshes]
    if all(b in machine.neighbours(a) for a, b in pairwise(order)):
        return f"Open the group in the order of the links: meshes={tuple(order)}"
    return f"Open the group with meshes that are linked in a row, such as {tuple(machine.mesh_ids[: len(order)])}"


def listed(numbers: Sequence[int]) -> str:
    """Numbers for messages: `0, 1, 3`."""
    return ", ".join(map(str, numbers))


class Line:
    """One line of ranks, within a plan under construction."""

    def __init__(self, build: PlanBuilder, meshes: Sequence[int], ranks: Sequence[int]) -> None:
        self.build = build
        self.ranks = list(ranks)
        self.meshes = [meshes[rank] for rank in ranks]

    def cut(self, shape: Sequence[int], axis: int, position: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Corner and extent of slice number `position` of `shape` cut into one a rank along `axis`."""
        size = Spec.on(axis).local(shape, len(self.ranks))[axis]
        corner = tuple(position * size if a == axis else 0 for a in range(len(shape)))
        return corner, tuple(size if a == axis else s for a, s in enumerate(shape))

    def sliced(self, ref: Ref, axis: int, position: int, rank: int) -> Ref:
        """Slice number `position` of a piece as a private piece on the same mesh."""
        shaped = self.build.shaped(ref)
        corner, extent = self.cut(shaped.shape, axis, position)
        name = f"{self.build.slots[ref.slot].name}_slice{position}"
        target = self.build.private(name, Shaped(extent, shaped.format), self.build.mesh_of(ref))
        self.build.step(rank, Copy(corner, None, extent), [ref], target)
        return target

    def folded(self, pieces: Sequence[Ref], pool: Pool, root: int) -> Ref:
        """All pieces (one a rank of the line) folded on the mesh at position `root`, converging from both ends."""
        arriving: list[Ref] = []
        for side in (range(root), range(len(pieces) - 1, root, -1)):
            pending: list[Ref] = []
            for position in side:
                pending = self._fold_here([*pending, pieces[position]], pool, position)
                to = self.meshes[position + side.step]
                pending = [self.build.copied_along(ref, to, self.ranks[position]) for ref in pending]
            arriving += pending
        return self._fold_at([pieces[root], *arriving], pool, root)

    def _fold_here(self, pending: list[Ref], pool: Pool, position: int) -> list[Ref]:
        mesh = self.meshes[position]
        if len(pending) < 2 or not targets.placement(self.build.machine, mesh).has_vector_units:
            return pending
        return [self._fold(pending, pool, position, mesh)]

    def _fold_at(self, pending: list[Ref], pool: Pool, position: int) -> Ref:
        if len(pending) == 1:
            return pending[0]
        mesh = self.meshes[position]
        host = host_of(self.build.machine, fold_of(pool, len(pending)), mesh, self.build.hosts)
        moved = [self.build.copied_along(ref, host, self.ranks[position]) for ref in pending]
        return self.build.copied_along(self._fold(moved, pool, position, host), mesh, self.ranks[position])

    def _fold(self, pending: Sequence[Ref], pool: Pool, position: int, mesh: int) -> Ref:
        target = self.build.private(f"{pool.value}_at_{mesh}", self.build.shaped(pending[0]), mesh)
        self.build.step(self.ranks[position], fold_of(pool, len(pending)), pending, target)
        return target

    def spread(self, ref: Ref, root: int, use: Callable[[int, Ref], None]) -> None:
        """Copies a piece on the mesh at `root` to every mesh of the line, hop by hop; `use(position, piece)` there."""
        use(root, ref)
        for side in (range(root + 1, len(self.ranks)), range(root - 1, -1, -1)):
            here = ref
            for position in side:
                here = self.build.copied_along(here, self.meshes[position], self.ranks[root])
                use(position, here)

    def place(self, ref: Ref, into: Ref, axis: int | None = None, position: int = 0) -> None:
        """Copies a piece into the result piece on the same mesh; with `axis`, into its slice `position`."""
        if axis is None:
            self.build.step(into.rank, Copy(), [ref], into)
            return
        corner, extent = self.cut(self.build.shaped(into).shape, axis, position)
        self.build.step(into.rank, Copy(None, corner, extent), [ref], into)

    def middle(self) -> int:
        """The position nearest the middle whose mesh can fold."""
        machine = self.build.machine
        able = [i for i, m in enumerate(self.meshes) if targets.placement(machine, m).has_vector_units]
        centre = (len(self.ranks) - 1) / 2
        return min(able or range(len(self.ranks)), key=lambda i: (abs(i - centre), -i))

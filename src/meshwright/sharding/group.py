"""`MeshGroup`: the meshes that values are spread over, and everything that can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from meshwright import targets
from meshwright.certify import Waiver
from meshwright.errors import SplitError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.walk import Progress
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.kernel import Kernel
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec
from meshwright.runtime.cards import BackendName, opened
from meshwright.runtime.device import Card, Device, Stats, Tensor
from meshwright.runtime.dispatch_failures import Wedged
from meshwright.runtime.run import run_graph
from meshwright.runtime.traffic import LinkBytes, link_bytes
from meshwright.sharding.certified import require_certified
from meshwright.sharding.choice import chosen_meshes, grid_meshes
from meshwright.sharding.elements import as_elements
from meshwright.sharding.group_collectives import Collectives
from meshwright.sharding.lines import require_axis
from meshwright.sharding.lower import graph_of, slot_name
from meshwright.sharding.plan import Plan
from meshwright.sharding.planner import plan_kernel
from meshwright.sharding.reductions import Tile, plan_chain, plan_star
from meshwright.sharding.rules import declared
from meshwright.sharding.value import Ranks, Sharded


class GroupStats(Struct, frozen=True):
    """What a group has done: every device's counters by mesh, graphs run, payload bytes by (from, to) of each link."""

    devices: dict[int, Stats]
    graphs_run: int
    crossed: LinkBytes


class MeshGroup(Collectives):
    """Ranks on the meshes of one machine. `open` makes one; every value belongs to the group that made it."""

    def __init__(
        self,
        card: Card,
        meshes: Sequence[int],
        arithmetic: Arithmetic | None = None,
        grid: tuple[int, ...] | None = None,
    ) -> None:
        if not meshes:
            raise SplitError(
                f"a group of no meshes holds nothing; name at least one of {', '.join(map(str, card.machine.mesh_ids))}"
            )
        twice = [mesh for position, mesh in enumerate(meshes) if mesh in meshes[:position]]
        if twice:
            once = tuple(dict.fromkeys(meshes))
            raise SplitError(
                f"a group of meshes {tuple(meshes)} names mesh {twice[0]} twice; a mesh is one rank. Name each once: "
                f"meshes={once}"
            )
        self._card = card
        self._ranks = Ranks(card.machine.name, tuple(meshes), grid or (len(meshes),), object())
        self.devices = {mesh: Device(card, mesh, arithmetic) for mesh in meshes}
        self.arithmetic = self.devices[meshes[0]].arithmetic
        self._floats = targets.placement(card.machine, meshes[0]).value_format
        self._crossed: LinkBytes = {}
        self._graphs_run = 0

    @classmethod
    def open(
        cls,
        machine: str | MachineSpec | Card,
        meshes: int | Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
        backend: BackendName = "evaluator",
    ) -> MeshGroup:
        """A group on a machine (a preset's name, a file, or a description), or on a card that is open already.

        meshes: how many, in the order of the links; or which; all by default. arithmetic: the machine's own by default;
        `RealArithmetic()` for float64. backend: "simulator" runs instruction words on a card in software, and gives the
        same bits. Raises `MachineError` for a machine or mesh that isn't there, `DeviceError` for a backend that a
        machine or an arithmetic isn't for.
        """
        card = opened(machine, backend)
        return cls(card, chosen_meshes(card.machine, meshes), arithmetic)

    @classmethod
    def grid(
        cls,
        machine: str | MachineSpec | Card,
        rows: int,
        columns: int,
        meshes: Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
        backend: BackendName = "evaluator",
    ) -> MeshGroup:
        """A group whose ranks form a grid of `rows` by `columns`; a value then has a spec for each of the two axes.

        meshes: row by row. By default those at (x, y) with y below `rows` and x below `columns` where the machine is a
        grid itself, else the first ones in the order of the links. Raises `SplitError` where there are not as many.
        """
        card = opened(machine, backend)
        return cls(card, grid_meshes(card.machine, rows, columns, meshes), arithmetic, (rows, columns))

    @property
    def machine(self) -> MachineSpec:
        """The machine that the group is on, without units that stopped answering: plans go to the others."""
        return self._card.working

    @property
    def wedged(self) -> tuple[Wedged, ...]:
        """Units that stopped answering and are used no more; always none where graphs are evaluated."""
        return self._card.wedged

    @property
    def ranks(self) -> Ranks:
        """Which mesh each rank is, on what grid."""
        return self._ranks

    @property
    def meshes(self) -> tuple[int, ...]:
        """Mesh ids in rank order, along the links."""
        return self.ranks.meshes

    def __len__(self) -> int:
        return len(self.meshes)

    def __str__(self) -> str:
        how = "evaluated" if self._card.backend is None else "run as programs"
        out = "; ".join(f"out of use: {one.label}, {one.why}" for one in self.wedged)
        return f"group on {self.ranks}, graphs {how}" + (f"; {out}" if out else "")

    # Values in

    def put(self, values: ArrayLike, spec: Spec | Sequence[Spec] = COPIED, name: str = "") -> Sharded:
        """A value from the host, spread as `spec` says: one spec, or one for each axis of the rank grid.

        Floats are rounded to the machine's element type (f16 on the card), whole numbers to i32. Raises `SplitError`
        for a split that doesn't divide, a partial, a value that is spread already, or a number that doesn't fit.
        """
        if isinstance(values, Sharded):
            raise SplitError(
                f"{values} is spread over meshes already, and a plain array belongs here. group.reshard(value, spec) "
                "changes how it is spread; numpy.asarray(value) reads it"
            )
        specs = self._specs(spec)
        array, element = as_elements(np.asarray(values), self._floats)
        value = Sharded(self.ranks, array.shape, element, specs, (), name)
        _require_axes(value)
        try:
            places = value.places()
        except SplitError as error:
            raise SplitError(f"`{name}`: {error}" if name else str(error)) from None
        held: dict[tuple[tuple[int, int], ...], NDArray[Any]] = {}
        parts = [
            self.devices[mesh].put(held.setdefault(_key(s), array[s]), element)
            for mesh, s in zip(self.meshes, places, strict=True)
        ]
        return Sharded(self.ranks, array.shape, element, specs, tuple(parts), name)

    def _specs(self, spec: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
        axes = len(self.ranks.grid)
        specs = (spec,) if isinstance(spec, Spec) else tuple(spec)
        if len(specs) == 1 and specs[0].is_copied:
            specs = (COPIED,) * axes
        if len(specs) != axes:
            raise SplitError(
                f"{len(specs)} spec{'s' if len(specs) != 1 else ''} for ranks on a grid of "
                f"{' x '.join(map(str, self.ranks.grid))}: one for each of its {axes} axes is needed, such as "
                f"[{', '.join(['Spec.on(0)', *['COPIED'] * (axes - 1)])}]"
            )
        for s in specs:
            if s.partial is not None:
                raise SplitError(
                    f"put as a {s}: a value from the host is whole, and cutting it into contributions would be a "
                    "choice. group.copy(values) or group.split(values, axis=...) spread it; operations make partials"
                )
        return specs

    def copy(self, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh."""
        return self.put(values, COPIED, name)

    def split(self, values: ArrayLike, axis: int, name: str = "", along: int = 0) -> Sharded:
        """Equal slices along `axis`, in rank order along one axis of the rank grid; copied along the others."""
        require_axis("split", self.ranks, along)
        rank = np.ndim(values) if not isinstance(values, Sharded) else abs(axis) + 1
        if not -rank <= axis < rank:
            axes = f"axes 0 to {rank - 1}, or -{rank} to -1 from the back" if rank else "no axis; copy it"
            raise SplitError(
                f"split(axis={axis}) of {name or 'a value'} of shape {list(np.shape(values))}: it has {axes}"
            )
        spec = Spec.on(axis % rank)
        return self.put(values, [spec if a == along else COPIED for a in range(len(self.ranks.grid))], name)

    def put_like(self, other: Sharded, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh that has a piece of `other`."""
        self.require_own(other, "other")
        array, element = as_elements(np.asarray(values), self._floats)
        parts = tuple(self.devices[mesh].put(array, element) for mesh in other.meshes)
        return Sharded(other.ranks, array.shape, element, (COPIED,) * len(other.specs), parts, name)

    def assemble(self, parts: Sequence[Tensor], spec: Spec | Sequence[Spec], name: str = "") -> Sharded:
        """A value from pieces that are on the devices already, one a rank, in rank order.

        Raises `SplitError` where pieces differ in shape or type (how they relate would have to be guessed), are
        too few or many, or not on their rank's device.
        """
        specs = (spec,) if isinstance(spec, Spec) else tuple(spec)
        if len(specs) != len(self.ranks.grid):
            raise SplitError(
                f"assemble: {len(specs)} specs for a rank grid of {len(self.ranks.grid)} axes; one for each"
            )
        if len(parts) != len(self.meshes):
            raise SplitError(
                f"assemble: {len(parts)} pieces for {len(self.meshes)} ranks, on meshes "
                f"{', '.join(map(str, self.meshes))}; one a rank is needed"
            )
        shapes = dict.fromkeys((part.shape, part.format) for part in parts)
        if len(shapes) > 1:
            found = ", ".join(f"{part.format}{list(part.shape)}" for part in parts)
            raise SplitError(
                f"assemble: pieces {found} can't be the equal pieces of one value, and which elements each of them is "
                "would have to be guessed. Pad them to one shape, or keep them apart"
            )
        for part, mesh in zip(parts, self.meshes, strict=True):
            if part.device is not self.devices[mesh]:
                raise SplitError(
                    f"assemble: the piece of mesh {mesh} is {part}, not on this group's device of mesh {mesh}; put it "
                    f"there: group.devices[{mesh}].put(...)"
                )
        (local, element) = next(iter(shapes))
        shape = list(local)
        for one, count in zip(specs, self.ranks.grid, strict=True):
            if one.axis is not None and one.axis >= len(local):
                raise SplitError(f"assemble: pieces of {list(local)} have no axis {one.axis} to be slices of")
            if one.axis is not None:
                shape[one.axis] *= count
        return Sharded(self.ranks, tuple(shape), element, specs, tuple(parts), name)

    # Values out

    def gather(self, value: Sharded, into: NDArray[Any] | None = None) -> NDArray[Any]:
        """The whole value on the host; with `into`, written there.

        Raises `SplitError` for a partial, and for an `into` that it would not fit bit for bit: another shape, another
        type, not writeable, or not aligned.
        """
        self.require_own(value, "value")
        value.require_whole("gather")
        whole = value.numpy()
        if into is None:
            return whole
        if into.shape != whole.shape or into.dtype != whole.dtype or not (into.flags.writeable and into.flags.aligned):
            what = " that is not writeable" if not into.flags.writeable else ""
            what = what or (" that is not aligned" if not into.flags.aligned else "")
            raise SplitError(
                f"gather of {value} into {into.dtype}{list(into.shape)}{what}: the elements are "
                f"{whole.dtype}{list(whole.shape)}, and go into an aligned, writeable array of exactly that; "
                "converting, padding or moving them would be a guess. Leave `into` out for a fresh array"
            )
        into[...] = whole
        return into

    def stats(self) -> GroupStats:
        """Counters since the group was opened: each device's, graphs run, bytes over each link."""
        return GroupStats({m: d.stats() for m, d in self.devices.items()}, self._graphs_run, dict(self._crossed))

    def chain_order(self) -> tuple[int, ...]:
        """The group's meshes in the order of the links; `MachineError` where they form no chain."""
        return self.machine.chain_order(self.meshes)

    def adjacent(self, a: int, b: int) -> bool:
        """Whether a link joins the meshes of ranks `a` and `b`."""
        return self.meshes[b] in self.machine.neighbours(self.meshes[a])

    # Plans: nothing is run

    def plan_matmul(self, a: Sharded, b: Sharded, tile: Tile | None = None) -> Plan:
        """`a @ b.T` where a reading needs no data moved; tile: (m, n, k) of a block, by default the machine's choice.

        Raises `SplitError` where no reading does, `PlacementError` for a tile that a mesh's units can't work on.
        """
        self._require_both(a, b)
        if tile is not None:
            for mesh in a.meshes:
                targets.placement(self.machine, mesh).check_tile(tile)
        return plan_kernel(self.machine, self.meshes, MatrixProduct(tile), (a, b), ("a", "b"))

    def plan_each(self, kernel: Kernel | Callable[..., Any], *values: Sharded) -> Plan:
        """The kernel (or a Python function over elements) on every rank's pieces.

        Raises `SplitError` where the kernel mixes elements along a split axis, or can't be applied to contributions.
        """
        known = declared(kernel)
        if not values:
            raise SplitError(f"{known.name} on nothing: give the values to work on, group.each(kernel, value, ...)")
        names = [chr(ord("a") + i) for i in range(len(values))] if len(values) > 1 else ["x"]
        for value, name in zip(values, names, strict=True):
            self.require_own(value, name)
        return plan_kernel(self.machine, self.meshes, known, values, names)

    def plan_reduce(
        self, a: Sharded, b: Sharded, tile: Tile | None = None, root: int | None = None, along: int = 0
    ) -> Plan:
        """`a @ b.T` with K split: every rank's sums go straight into the accumulators of rank `root`, its neighbour."""
        self._require_both(a, b)
        return plan_star(self.machine, (a, b), tile, root, along)

    def plan_chain_reduce(self, a: Sharded, b: Sharded, tile: Tile | None = None, along: int = 0) -> Plan:
        """`a @ b.T` with K split, summed in the accumulators from rank to rank; the last one has the result."""
        self._require_both(a, b)
        return plan_chain(self.machine, (a, b), tile, along)

    # Running

    def run(self, plan: Plan, progress: Progress | None = None, waivers: Sequence[Waiver] = ()) -> Sharded:
        """Runs a plan; the only place that says when.

        waivers: obligations that need not hold, each with a reason and a name. Raises `SplitError` for another group's
        plan, `PlanError` or `PlacementError` where its steps have no sound order, whatever the order in which they are
        written, and `CertificateError` where its graph is not certified.
        """
        if plan.ranks.owner is not self.ranks.owner:
            raise SplitError(
                f"this plan is for {plan.ranks}, and this group is another one ({self.ranks}); plan it with the group "
                "that runs it"
            )
        require_certified(plan, waivers)
        graph = graph_of(plan)
        slot = plan.slots[plan.into]
        ranks = Ranks(self.machine.name, slot.meshes, slot.grid, self.ranks.owner)
        if not math.prod(slot.shaped.shape):
            zero = self.arithmetic.constant(0.0, slot.shaped.format)
            empty = tuple(self.devices[m].hold(np.full(slot.local, zero), slot.shaped.format) for m in slot.meshes)
            return Sharded(ranks, slot.shaped.shape, slot.shaped.format, slot.specs, empty)
        crossed = link_bytes(graph, self.machine)
        bound = {slot_name(plan, i): value.parts for i, value in enumerate(plan.inputs)}
        made = run_graph(graph, self.devices, bound, progress=progress)
        for link, count in crossed.items():
            self._crossed[link] = self._crossed.get(link, 0) + count
        self._graphs_run += 1
        parts = made[slot_name(plan, plan.into)]
        return Sharded(ranks, slot.shaped.shape, slot.shaped.format, slot.specs, parts)

    def matmul(self, a: Sharded, b: Sharded, tile: Tile | None = None) -> Sharded:
        """Plans and runs `a @ b.T`."""
        return self.run(self.plan_matmul(a, b, tile))

    def each(self, kernel: Kernel | Callable[..., Any], *values: Sharded) -> Sharded:
        """Plans and runs a kernel on every rank's pieces."""
        return self.run(self.plan_each(kernel, *values))

    def matmul_reduce(
        self, a: Sharded, b: Sharded, tile: Tile | None = None, root: int | None = None, along: int = 0
    ) -> Sharded:
        """Plans and runs `plan_reduce`."""
        return self.run(self.plan_reduce(a, b, tile, root, along))

    def matmul_chain_reduce(self, a: Sharded, b: Sharded, tile: Tile | None = None, along: int = 0) -> Sharded:
        """Plans and runs `plan_chain_reduce`."""
        return self.run(self.plan_chain_reduce(a, b, tile, along))

    def require_own(self, value: Any, name: str) -> None:
        """Raises `SplitError` unless `value` is a value of this group; messages call it `name`."""
        if not isinstance(value, Sharded):
            what = f"{type(value).__name__}{list(np.shape(value))}" if np.shape(value) else type(value).__name__
            raise SplitError(
                f"`{name}` is a plain {what}; a value over meshes belongs here, and how it is spread is yours to "
                f"state: group.copy({name}) or group.split({name}, axis=...)"
            )
        if value.ranks.owner is not self.ranks.owner:
            raise SplitError(
                f"`{name}` ({value}) belongs to another group, on {value.ranks}; this one is on {self.ranks}. Read it "
                f"and put it here: group.copy({name}.numpy())"
            )

    def _require_both(self, a: Any, b: Any) -> None:
        self.require_own(a, "a")
        self.require_own(b, "b")

    def free(self, *values: Sharded) -> None:
        """Gives the memory of values back; they can't be used afterwards."""
        for value in values:
            self.require_own(value, "value")
            for mesh, part in zip(value.meshes, value.parts, strict=True):
                self.devices[mesh].free(part)

    def close(self) -> None:
        """Gives the meshes back."""
        for device in self.devices.values():
            device.close()


def _require_axes(value: Sharded) -> None:
    for spec in value.specs:
        if spec.axis is not None and spec.axis >= len(value.shape):
            axes = f"axes 0 to {len(value.shape) - 1}" if value.shape else "no axis; copy it"
            raise SplitError(f"put with a {spec} of {value.shaped}: it has {axes}")


def _key(place: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in place)

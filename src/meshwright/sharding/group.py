"""`MeshGroup`: the meshes that values are spread over, and everything that can be asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from meshwright import targets
from meshwright.errors import DeviceError, SplitError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.walk import Progress
from meshwright.ir.formats import ElementType
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.kernel import Kernel
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec, load
from meshwright.runtime.device import Card, Device, Stats, Tensor
from meshwright.runtime.run import run_graph
from meshwright.runtime.traffic import LinkBytes, link_bytes
from meshwright.sharding import collectives
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


class MeshGroup:
    """Ranks on the meshes of one machine. `open` makes one; every value belongs to the group that made it."""

    def __init__(
        self, card: Card, meshes: Sequence[int], arithmetic: Arithmetic, grid: tuple[int, ...] | None = None
    ) -> None:
        if not meshes:
            raise SplitError("a group of no meshes holds nothing; name at least one")
        if len(set(meshes)) != len(meshes):
            raise SplitError(f"a group of meshes {tuple(meshes)} names one twice; a mesh is one rank")
        self.machine = card.machine
        self.ranks = Ranks(card.machine.name, tuple(meshes), grid or (len(meshes),), object())
        self.arithmetic = arithmetic
        self.devices = {mesh: Device(card, mesh, arithmetic) for mesh in meshes}
        self._crossed: LinkBytes = {}
        self._graphs_run = 0

    @classmethod
    def open(
        cls,
        machine: str | MachineSpec,
        meshes: int | Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> MeshGroup:
        """A group on a machine (a preset's name, a file, or a description).

        meshes: how many, in the order of the links; or which; all by default. arithmetic: the machine's own by default;
        `RealArithmetic()` for float64. Raises `MachineError` for a machine or mesh that isn't there.
        """
        spec = load(machine) if isinstance(machine, str) else machine
        chosen = _chosen(spec, meshes)
        return cls(Card(spec), chosen, arithmetic or targets.arithmetic(spec))

    @classmethod
    def grid(
        cls,
        machine: str | MachineSpec,
        rows: int,
        columns: int,
        meshes: Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> MeshGroup:
        """A group whose ranks form a grid of `rows` by `columns`; a value then has a spec for each of the two axes.

        meshes: row by row; the machine's, in the order of the links, by default. Raises `SplitError` where their number
        isn't that of the grid.
        """
        spec = load(machine) if isinstance(machine, str) else machine
        chosen = tuple(meshes) if meshes is not None else spec.mesh_ids[: rows * columns]
        if rows < 1 or columns < 1 or len(chosen) != rows * columns:
            raise SplitError(f"a grid of {rows} x {columns} ranks needs {rows * columns} meshes, not {len(chosen)}")
        return cls(Card(spec), chosen, arithmetic or targets.arithmetic(spec), (rows, columns))

    @property
    def meshes(self) -> tuple[int, ...]:
        """Mesh ids in rank order, along the links."""
        return self.ranks.meshes

    def __len__(self) -> int:
        return len(self.meshes)

    # Values in

    def put(self, values: ArrayLike, spec: Spec | Sequence[Spec] = COPIED, name: str = "") -> Sharded:
        """A value from the host, spread as `spec` says: one spec, or one for each axis of the rank grid.

        Floats are rounded to the machine's element type (f16), whole numbers to i32. Raises `SplitError` for a split
        that doesn't divide, a partial, a value that is spread already, or a number that doesn't fit the type.
        """
        if isinstance(values, Sharded):
            raise SplitError(f"{values} is spread over meshes already; a plain array belongs here")
        specs = self._specs(spec)
        array, element = _element(np.asarray(values))
        value = Sharded(self.ranks, array.shape, element, specs, (), name)
        held: dict[tuple[tuple[int, int], ...], NDArray[Any]] = {}
        parts = [
            self.devices[mesh].put(held.setdefault(_key(s), array[s]), element)
            for mesh, s in zip(self.meshes, value.places(), strict=True)
        ]
        return Sharded(self.ranks, array.shape, element, specs, tuple(parts), name)

    def _specs(self, spec: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
        axes = len(self.ranks.grid)
        specs = (spec,) if isinstance(spec, Spec) else tuple(spec)
        if len(specs) == 1 and specs[0].is_copied:
            specs = (COPIED,) * axes
        if len(specs) != axes:
            raise SplitError(
                f"{len(specs)} specs for ranks on a grid of {' x '.join(map(str, self.ranks.grid))}: one for each of "
                f"its {axes} axes is needed, such as (Spec.on(0), COPIED)"
            )
        if any(s.partial is not None for s in specs):
            raise SplitError("a value from the host is whole; only operations make partials")
        return specs

    def copy(self, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh."""
        return self.put(values, COPIED, name)

    def split(self, values: ArrayLike, axis: int, name: str = "", along: int = 0) -> Sharded:
        """Equal slices along `axis`, in rank order along one axis of the rank grid; copied along the others."""
        spec = Spec.on(axis, np.ndim(values))
        return self.put(values, [spec if a == along else COPIED for a in range(len(self.ranks.grid))], name)

    def put_like(self, other: Sharded, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh that has a piece of `other`."""
        self._own(other, "other")
        array, element = _element(np.asarray(values))
        parts = tuple(self.devices[mesh].put(array, element) for mesh in other.meshes)
        return Sharded(other.ranks, array.shape, element, (COPIED,) * len(other.specs), parts, name)

    def assemble(self, parts: Sequence[Tensor], spec: Spec, name: str = "") -> Sharded:
        """A value from pieces that are on the devices already, one a rank, in rank order.

        Raises `SplitError` where pieces differ in shape or type (how they relate would have to be guessed), are
        too few or many, or not on their rank's device.
        """
        if len(parts) != len(self.meshes):
            raise SplitError(f"{len(parts)} pieces for {len(self.meshes)} ranks; one a rank is needed")
        shapes = {(part.shape, part.format) for part in parts}
        if len(shapes) > 1:
            raise SplitError(
                f"pieces of {', '.join(str(list(p.shape)) for p in parts)} can't be the equal pieces of one value; "
                "pad them to one shape, or keep them apart"
            )
        for part, mesh in zip(parts, self.meshes, strict=True):
            if part.device is not self.devices[mesh]:
                raise SplitError(f"the piece of mesh {mesh} is {part}, not on this group's device of mesh {mesh}")
        (local, element) = next(iter(shapes))
        if spec.axis is not None and spec.axis >= len(local):
            raise SplitError(f"pieces of {list(local)} have no axis {spec.axis} to be slices of")
        shape = tuple(size * (len(parts) if axis == spec.axis else 1) for axis, size in enumerate(local))
        return Sharded(self.ranks, shape, element, (spec,), tuple(parts), name)

    def on_rank(self, value: Sharded, rank: int) -> Sharded:
        """A copied value as a value on one mesh alone; nothing moves. Raises `SplitError` for one that isn't copied."""
        self._own(value, "value")
        if not all(spec.is_copied for spec in value.specs):
            raise SplitError(
                f"{value}: one mesh has the whole only of a copied value; group.reshard(value, COPIED) first"
            )
        ranks = Ranks(value.ranks.machine, (value.meshes[rank],), (1,), value.ranks.owner)
        return Sharded(ranks, value.shape, value.format, (COPIED,), (value.part(rank),), value.name)

    # Values out

    def gather(self, value: Sharded, into: NDArray[Any] | None = None) -> NDArray[Any]:
        """The whole value on the host; with `into`, written there.

        Raises `SplitError` for a partial, and for an `into` that it would not fit bit for bit: another shape, another
        type, not writeable, or not aligned.
        """
        self._own(value, "value")
        whole = value.numpy()
        if into is None:
            return whole
        if into.shape != whole.shape or into.dtype != whole.dtype or not (into.flags.writeable and into.flags.aligned):
            what = "not writeable" if not into.flags.writeable else "not aligned" if not into.flags.aligned else ""
            raise SplitError(
                f"gather of {value} into {into.dtype}{list(into.shape)}{' that is ' + what if what else ''}: "
                f"it takes {whole.dtype}{list(whole.shape)}, aligned and writeable; converting or padding would be "
                "a guess. Leave `into` out for a fresh array"
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
        """`a @ b.T` where a reading needs no data moved. Raises `SplitError` where none does."""
        self._own_both(a, b)
        return plan_kernel(self.machine, self.meshes, MatrixProduct(tile), (a, b), ("a", "b"))

    def plan_each(self, kernel: Kernel | Callable[..., Any], *values: Sharded) -> Plan:
        """The kernel (or a Python function over elements) on every rank's pieces.

        Raises `SplitError` where the kernel mixes elements along a split axis, or isn't linear in a partial.
        """
        known = declared(kernel)
        if not values:
            raise SplitError(f"{known.name} on nothing: give the values to work on")
        names = [f"operand {i}" if len(values) > 1 else "the operand" for i in range(len(values))]
        for value, name in zip(values, names, strict=True):
            self._own(value, name)
        return plan_kernel(self.machine, self.meshes, known, values, names)

    def plan_reduce(
        self, a: Sharded, b: Sharded, tile: Tile | None = None, root: int | None = None, along: int = 0
    ) -> Plan:
        """`a @ b.T` with K split: every rank's sums go straight into the accumulators of rank `root`, its neighbour."""
        self._own_both(a, b)
        return plan_star(self.machine, (a, b), tile, root, along)

    def plan_chain_reduce(self, a: Sharded, b: Sharded, tile: Tile | None = None, along: int = 0) -> Plan:
        """`a @ b.T` with K split, summed in the accumulators from rank to rank; the last one has the result."""
        self._own_both(a, b)
        return plan_chain(self.machine, (a, b), tile, along)

    def plan_reshard(self, value: Sharded, spec: Spec, along: int = 0) -> Plan:
        """From the spec that a value has along a grid axis to another; `print(plan)` says what crosses which link."""
        self._own(value, "value")
        return collectives.plan_reshard(self.machine, value, spec, along, self.meshes)

    def plan_broadcast(self, value: Sharded) -> Plan:
        """A value on one mesh, copied to all of the group's, hop by hop."""
        self._own(value, "value")
        return collectives.plan_broadcast(self.machine, value, self.ranks)

    # Running

    def run(self, plan: Plan, progress: Progress | None = None) -> Sharded:
        """Runs a plan; the only place that says when."""
        if plan.ranks.owner is not self.ranks.owner:
            raise SplitError(f"this plan is for {plan.ranks}, another group; plan it with this one")
        graph = graph_of(plan)
        crossed = link_bytes(graph, self.machine)
        bound = {slot_name(plan, i): value.parts for i, value in enumerate(plan.inputs)}
        name = slot_name(plan, plan.into)
        made = run_graph(graph, self.devices, bound, progress=progress)
        for link, count in crossed.items():
            self._crossed[link] = self._crossed.get(link, 0) + count
        self._graphs_run += 1
        slot = plan.slots[plan.into]
        ranks = Ranks(self.machine.name, slot.meshes, slot.grid, self.ranks.owner)
        return Sharded(ranks, slot.shaped.shape, slot.shaped.format, slot.specs, made[name])

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

    def reshard(self, value: Sharded, spec: Spec, along: int = 0) -> Sharded:
        """Plans and runs `plan_reshard`."""
        return self.run(self.plan_reshard(value, spec, along))

    def reduce(self, value: Sharded, root: int = 0, along: int = 0) -> Sharded:
        """A partial folded onto one rank, from both ends of the line."""
        self._own(value, "value")
        return self.run(collectives.plan_to_one(self.machine, value, root, along, self.meshes))

    def all_reduce(self, value: Sharded, along: int = 0) -> Sharded:
        """A partial folded, the result on every rank."""
        self._own(value, "value")
        return self.run(collectives.plan_all_reduce(self.machine, value, along, self.meshes))

    def reduce_scatter(self, value: Sharded, axis: int, along: int = 0) -> Sharded:
        """A partial folded, every rank with its slice of the result along `axis`."""
        self._own(value, "value")
        positive = Spec.on(axis, len(value.shape)).axis
        assert positive is not None
        return self.run(collectives.plan_reduce_scatter(self.machine, value, positive, along, self.meshes))

    def all_gather(self, value: Sharded, along: int = 0) -> Sharded:
        """A split value, the whole of it on every rank."""
        self._own(value, "value")
        return self.run(collectives.plan_all_gather(self.machine, value, along))

    def broadcast(self, value: Sharded) -> Sharded:
        """A value on one mesh, copied to all of the group's."""
        return self.run(self.plan_broadcast(value))

    def shift(self, value: Sharded, by: int, along: int = 0) -> Sharded:
        """Every rank's piece to the rank `by` positions further, around the end."""
        self._own(value, "value")
        return self.run(collectives.plan_shift(self.machine, value, by, along))

    def all_to_all(self, value: Sharded, axis: int, along: int = 0) -> Sharded:
        """A value split on one axis, split on `axis` instead."""
        self._own(value, "value")
        positive = Spec.on(axis, len(value.shape)).axis
        assert positive is not None
        return self.run(collectives.plan_all_to_all(self.machine, value, positive, along))

    def _own_both(self, a: Any, b: Any) -> None:
        self._own(a, "a")
        self._own(b, "b")

    def _own(self, value: Any, name: str) -> None:
        if not isinstance(value, Sharded):
            raise SplitError(
                f"`{name}` is a {type(value).__name__}; a value over meshes belongs here, and how it is spread "
                f"is yours to state: group.copy({name}) or group.split({name}, axis=...)"
            )
        if value.ranks.owner is not self.ranks.owner:
            raise SplitError(
                f"`{name}` ({value}) belongs to another group ({value.ranks}); this one is {self.ranks}. "
                "Read it and put it here: group.copy(value.numpy())"
            )

    def close(self) -> None:
        """Gives the meshes back."""
        for device in self.devices.values():
            device.close()


def _chosen(machine: MachineSpec, meshes: int | Sequence[int] | None) -> tuple[int, ...]:
    if meshes is None:
        return machine.mesh_ids
    if isinstance(meshes, int):
        if not 1 <= meshes <= len(machine.mesh_ids):
            raise DeviceError(f"{meshes} meshes were asked for; {machine.name} has {len(machine.mesh_ids)}")
        return machine.mesh_ids[:meshes]
    return tuple(meshes)


def _key(place: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in place)


def _element(values: NDArray[Any]) -> tuple[NDArray[Any], ElementType]:
    if values.dtype.kind in "iu":
        if values.size and (values.min() < -(2**31) or values.max() >= 2**31):
            raise SplitError(f"whole numbers from {values.min()} to {values.max()} don't fit i32")
        return values.astype(np.int32), ElementType.I32
    if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
        raise SplitError(f"an array of {values.dtype} can't be put on a machine; floats and whole numbers can")
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise SplitError(
            f"values up to {np.abs(values).max():g} don't fit f16, which ends at 65504 and here has "
            "no infinities; scale them first"
        )
    return halves, ElementType.F16

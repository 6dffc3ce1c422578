"""`MeshGroup`: the meshes that values are spread over, and everything that can be asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright import targets
from meshwright.errors import DeviceError, SplitError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.evaluate.walk import Progress
from meshwright.ir.formats import ElementType
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.elementwise import elementwise
from meshwright.kernels.kernel import Kernel
from meshwright.kernels.matmul import MatrixProduct
from meshwright.machine import MachineSpec, load
from meshwright.runtime.device import Card, Device
from meshwright.runtime.run import run_graph
from meshwright.runtime.traffic import LinkBytes, link_bytes
from meshwright.sharding.lower import graph_of, slot_name
from meshwright.sharding.plan import Plan
from meshwright.sharding.planner import plan_chain, plan_kernel
from meshwright.sharding.value import Ranks, Sharded


class MeshGroup:
    """Ranks on the meshes of one machine. `open` makes one; every value belongs to the group that made it."""

    def __init__(self, card: Card, meshes: Sequence[int], arithmetic: Arithmetic) -> None:
        if not meshes:
            raise SplitError("a group of no meshes holds nothing; name at least one")
        if len(set(meshes)) != len(meshes):
            raise SplitError(f"a group of meshes {tuple(meshes)} names one twice; a mesh is one rank")
        self.machine = card.machine
        self.ranks = Ranks(card.machine.name, tuple(meshes), (len(meshes),), object())
        self.arithmetic = arithmetic
        self.devices = {mesh: Device(card, mesh, arithmetic) for mesh in meshes}
        self.crossed: LinkBytes = {}
        self.graphs_run = 0

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

    @property
    def meshes(self) -> tuple[int, ...]:
        """Mesh ids in rank order, along the links."""
        return self.ranks.meshes

    def __len__(self) -> int:
        return len(self.meshes)

    # Values in

    def put(self, values: ArrayLike, spec: Spec = COPIED, name: str = "") -> Sharded:
        """A value from the host, spread as `spec` says.

        Floats are rounded to the machine's element type (f16), whole numbers to i32. Raises `SplitError` for a split
        that doesn't divide, a partial, a value that is spread already, or a number that doesn't fit the type.
        """
        if isinstance(values, Sharded):
            raise SplitError(f"{values} is spread over meshes already; a plain array belongs here")
        if spec.partial is not None:
            raise SplitError("a value from the host is whole; only operations make partials")
        array, element = _element(np.asarray(values))
        slices = spec.slices(array.shape, len(self))
        held: dict[tuple[tuple[int, int], ...], NDArray[Any]] = {}
        parts = [
            self.devices[mesh].put(held.setdefault(_key(s), array[s]), element)
            for mesh, s in zip(self.meshes, slices, strict=True)
        ]
        return Sharded(self.ranks, array.shape, element, (spec,), tuple(parts), name)

    def copy(self, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh."""
        return self.put(values, COPIED, name)

    def split(self, values: ArrayLike, axis: int, name: str = "") -> Sharded:
        """Equal slices along `axis`, one a mesh, in rank order."""
        return self.put(values, Spec.on(axis, np.ndim(values)), name)

    def put_like(self, other: Sharded, values: ArrayLike, name: str = "") -> Sharded:
        """The whole value on every mesh that has a piece of `other`."""
        self._own(other, "other")
        array, element = _element(np.asarray(values))
        parts = tuple(self.devices[mesh].put(array, element) for mesh in other.meshes)
        return Sharded(other.ranks, array.shape, element, (COPIED,) * len(other.specs), parts, name)

    # Plans

    def plan_matmul(self, a: Sharded, b: Sharded, tile: tuple[int, int, int] | None = None) -> Plan:
        """`a @ b.T` where a reading needs no data moved; runs nothing. Raises `SplitError` where none does."""
        self._own(a, "a")
        self._own(b, "b")
        return plan_kernel(self.machine, self.meshes, MatrixProduct(tile), (a, b), ("a", "b"))

    def plan_each(self, kernel: Kernel | Callable[..., Any], *values: Sharded) -> Plan:
        """The kernel (or a Python function over elements) on every rank's pieces; runs nothing.

        Raises `SplitError` where the kernel mixes elements along a split axis, or isn't linear in a partial.
        """
        known = _kernel(kernel)
        names = [f"operand {i}" if len(values) > 1 else "the operand" for i in range(len(values))]
        if not values:
            raise SplitError(f"{known.name} on nothing: each takes the values to work on")
        for value, name in zip(values, names, strict=True):
            self._own(value, name)
        return plan_kernel(self.machine, self.meshes, known, values, names)

    def plan_matmul_chain_reduce(self, a: Sharded, b: Sharded, tile: tuple[int, int, int] | None = None) -> Plan:
        """`a @ b.T` with the contraction split, summed in the accumulators along the chain of ranks; runs nothing."""
        self._own(a, "a")
        self._own(b, "b")
        return plan_chain(self.machine, (a, b), tile)

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
            self.crossed[link] = self.crossed.get(link, 0) + count
        self.graphs_run += 1
        slot = plan.slots[plan.into]
        ranks = Ranks(self.machine.name, slot.meshes, slot.grid, self.ranks.owner)
        return Sharded(ranks, slot.shaped.shape, slot.shaped.format, slot.specs, made[name])

    def matmul(self, a: Sharded, b: Sharded, tile: tuple[int, int, int] | None = None) -> Sharded:
        """Plans and runs `a @ b.T`."""
        return self.run(self.plan_matmul(a, b, tile))

    def each(self, kernel: Kernel | Callable[..., Any], *values: Sharded) -> Sharded:
        """Plans and runs a kernel on every rank's pieces."""
        return self.run(self.plan_each(kernel, *values))

    def matmul_chain_reduce(self, a: Sharded, b: Sharded, tile: tuple[int, int, int] | None = None) -> Sharded:
        """Plans and runs `a @ b.T` with K split, summed along the meshes; the last one has the result."""
        return self.run(self.plan_matmul_chain_reduce(a, b, tile))

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


def _kernel(kernel: Kernel | Callable[..., Any]) -> Kernel:
    return kernel if hasattr(kernel, "emit") else elementwise(kernel)  # type: ignore[arg-type,return-value]


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

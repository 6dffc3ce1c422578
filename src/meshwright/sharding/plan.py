"""`Plan`: what runs where and what must precede what. Only `run` says when; a plan has run nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel, Shaped, UnitKind
from meshwright.machine import MachineSpec
from meshwright.sharding.value import Ranks, Sharded


class Slot(Struct, frozen=True):
    """A value that a plan reads or makes.

    meshes: who holds a piece, one a rank. grid: extents of the rank grid. resident: pieces are sums in
    accumulators, not in DRAM.
    """

    name: str
    shaped: Shaped
    specs: tuple[Spec, ...]
    meshes: tuple[int, ...]
    grid: tuple[int, ...]
    resident: bool = False

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one piece."""
        shape = self.shaped.shape
        for spec, count in zip(self.specs, self.grid, strict=True):
            shape = spec.local(shape, count)
        return shape


class Ref(Struct, frozen=True):
    """One rank's piece of a slot."""

    slot: int
    rank: int


class Copy(Struct, frozen=True):
    """Copies a piece, or a box of it, into a piece, or a box of it, on this mesh or a neighbour.

    source, target: where the box begins in either piece, one number an axis; shape: its extent. None: all of it.
    """

    source: tuple[int, ...] | None = None
    target: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    name: str = "copy"
    unit: UnitKind = "mover"


class OpenTiles(Struct, frozen=True):
    """A product over this rank's slice of K that opens resident tiles and stays in them."""

    tile: tuple[int, int, int]
    name: str = "matmul, opens"
    unit: UnitKind = "matrix"


class AddTiles(Struct, frozen=True):
    """Adds another rank's resident tiles into this rank's, in its accumulators."""

    name: str = "add into"
    unit: UnitKind = "matrix"


class DrainTiles(Struct, frozen=True):
    """Rounds resident sums to values in DRAM."""

    name: str = "drain"
    unit: UnitKind = "matrix"


StepKernel = Kernel | Copy | OpenTiles | AddTiles | DrainTiles


class Step(Struct, frozen=True):
    """One rank's part of a plan: `kernel` on the pieces `args` gives `result`.

    rank: whose part it is. node: the mesh it runs on, which is another one where the rank's own lacks the unit.
    after: positions of the steps that have to have finished.
    """

    rank: int
    kernel: StepKernel
    args: tuple[Ref, ...]
    result: Ref
    node: int
    after: tuple[int, ...] = ()

    @property
    def knobs(self) -> dict[str, object]:
        """What was chosen for this step beside the operands: the tile of a product."""
        tile = getattr(self.kernel, "tile", None)
        return {} if tile is None else {"tile": tile}


class Plan(Struct, frozen=True, eq=False):
    """Steps over slots. `slots[: len(inputs)]` are the inputs, in order; `into` is the slot of the result."""

    machine: MachineSpec
    ranks: Ranks
    inputs: tuple[Sharded, ...]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    into: int
    reason: str

    @property
    def specs(self) -> tuple[Spec, ...]:
        """How the result is spread, one spec a grid axis."""
        return self.slots[self.into].specs

    @property
    def spec(self) -> Spec:
        """How the result is spread along the first (or only) axis of the rank grid."""
        return self.specs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape of the result."""
        return self.slots[self.into].shaped.shape

    @property
    def tile(self) -> tuple[int, int, int] | None:
        """The tile of the first step that has one."""
        for step in self.steps:
            tile = step.knobs.get("tile")
            if isinstance(tile, tuple):
                m, n, k = tile  # pyright: ignore[reportUnknownVariableType]
                return int(m), int(n), int(k)  # pyright: ignore[reportUnknownArgumentType]
        return None

    @property
    def opens(self) -> tuple[int, ...]:
        """Positions of the steps that open resident tiles."""
        return tuple(i for i, step in enumerate(self.steps) if isinstance(step.kernel, OpenTiles))

    def describe(self) -> Iterator[str]:
        """A line a step: who runs what on what, after what."""
        result = self.slots[self.into]
        how = " x ".join(map(str, result.specs))
        yield f"plan on {self.ranks}: {result.name} {result.shaped} {how}"
        yield f"  because {self.reason}"
        for index, step in enumerate(self.steps):
            args = ", ".join(self._piece(ref) for ref in step.args)
            where = f"mesh {step.node}"
            guest = "" if self.ranks.meshes[step.rank] == step.node else f" for mesh {self.ranks.meshes[step.rank]}"
            after = f"  after {', '.join(map(str, step.after))}" if step.after else ""
            yield f"  {index}: {where}{guest}: {step.kernel.name} {args} -> {self._piece(step.result)}{after}"

    def _piece(self, ref: Ref) -> str:
        slot = self.slots[ref.slot]
        return f"{slot.name}@{slot.meshes[ref.rank]}"

    def __str__(self) -> str:
        return "\n".join(self.describe())

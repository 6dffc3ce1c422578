"""What plans are made of: slots for values, and steps that make one piece from others. Data only."""

from __future__ import annotations

from msgspec import Struct

from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Kernel, Shaped, UnitKind
from meshwright.machine import MachineSpec


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

    @property
    def is_partial(self) -> bool:
        """Whether pieces are contributions that have not been folded."""
        return any(spec.partial is not None for spec in self.specs)


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


class Steps(Struct, frozen=True):
    """Steps over slots, as `Plan` has them, apart from the values: equal ones have the same graph.

    `slots[:given]` are the inputs, in order; `into` is the result.
    """

    machine: MachineSpec
    given: int
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    into: int

    def mesh_of(self, ref: Ref) -> int:
        """The mesh that holds a piece."""
        return self.slots[ref.slot].meshes[ref.rank]

    def named(self, ref: Ref) -> str:
        """A piece for messages: `sum on mesh 3`."""
        return f"{self.slots[ref.slot].name} on mesh {self.mesh_of(ref)}"

    @property
    def opens(self) -> tuple[int, ...]:
        """Positions of the steps that open resident tiles."""
        return tuple(i for i, step in enumerate(self.steps) if isinstance(step.kernel, OpenTiles))

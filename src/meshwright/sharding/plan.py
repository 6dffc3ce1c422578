"""`Plan`: what runs where and what must precede what. Only `run` says when; a plan has run nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright import targets
from meshwright.certify import Certificate, Waiver
from meshwright.ir.graph import Graph
from meshwright.ir.spec import Spec
from meshwright.runtime.traffic import LinkBytes, link_bytes
from meshwright.sharding.certified import certificate_of
from meshwright.sharding.lower import graph_of
from meshwright.sharding.steps import Copy, OpenTiles, Ref, Steps
from meshwright.sharding.value import Ranks, Sharded


class Plan(Steps, frozen=True, eq=False):
    """Steps over slots. `slots[:given]` are the inputs, in order; `into` is the slot of the result.

    ranks: that the result is on. reason: why its split is legal, in words.

    `print(plan)` shows who runs what, what must precede what, and the bytes over each link.
    """

    ranks: Ranks
    inputs: tuple[Sharded, ...]
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

    def graph(self) -> Graph:
        """The stage graph of the whole plan; `PlanError` or `PlacementError` where its steps have no sound order."""
        return graph_of(self)

    def certificate(self, waivers: Sequence[Waiver] = ()) -> Certificate:
        """What can be promised of the plan's graph, obligation by obligation, with evidence; `run` asks for it."""
        return certificate_of(self, waivers)

    def programs(self, words: bool = False) -> str:
        """What the plan is on a card: who is sent which program after what, and what the host does between, as text.

        words: with the disassembly of every word. Raises what `graph` does, and `PlacementError` for what the machine's
        units don't do, or a machine without instruction words.
        """
        return targets.program_text(self.machine, self.graph(), words)

    def link_bytes(self) -> LinkBytes:
        """Payload bytes over each link, by (from mesh, to mesh), as `run` will count them; links without any left out.

        Raises what `graph` does.
        """
        return link_bytes(self.graph(), self.machine)

    def describe(self) -> Iterator[str]:
        """A line a step: who runs what on what, after what; then the bytes over each link."""
        result = self.slots[self.into]
        how = " x ".join(map(str, result.specs))
        yield f"plan on {self.ranks}: {result.name} {result.shaped} {how}"
        yield f"  because {self.reason}"
        for index, step in enumerate(self.steps):
            moved = step.kernel if isinstance(step.kernel, Copy) else Copy()
            args = ", ".join(self._piece(ref) + _box(moved.source, moved.shape) for ref in step.args)
            home = self._home(step.rank)
            guest = f" for mesh {home}" if home != step.node and step.kernel.name != "copy" else ""
            opened = f" (tile {' x '.join(map(str, step.kernel.tile))})" if isinstance(step.kernel, OpenTiles) else ""
            after = f"  after {', '.join(map(str, step.after))}" if step.after else ""
            piece = self._piece(step.result) + _box(moved.target, moved.shape)
            yield f"  {index}: mesh {step.node}{guest}: {step.kernel.name}{opened} {args} -> {piece}{after}"
        crossing = sorted(self.link_bytes().items())
        yield "  over links: " + (", ".join(f"{a} to {b} {n:,} bytes" for (a, b), n in crossing) or "nothing")

    def _home(self, rank: int) -> int:
        """The mesh of a rank: of the inputs' ranks, which the steps are numbered by."""
        meshes = max((self.ranks.meshes, *(slot.meshes for slot in self.slots)), key=len)
        return meshes[rank]

    def _piece(self, ref: Ref) -> str:
        return f"{self.slots[ref.slot].name}@{self.mesh_of(ref)}"

    def __str__(self) -> str:
        return "\n".join(self.describe())


def _box(corner: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> str:
    """The box of a copy, as an index; nothing where it is the whole piece."""
    if corner is None or shape is None:
        return ""
    return f"[{', '.join(f'{start}:{start + size}' for start, size in zip(corner, shape, strict=True))}]"

"""`Sharded`: a value over the meshes of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import SplitError
from meshwright.evaluate.arithmetic import Array
from meshwright.ir.formats import ElementType
from meshwright.ir.pool import Pool
from meshwright.ir.spec import Spec
from meshwright.kernels.kernel import Shaped
from meshwright.runtime.device import Tensor, fetch_all
from meshwright.sharding.pictures import svg_picture, text_picture

_CONTRIBUTIONS = {Pool.SUM: "summands", Pool.PROD: "factors"}


class Ranks(Struct, frozen=True, eq=False):
    """Ranks of one group: which mesh each is, on a grid of the given extents.

    owner: the group, by identity; a value belongs to the group that made it.
    """

    machine: str
    meshes: tuple[int, ...]
    grid: tuple[int, ...]
    owner: object

    def alike(self, other: Ranks) -> bool:
        """Whether both are the same meshes of the same group in the same order."""
        return self.owner is other.owner and self.meshes == other.meshes and self.grid == other.grid

    def __str__(self) -> str:
        shape = "x".join(map(str, self.grid))
        many = "meshes" if self.meshes[1:] else "mesh"
        return f"{self.machine} {many} {', '.join(map(str, self.meshes))}" + (f" as {shape}" if self.grid[1:] else "")


class Sharded(Struct, frozen=True, eq=False):
    """A value whose pieces are on the meshes of a group.

    shape: of the whole value. format: of its elements. specs: how the pieces relate, one for each axis of the rank
    grid. parts: one piece a rank. name: what messages call it.
    """

    ranks: Ranks
    shape: tuple[int, ...]
    format: ElementType
    specs: tuple[Spec, ...]
    parts: tuple[Tensor, ...]
    name: str = ""

    @property
    def spec(self) -> Spec:
        """The spec, where ranks form a line; `SplitError` on a grid of ranks, which has one an axis."""
        if len(self.specs) != 1:
            raise SplitError(f"{self} is over a grid of ranks: it has {len(self.specs)} specs, read value.specs")
        return self.specs[0]

    @property
    def shaped(self) -> Shaped:
        """Logical shape and element type."""
        return Shaped(self.shape, self.format)

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one piece."""
        shape = self.shape
        for spec, count in zip(self.specs, self.ranks.grid, strict=True):
            shape = spec.local(shape, count)
        return shape

    @property
    def meshes(self) -> tuple[int, ...]:
        """The meshes that hold pieces, in rank order."""
        return self.ranks.meshes

    @property
    def is_partial(self) -> bool:
        """Whether pieces are contributions that have not been folded yet."""
        return any(spec.partial is not None for spec in self.specs)

    def part(self, rank: int) -> Tensor:
        """The piece of one rank; `SplitError` for a rank that isn't there."""
        if not 0 <= rank < len(self.parts):
            raise SplitError(f"{self} has ranks 0 to {len(self.parts) - 1}; part({rank}) is not one of them")
        return self.parts[rank]

    def numpy(self) -> Array:
        """The whole value, fetched and put together; `SplitError` for a partial."""
        self.require_whole("numpy()")
        pieces = fetch_all(self.parts)
        whole: NDArray[Any] = np.empty(self.shape, pieces[0].dtype)
        for piece, place in zip(pieces, self.places(), strict=True):
            whole[place] = piece
        return whole

    def require_whole(self, what: str) -> None:
        """Raises `SplitError` for a partial, whose pieces mean nothing by themselves; `what` was asked of it."""
        pools = [spec.partial for spec in self.specs if spec.partial is not None]
        if pools:
            parts = _CONTRIBUTIONS.get(pools[0], "candidates")
            raise SplitError(
                f"{what} of {self}: its pieces are {parts} that nobody has folded yet, and any one of them looks like "
                "a result. Fold it first: group.all_reduce(value), or group.reduce(value) onto one rank"
            )

    def places(self) -> tuple[tuple[slice, ...], ...]:
        """For each rank, the part of the whole value that its piece is."""
        found: list[tuple[slice, ...]] = []
        for rank in range(len(self.meshes)):
            place = [slice(0, size) for size in self.shape]
            shape = self.shape
            position = np.unravel_index(rank, self.ranks.grid)
            for spec, count, at in zip(self.specs, self.ranks.grid, position, strict=True):
                shape = spec.local(shape, count)
                if spec.axis is not None:
                    start = place[spec.axis].start + int(at) * shape[spec.axis]
                    place[spec.axis] = slice(start, start + shape[spec.axis])
            found.append(tuple(place))
        return tuple(found)

    # Reading from Python: all of these fetch the value, and refuse a partial.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self} is on several meshes; reading it always copies")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError(f"{self} is on several meshes; exporting it always copies")
        self.require_whole("DLPack export")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        self.require_whole("DLPack export")
        # What is exported is the copy on the host: device type 1 is the processor's memory.
        return 1, 0

    def item(self) -> float | int:
        """The one element of a value that has one; `SplitError` for a partial, `ValueError` for more elements."""
        self.require_whole("item()")
        return self.numpy().item()

    def __float__(self) -> float:
        self.require_whole("float()")
        return float(self.numpy())

    def __int__(self) -> int:
        self.require_whole("int()")
        return int(self.numpy())

    def __bool__(self) -> bool:
        self.require_whole("bool()")
        return bool(self.numpy())

    def __eq__(self, other: object) -> bool:
        raise SplitError(
            f"{self} == ...: values over meshes are not compared by ==, which would have to read them. Compare on the "
            "host: numpy.array_equal(a, b)"
        )

    def __hash__(self) -> int:
        return id(self)

    # Pictures

    def picture(self) -> str:
        """Who holds what, as text: a line a rank, with the indices it holds and where they lie along split axes."""
        return text_picture(str(self), self.shape, self.specs, self.meshes, self.places())

    def svg(self) -> str:
        """Who holds what, as an SVG drawing: a box a rank, laid out as the rank grid is."""
        return svg_picture(str(self), self.shaped, self.specs, self.ranks.grid, self.meshes, self.places())

    def __str__(self) -> str:
        how = " x ".join(map(str, self.specs))
        named = f"{self.name} " if self.name else ""
        many = "meshes" if self.meshes[1:] else "mesh"
        return f"{named}{self.shaped} {how} on {many} {', '.join(map(str, self.meshes))}"

    def __repr__(self) -> str:
        return f"<Sharded {self}>"

"""Which meshes a group is on, where that is stated by number or left out."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.errors import DeviceError, SplitError
from meshwright.machine import MachineSpec


def chosen_meshes(machine: MachineSpec, meshes: int | Sequence[int] | None) -> tuple[int, ...]:
    """All meshes, the first so many in the order of the links, or those named.

    Raises `DeviceError` for more than there are, `MachineError` for one that isn't there.
    """
    if meshes is None:
        return machine.mesh_ids
    if isinstance(meshes, int):
        if not 1 <= meshes <= len(machine.mesh_ids):
            raise DeviceError(
                f"a group of {meshes} meshes was asked for, and {machine.name} has {len(machine.mesh_ids)}; ask for 1 "
                f"to {len(machine.mesh_ids)}, or name them: meshes={machine.mesh_ids}"
            )
        return machine.mesh_ids[:meshes]
    for mesh in meshes:
        machine.mesh(mesh)
    return tuple(meshes)


def grid_meshes(machine: MachineSpec, rows: int, columns: int, meshes: Sequence[int] | None) -> tuple[int, ...]:
    """The meshes of a grid of ranks, row by row; `SplitError` where there are not `rows` times `columns`."""
    if meshes is None and machine.topology == "grid2d":
        at = {mesh.at: mesh.id for mesh in machine.meshes}
        found = tuple(at[x, y] for y in range(rows) for x in range(columns) if (x, y) in at)
    else:
        found = chosen_meshes(machine, meshes)
        found = found[: max(0, rows * columns)] if meshes is None else found
    if rows < 1 or columns < 1 or len(found) != rows * columns:
        raise SplitError(
            f"a grid of {rows} x {columns} ranks takes {max(0, rows * columns)} meshes, row by row, and there are "
            f"{len(found)}: {', '.join(map(str, found)) or 'none'}. {machine.name} has {len(machine.mesh_ids)} in all"
        )
    return found

"""Machine families: what each gives the other rooms. The only place that tells one family from another."""

from __future__ import annotations

from meshwright.errors import MachineError
from meshwright.evaluate.arithmetic import Arithmetic
from meshwright.ir.formats import ElementType
from meshwright.kernels.placement import Placement
from meshwright.machine import MachineSpec
from meshwright.targets.ktpu import wire
from meshwright.targets.ktpu.arithmetic import KtpuArithmetic
from meshwright.targets.ktpu.placement import KtpuPlacement


def arithmetic(machine: MachineSpec) -> Arithmetic:
    """The number system of the machine's silicon; `MachineError` for a family that has none here."""
    _only_ktpu(machine)
    return KtpuArithmetic()


def placement(machine: MachineSpec, chip: int) -> Placement:
    """One chip of the machine as kernels see it; `MachineError` for a chip or a family that isn't there."""
    _only_ktpu(machine)
    machine.mesh(chip)
    return KtpuPlacement(machine, chip)


def wire_bytes(machine: MachineSpec, format: ElementType, elements: int) -> int:
    """Payload bytes of `elements` of a block that crosses a link of the machine."""
    _only_ktpu(machine)
    return wire.payload_bytes(format, elements)


def _only_ktpu(machine: MachineSpec) -> None:
    if machine.numerics != "ktpu":
        raise MachineError(
            f"{machine.name} computes in {machine.numerics!r}, and values over its meshes can't be run yet; "
            "ktpu machines can: ktpu-v13p, ktpu-1"
        )

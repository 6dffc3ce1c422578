"""meshwright: tensor programs over the meshes of an accelerator, stated, checked, and evaluated bit for bit."""

from meshwright import kernels
from meshwright.errors import MeshwrightError
from meshwright.machine import load as load_machine
from meshwright.sharding import COPIED, PARTIAL, MeshGroup, Plan, Sharded, Spec, Step, pairing
from meshwright.sharding.certified import certify_plan as certify

__all__ = [
    "COPIED",
    "PARTIAL",
    "MeshGroup",
    "MeshwrightError",
    "Plan",
    "Sharded",
    "Spec",
    "Step",
    "certify",
    "kernels",
    "load_machine",
    "pairing",
]

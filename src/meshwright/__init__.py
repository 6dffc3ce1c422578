"""meshwright: tensor programs over the meshes of an accelerator, stated, checked, and evaluated bit for bit."""

from meshwright import kernels
from meshwright.errors import MeshwrightError
from meshwright.machine import load as load_machine
from meshwright.runtime.cards import connected, simulated
from meshwright.runtime.device import Card
from meshwright.sharding import COPIED, PARTIAL, MeshGroup, Plan, Sharded, Spec, Step, pairing
from meshwright.sharding.certified import certify_plan as certify

__all__ = [
    "COPIED",
    "PARTIAL",
    "Card",
    "MeshGroup",
    "MeshwrightError",
    "Plan",
    "Sharded",
    "Spec",
    "Step",
    "certify",
    "connected",
    "kernels",
    "load_machine",
    "pairing",
    "simulated",
]

"""Values over meshes: a split is stated, and what can't be honoured is refused with a message that names the fix."""

from meshwright.ir.spec import COPIED, PARTIAL, Spec
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.plan import Plan
from meshwright.sharding.rules import pairing
from meshwright.sharding.steps import Step
from meshwright.sharding.value import Sharded

__all__ = ["COPIED", "PARTIAL", "MeshGroup", "Plan", "Sharded", "Spec", "Step", "pairing"]

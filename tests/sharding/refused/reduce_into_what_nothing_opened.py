"""A plan that adds into a tile that nothing opened."""

import msgspec
import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", 2)
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
plan = group.plan_chain_reduce(a, b)
opened, _, added, drained = plan.steps
steps = (opened, msgspec.structs.replace(added, after=(0,)), msgspec.structs.replace(drained, after=(1,)))
group.run(msgspec.structs.replace(plan, steps=steps))

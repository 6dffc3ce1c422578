"""A reduce that leaves a rank out names it."""

import msgspec
import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", 2)
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
plan = group.plan_chain_reduce(a, b)
opened, other, _, drained = plan.steps
steps = (opened, other, msgspec.structs.replace(drained, after=(0, 1)))
group.run(msgspec.structs.replace(plan, steps=steps))

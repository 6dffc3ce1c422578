"""A plan is for the group that made it."""

import numpy as np

import meshwright as mw

one, other = mw.MeshGroup.open("ktpu-v13p", 2), mw.MeshGroup.open("ktpu-v13p", 2)
x = one.copy(np.ones((8, 64)))
other.run(one.plan_matmul(x, x))

"""A tile that the unit can't work on."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
group.matmul_chain_reduce(a, b, tile=(10, 16, 48))

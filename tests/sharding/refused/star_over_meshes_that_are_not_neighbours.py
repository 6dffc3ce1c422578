"""No mesh of the chain is next to all others."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
group.matmul_reduce(a, b)

"""A stated tile stays resident, one a cluster."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
a, b = group.split(np.ones((64, 256)), axis=1), group.split(np.ones((128, 256)), axis=1)
group.matmul_chain_reduce(a, b, tile=(16, 64, 64))

"""The meshes are neighbours, but not in this order."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", [0, 3, 1])
g = np.ones((12, 192))
group.matmul_chain_reduce(group.split(g, axis=1), group.split(g, axis=1))

"""A value that was reduced onto one mesh, and one on all of them."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
y = group.matmul_chain_reduce(a, b)
group.each(mw.kernels.add, y, group.copy(np.ones(16), name="bias"))

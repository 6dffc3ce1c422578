"""A rank that the line hasn't got."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", 2)
a, b = group.split(np.ones((16, 256)), axis=1), group.split(np.ones((16, 256)), axis=1)
group.matmul_reduce(a, b, root=2)

"""The contraction has other lengths; b is stored [N][K]."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.matmul(group.copy(np.ones((32, 64))), group.copy(np.ones((64, 16))))

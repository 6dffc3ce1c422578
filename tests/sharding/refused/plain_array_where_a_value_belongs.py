"""How a plain array is spread is for the caller to say."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.matmul(group.copy(np.ones((8, 64))), np.ones((16, 64)))

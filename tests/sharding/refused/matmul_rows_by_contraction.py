"""Rows of one, contraction of the other."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.matmul(group.split(np.ones((32, 64)), axis=0), group.split(np.ones((16, 64)), axis=1))

"""A slice that cuts through a head."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.each(mw.kernels.split_heads(32), group.split(np.ones((1, 4, 64)), axis=2, name="q"))

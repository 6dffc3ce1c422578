"""A copied value has the whole of what the other has a slice of."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.each(mw.kernels.multiply, group.split(np.ones((8, 16)), axis=1, name="x"), group.copy(np.ones(16), name="gamma"))

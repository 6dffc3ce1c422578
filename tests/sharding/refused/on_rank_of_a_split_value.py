"""One mesh has only a slice of it."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.on_rank(group.split(np.ones((8, 16)), axis=0), 1)

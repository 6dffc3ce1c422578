"""Two values split along different axes."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.each(mw.kernels.add, group.split(np.ones((8, 16)), axis=0), group.split(np.ones((8, 16)), axis=1))

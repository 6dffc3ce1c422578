"""A size-1 axis can't be cut."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", 2)
group.reshape(group.split(np.ones((1, 2)), axis=0), (1, 2))

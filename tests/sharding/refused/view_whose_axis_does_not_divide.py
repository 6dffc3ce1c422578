"""The axis that the slices would be of is too short."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.reshape(group.split(np.ones((4, 6)), axis=0, name="x"), (2, 12))

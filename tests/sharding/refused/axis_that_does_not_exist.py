"""A split on an axis that the value hasn't got."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.split(np.ones((8, 16)), axis=2, name="x")

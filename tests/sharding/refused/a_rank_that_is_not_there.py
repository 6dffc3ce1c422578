"""A piece of a rank past the last."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.copy(np.ones(4)).part(4)

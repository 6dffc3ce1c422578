"""A value from the host is whole."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.put(np.ones((8, 16)), mw.PARTIAL)

"""A grid of ranks takes a spec for each of its axes."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.grid("ktpu-v13p", 2, 2)
group.put(np.ones((8, 16)), mw.Spec.on(0))

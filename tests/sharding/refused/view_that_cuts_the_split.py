"""A split that doesn't survive another shape is refused, not relabelled."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.reshape(group.split(np.ones((12, 8)), axis=1, name="x"), (16, 6))

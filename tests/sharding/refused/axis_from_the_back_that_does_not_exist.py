"""The same, counted from the back."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.split(np.ones((8, 16)), axis=-3, name="x")

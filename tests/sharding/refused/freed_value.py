"""The bytes of a freed value are gone."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p", 2)
x = group.copy(np.ones((8, 16)))
group.free(x)
x.numpy()

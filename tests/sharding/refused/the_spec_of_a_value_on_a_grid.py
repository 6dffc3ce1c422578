"""There are two."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.grid("ktpu-v13p", 2, 2)
print(group.copy(np.ones((8, 16))).spec)

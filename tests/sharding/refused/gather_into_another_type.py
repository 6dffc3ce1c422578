"""The same for element types."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.gather(group.split(np.ones((8, 16)), axis=0), into=np.zeros((8, 16), np.float32))

"""Only operations make partials."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.reshard(group.copy(np.ones((8, 16))), mw.PARTIAL)

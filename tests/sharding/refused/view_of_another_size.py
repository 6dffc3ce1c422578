"""As many elements as there are."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.reshape(group.copy(np.ones((4, 6))), (5, 5))

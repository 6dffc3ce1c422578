"""The same for a norm."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.each(mw.kernels.rms_norm(), group.split(np.ones((8, 16)), axis=1), group.split(np.ones(16), axis=0))

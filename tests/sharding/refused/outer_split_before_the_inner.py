"""Slices of slices are brought together inner first."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.grid("ktpu-v13p", 2, 2, meshes=(0, 1, 2, 3))
x = group.put(np.ones((8, 16)), [mw.Spec.on(0), mw.Spec.on(0)])
group.reshard(x, mw.COPIED, along=0)

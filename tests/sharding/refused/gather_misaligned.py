"""A readout that would land misaligned."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
raw = np.zeros(2 * 8 * 16 + 1, np.uint8)[1:]
group.gather(group.split(np.ones((8, 16)), axis=0), into=raw.view(np.float16).reshape(8, 16))

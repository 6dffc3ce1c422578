"""The same with the operands changed over."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
tokens, w1 = np.ones((32, 384)), np.ones((1536, 384))
group.matmul(group.copy(tokens, name="tokens"), group.split(w1, axis=1, name="w1"))

"""The model of a message: a slice of K against the whole of K."""

import numpy as np

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
tokens, w1 = np.ones((32, 384)), np.ones((1536, 384))
group.matmul(group.split(tokens, axis=1, name="tokens"), group.copy(w1, name="w1"))

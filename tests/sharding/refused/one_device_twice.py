"""A mesh is one rank."""

import meshwright as mw

mw.MeshGroup.open("ktpu-v13p", [0, 1, 0])

"""A mesh that the machine hasn't got."""

import meshwright as mw

mw.MeshGroup.open("ktpu-v13p", [0, 7])

"""A grid of more ranks than there are meshes."""

import meshwright as mw

mw.MeshGroup.grid("ktpu-v13p", 2, 3)

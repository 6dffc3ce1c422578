"""A group of no meshes."""

import meshwright as mw

mw.MeshGroup.open("ktpu-v13p", [])

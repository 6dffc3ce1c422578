"""A group of more meshes than the machine has."""

import meshwright as mw

mw.MeshGroup.open("ktpu-v13p", 5)

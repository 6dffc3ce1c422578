"""A single number has no axis to cut."""

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.split(3.0, axis=0)

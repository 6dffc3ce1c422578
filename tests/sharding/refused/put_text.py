"""Something that is no number."""

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.copy(["a", "b"])

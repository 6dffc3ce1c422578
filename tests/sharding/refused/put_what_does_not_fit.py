"""A number past the end of the machine's type."""

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.copy([1.0, 70000.0])

"""A kernel without values."""

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.each(mw.kernels.gelu)

"""Whole numbers past i32."""

import meshwright as mw

group = mw.MeshGroup.open("ktpu-v13p")
group.copy([1, 2**40])

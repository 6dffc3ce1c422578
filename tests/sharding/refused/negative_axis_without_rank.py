"""An axis from the back of a tensor whose number of axes isn't known."""

import meshwright as mw

mw.Spec.on(-1)

"""A value is split or partial, not both."""

import meshwright as mw

mw.Spec(axis=1, partial=mw.PARTIAL.partial)

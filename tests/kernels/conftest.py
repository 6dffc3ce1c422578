"""Few examples of each property: every one evaluates a whole graph."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None, max_examples=25)
settings.load_profile("kernels")

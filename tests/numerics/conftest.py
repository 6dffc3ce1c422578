"""Backends as fixtures, and how much hypothesis tries."""

import pytest
from hypothesis import settings

from meshwright.numerics.backend import available

settings.register_profile("numerics", deadline=None, max_examples=50)
settings.load_profile("numerics")

COMPILED = [name for name in available() if name != "numpy"]


@pytest.fixture(params=available())
def backend(request):
    """Every backend that runs here."""
    return request.param


@pytest.fixture(params=COMPILED)
def compiled_backend(request):
    """Every backend but numpy, to be held against numpy."""
    return request.param

"""Versions of what is installed."""

from importlib import metadata


def version(distribution: str = "meshwright") -> str:
    """The installed version of `distribution`, or `not installed` (as when run from a source tree)."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"

"""The `meshwright` command."""

from meshwright.cli.app import app, main

__all__ = ["app", "main"]

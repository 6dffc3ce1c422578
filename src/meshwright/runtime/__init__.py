"""Devices, their memory, and running graphs on them."""

"""Grids of sites in the manner of Tenstorrent parts: their arithmetic, their sites and what they hold."""

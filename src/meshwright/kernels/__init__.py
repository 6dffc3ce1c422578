"""Tensor operations as graph builders: each says what it mixes, and adds its stages to a graph."""

"""Kernels for a grid of sites with multicast, and collectives between its chips, one hop a step."""

from meshwright.kernels.grid.collectives import all_gather, all_reduce, reduce_scatter
from meshwright.kernels.grid.convolution import MulticastConvolution, multicast_convolution
from meshwright.kernels.grid.embedding import SpreadEmbedding
from meshwright.kernels.grid.experts import MixtureOfExperts, mixture_of_experts
from meshwright.kernels.grid.matmul import MulticastProduct, multicast_matmul
from meshwright.kernels.grid.rectangle import SiteRectangle
from meshwright.kernels.grid.route import Route

__all__ = [
    "MixtureOfExperts",
    "MulticastConvolution",
    "MulticastProduct",
    "Route",
    "SiteRectangle",
    "SpreadEmbedding",
    "all_gather",
    "all_reduce",
    "mixture_of_experts",
    "multicast_convolution",
    "multicast_matmul",
    "reduce_scatter",
]

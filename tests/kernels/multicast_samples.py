"""A catalogue of graphs for grids of sites, small enough to read, each of another kind."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.multicast_machines import line, one_chip, places, ring

from meshwright import targets
from meshwright.ir import library
from meshwright.ir.formats import ElementType as E
from meshwright.ir.graph import Graph
from meshwright.ir.pool import Pool
from meshwright.ir.serialise import to_json
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.grid import (
    Route,
    SpreadEmbedding,
    all_gather,
    all_reduce,
    mixture_of_experts,
    multicast_convolution,
    multicast_matmul,
    reduce_scatter,
)
from meshwright.kernels.kernel import Kernel, Shaped
from meshwright.machine import MachineSpec

TILE = (32, 32, 32)


def bf16(*shape: int) -> Shaped:
    return Shaped(shape, E.BF16)


def i32(*shape: int) -> Shaped:
    return Shaped(shape, E.I32)


KERNELS: dict[str, tuple[MachineSpec, Kernel, tuple[Shaped, ...]]] = {
    "matmul": (one_chip(4, 4), multicast_matmul(TILE), (bf16(128, 128), bf16(128, 128))),
    "matmul-bias-gelu": (
        one_chip(3, 2),
        multicast_matmul(TILE, epilogue=library.gelu),
        (bf16(64, 64), bf16(96, 64), bf16(96)),
    ),
    "matmul-residual": (
        one_chip(2, 2),
        multicast_matmul(TILE, b_transposed=False, epilogue=lambda x: library.maximum(x, 0.0)),
        (bf16(64, 96), bf16(96, 64), bf16(64, 64)),
    ),
    "matmul-spill": (one_chip(2, 2), multicast_matmul(TILE, spill=E.F32), (bf16(64, 128), bf16(64, 128))),
    "matmul-spill-bf16": (one_chip(2, 2), multicast_matmul(TILE, spill=E.BF16), (bf16(64, 128), bf16(64, 128))),
    "matmul-ragged": (one_chip(3, 2), multicast_matmul(TILE), (bf16(75, 41), bf16(130, 41))),
    "matmul-shallow": (one_chip(2, 2), multicast_matmul(TILE, depth=1), (bf16(64, 96), bf16(64, 96))),
    "matmul-one-site": (one_chip(1, 1), multicast_matmul(TILE), (bf16(40, 64), bf16(32, 64))),
    "convolution": (
        one_chip(2, 4),
        multicast_convolution(stride=2, padding=1),
        (bf16(1, 16, 12, 16), bf16(48, 3, 3, 16)),
    ),
    "convolution-groups": (
        one_chip(2, 2),
        multicast_convolution(padding=(1, 2), dilation=(1, 2)),
        (bf16(2, 6, 7, 2, 8), bf16(2, 10, 3, 3, 8)),
    ),
    "embedding": (one_chip(2, 2), SpreadEmbedding(), (bf16(50, 24), i32(70))),
    "experts": (
        one_chip(2, 3),
        mixture_of_experts(2),
        (bf16(40, 48), bf16(5, 48), bf16(5, 64, 48), bf16(5, 48, 64)),
    ),
    "experts-scatter": (
        one_chip(2, 2),
        mixture_of_experts(1, activation=lambda x: library.maximum(x, 0.0), scatter=True),
        (bf16(33, 32), bf16(2, 32), bf16(2, 64, 32), bf16(2, 32, 64)),
    ),
}
"""Kernels with the machine and the operands of their sample graph."""

ROUTES = {
    "all-reduce-ring": (ring(4), lambda r, p: all_reduce(r, p, (8, 6), E.F32)),
    "all-reduce-line": (line(3), lambda r, p: all_reduce(r, p, (7, 5), E.BF16, carried=E.F32)),
    "all-reduce-max-pair": (line(2, 4, 4), lambda r, p: all_reduce(r, p, (64, 64), E.BF16, Pool.MAX)),
    "all-gather-line": (line(4), lambda r, p: all_gather(r, p, (8, 10), E.BF16)),
    "all-gather-ring": (ring(5), lambda r, p: all_gather(r, p, (4, 10), E.BF16, axis=1)),
    "reduce-scatter-ring": (ring(3), lambda r, p: reduce_scatter(r, p, (6, 4), E.F32, Pool.MIN)),
    "reduce-scatter-line": (line(4), lambda r, p: reduce_scatter(r, p, (8, 4), E.BF16)),
}
"""Collectives with the machine whose route they take."""


def sample_machines() -> dict[str, MachineSpec]:
    """The machine that each sample graph is for."""
    return {name: machine for name, (machine, *_) in (KERNELS | ROUTES).items()}


def write_samples(folder: Path) -> None:
    """Every sample graph as JSON, by name."""
    for name, graph in sample_graphs().items():
        (folder / f"{name}.json").write_bytes(to_json(graph) + b"\n")


def sample_graphs() -> dict[str, Graph]:
    """The graphs by name."""
    made = {
        name: graph_alone(kernel, targets.placement(machine, 0), operands)
        for name, (machine, kernel, operands) in KERNELS.items()
    }
    collectives = {name: build(Route.along(machine), places(machine)) for name, (machine, build) in ROUTES.items()}
    return made | collectives


if __name__ == "__main__":
    write_samples(Path(__file__).parents[1] / "report" / "samples")

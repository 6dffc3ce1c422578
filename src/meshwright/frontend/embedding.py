"""Embedding sentences on the card and in float64, and what can be said about the difference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.evaluate.arithmetic import Array
from meshwright.frontend.feed_forward import rms
from meshwright.frontend.minilm import Array64, MiniLM, Tokens, encode
from meshwright.frontend.transformer import Encoder, multiply_adds, pooled
from meshwright.machine import MachineSpec
from meshwright.runtime.cards import BackendName
from meshwright.runtime.device import Stats
from meshwright.runtime.traffic import LinkBytes
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.plan import Plan
from meshwright.sharding.value import Sharded

Progress = Callable[[str, int, int], None]
"""Called with what is done and how many plans of all have run."""


class Operation(Struct, frozen=True, eq=False):
    """One operation of a layer: what it is, its plan, and the bytes that it moved over links."""

    what: str
    plan: Plan
    crossed: LinkBytes


class Run(Struct, frozen=True, eq=False):
    """One pass of the encoder over a group. devices: what each mesh has done for it."""

    layers: tuple[Array, ...]
    operations: tuple[Operation, ...]
    crossed: LinkBytes
    seconds: float
    devices: dict[int, Stats]

    @property
    def hidden(self) -> Array:
        """The last layer's output, [sentences, length, hidden], fp16."""
        return self.layers[-1]


class Comparison(Struct, frozen=True, eq=False):
    """Sentence embeddings from the card and from float64, and the error after every layer.

    errors: by layer, root mean square of the difference as a share of the reference's. cosines: of each sentence's
    embedding with float64's.
    """

    card: Array64
    reference: Array64
    errors: tuple[float, ...]
    cosines: tuple[float, ...]


def run_encoder(
    machine: MachineSpec,
    meshes: int,
    model: MiniLM,
    tokens: Tokens,
    contraction: bool = True,
    progress: Progress | None = None,
    backend: BackendName = "evaluator",
) -> Run:
    """The encoder over the first `meshes` of a machine; every layer's output is fetched after the clock has stopped."""
    group = MeshGroup.open(machine, meshes, backend=backend)
    x = model.embeddings(tokens)
    started: list[tuple[str, Plan, LinkBytes]] = []
    encoder = Encoder(group, model, contraction)
    total = encoder.operations * model.config.num_hidden_layers

    def watch(what: str, plan: Plan) -> None:
        started.append((what, plan, group.stats().crossed))
        if progress is not None:
            progress(what, len(started) - 1, total)

    encoder.watch = watch
    kept: list[Sharded] = []
    start = time.perf_counter()
    encoder.run(x, tokens.mask, lambda _, value: kept.append(value))
    seconds = time.perf_counter() - start
    crossed = group.stats().crossed
    after = [c for _, _, c in started[1:]] + [crossed]
    operations = tuple(
        Operation(what, plan, _difference(before, then))
        for (what, plan, before), then in zip(started, after, strict=True)
    )
    devices = group.stats().devices
    return Run(tuple(value.numpy() for value in kept), operations, crossed, seconds, devices)


def _difference(before: LinkBytes, after: LinkBytes) -> LinkBytes:
    return {link: count - before.get(link, 0) for link, count in after.items() if count != before.get(link, 0)}


def compare(run: Run, model: MiniLM, tokens: Tokens) -> Comparison:
    """The run's outputs against the same encoder in float64 on unrounded weights and embeddings."""
    reference = list(encode(model, model.embeddings(tokens), tokens.mask))
    errors = [
        rms((mine.astype(np.float64) - theirs)[tokens.mask]) / rms(theirs[tokens.mask])
        for mine, theirs in zip(run.layers, reference, strict=True)
    ]
    card, exact = pooled(run.hidden, tokens.mask), pooled(reference[-1], tokens.mask)
    return Comparison(card, exact, tuple(errors), tuple(float(c) for c in (card * exact).sum(axis=-1)))


def bits_equal(runs: Sequence[Run], mask: NDArray[np.bool_]) -> bool:
    """Whether all runs gave the same bits in every layer, at every token."""
    first = [layer[mask].view(np.uint16) for layer in runs[0].layers]
    return all(
        np.array_equal(a, layer[mask].view(np.uint16))
        for run in runs[1:]
        for a, layer in zip(first, run.layers, strict=True)
    )


class Rate(Struct, frozen=True):
    """How fast the encoder ran: seconds, and multiply-adds a second in billions, padding included."""

    seconds: float
    gmac: float


def rate(seconds: float, model: MiniLM, tokens: Tokens) -> Rate:
    """The rate of a pass over `tokens` that took `seconds`."""
    return Rate(seconds, multiply_adds(model, tokens) / seconds / 1e9)


def float32_rate(model: MiniLM, tokens: Tokens) -> Rate:
    """The same encoder in float32 numpy on this processor."""
    x = model.embeddings(tokens).astype(np.float32)
    start = time.perf_counter()
    for _ in encode(model, x, tokens.mask):
        pass
    return rate(time.perf_counter() - start, model, tokens)

"""How fast a whole transformer runs here, where the time goes, and how that compares with float32 numpy."""

from __future__ import annotations

import cProfile
import importlib
import pstats
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct

from meshwright import numerics
from meshwright.errors import UsageError
from meshwright.frontend.embedding import float32_rate, rate
from meshwright.frontend.minilm import MiniLM, Tokens
from meshwright.frontend.transformer import Encoder, multiply_adds
from meshwright.machine import MachineSpec
from meshwright.numerics.backend import using
from meshwright.sharding.group import MeshGroup

_KERNELS = str(Path(numerics.__file__).parent)
_WORDS = ("the river", "an old red car", "a lovely day", "sunny outside", "he drove to the stadium", "two boats")


class Report(Struct, frozen=True):
    """Seconds and GMAC/s of the best run on the meshes and of the best in float32 numpy, one thread each.

    in_kernels: share of a run's time that is spent in the number formats' kernels.
    """

    sentences: int
    tokens: int
    meshes: int
    multiply_adds: int
    seconds: float
    gmac: float
    float32_seconds: float
    float32_gmac: float
    in_kernels: float

    def to_json(self) -> str:
        """The report as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def text_of(model: MiniLM, sentences: int, length: int) -> Tokens:
    """Made-up sentences of real words, `length` tokens each; `UsageError` past what the model has positions for."""
    limit = len(model.weights["embeddings.position_embeddings.weight"])
    if not (sentences >= 1 and 3 <= length <= limit):
        raise UsageError(f"{sentences} sentences of {length} tokens: at least 1, of 3 to {limit} tokens")
    words = np.concatenate([model.tokens([phrase]).ids[0, 1:-1] for phrase in _WORDS])
    start, end = model.tokens(["a"]).ids[0, [0, -1]]
    ids = np.empty((sentences, length), dtype=np.int64)
    for row in range(sentences):
        ids[row] = np.resize(np.roll(words, row), length)
    ids[:, 0], ids[:, -1] = start, end
    return Tokens(ids, np.ones(ids.shape, dtype=np.bool_))


def run(machine: MachineSpec, meshes: int, model: MiniLM, tokens: Tokens, repeats: int = 2) -> Report:
    """Times the encoder and float32 numpy in turns, `repeats` times each on one thread, and profiles one run."""
    group = MeshGroup.open(machine, meshes)
    encoder = Encoder(group, model)
    x = model.embeddings(tokens)
    mine: list[float] = []
    theirs: list[float] = []
    with using(threads=1), _numpy_on_one_thread():
        for _ in range(repeats):
            start = time.perf_counter()
            encoder.run(x, tokens.mask)
            mine.append(time.perf_counter() - start)
            theirs.append(float32_rate(model, tokens).seconds)
        share = _share_in_kernels(lambda: encoder.run(x, tokens.mask))
    card, numpy = rate(min(mine), model, tokens), rate(min(theirs), model, tokens)
    sentences, length = tokens.ids.shape
    macs = multiply_adds(model, tokens)
    return Report(sentences, length, meshes, macs, card.seconds, card.gmac, numpy.seconds, numpy.gmac, share)


@contextmanager
def _numpy_on_one_thread() -> Generator[None]:
    try:
        limits: Any = importlib.import_module("threadpoolctl").threadpool_limits
    except ModuleNotFoundError:
        raise UsageError("bench transformer needs threadpoolctl: pip install 'meshwright[demo]'") from None
    with limits(1):
        yield


def _share_in_kernels(work: Any) -> float:
    profile = cProfile.Profile()
    profile.runcall(work)
    timed = cast("Any", pstats.Stats(profile))
    # Rows are (file, line, function): (calls, primitive calls, own time, cumulative time, callers).
    own = {place: row[2] for place, row in timed.stats.items()}
    return sum(t for (file, _, _), t in own.items() if file.startswith(_KERNELS)) / sum(own.values())

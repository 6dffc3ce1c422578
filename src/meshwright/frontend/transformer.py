"""A transformer encoder whose every operation runs on the meshes of a group.

Query, key, value and the first feed-forward matrix are split by output columns, attention by heads; the output
projection and the second feed-forward matrix are split by contraction and summed in the accumulators along the
chain of meshes. The mesh where sums end adds the residual, normalises, and the result is copied back out to all.
With `contraction=False` those two products are split by columns as well, after bringing their operand together: more
bytes over the links, and bits that don't depend on how many meshes there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.errors import SplitError
from meshwright.frontend.minilm import Array64, MiniLM, Tokens
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.ir.spec import COPIED
from meshwright.kernels import layer_norm, merge_heads, softmax, split_heads, split_heads_transposed
from meshwright.kernels.elementwise import Elementwise, add
from meshwright.sharding.group import MeshGroup
from meshwright.sharding.plan import Plan
from meshwright.sharding.value import Sharded

MASKED = -30000.0
"""What is added to a score to rule a key out: after softmax nothing is left of it."""

bias_gelu = Elementwise("gelu(h + b)", library.gelu(Operand(0) + Operand(1)), 2)
bias_residual = Elementwise("h + b + residual", Operand(0) + Operand(1) + Operand(2), 3)

Watch = Callable[[str, Plan], None]
"""Called with what is about to run and its plan."""


class Dense(Struct, frozen=True, eq=False):
    """A matrix [N][K] and its bias over the group."""

    weight: Sharded
    bias: Sharded


class EncoderLayer(Struct, frozen=True, eq=False):
    """The weights of one encoder layer over the group."""

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    attention_norm: tuple[Sharded, Sharded]
    intermediate: Dense
    contracted: Dense
    output_norm: tuple[Sharded, Sharded]


class Encoder:
    """The encoder of a model on a group: weights are sent once, then any number of inputs run.

    contraction: whether the output projection and the second feed-forward matrix are split by contraction.
    Raises `SplitError` where heads or columns don't divide by the number of meshes.
    """

    def __init__(self, group: MeshGroup, model: MiniLM, contraction: bool = True, watch: Watch | None = None) -> None:
        heads, count = model.config.num_attention_heads, len(group)
        if heads % count or model.config.intermediate_size % count:
            raise SplitError(
                f"{count} meshes: {heads} heads and {model.config.intermediate_size} columns have to divide by them; "
                f"{', '.join(str(n) for n in range(1, count) if heads % n == 0)} would do"
            )
        self.group = group
        self.model = model
        self.contraction = contraction and count > 1
        self.watch = watch
        self.layers = [self._layer(number) for number in range(model.config.num_hidden_layers)]

    @property
    def operations(self) -> int:
        """Plans that one layer runs, for a progress bar."""
        return 23 if self.contraction or len(self.group) == 1 else 27

    def _layer(self, number: int) -> EncoderLayer:
        def dense(name: str, axis: int) -> Dense:
            weight, bias = (self.model.layer(number, f"{name}.{part}") for part in ("weight", "bias"))
            put = self.group.split(weight, axis, name)
            # A bias goes with the columns of its product; summed along the chain there is one result, on one mesh.
            return Dense(put, self.group.split(bias, 0) if axis == 0 else self._at_end(bias))

        def norm(name: str) -> tuple[Sharded, Sharded]:
            gamma, beta = (self.model.layer(number, f"{name}.LayerNorm.{part}") for part in ("weight", "bias"))
            return self._at_end(gamma), self._at_end(beta)

        last = 1 if self.contraction else 0
        return EncoderLayer(
            dense("attention.self.query", 0),
            dense("attention.self.key", 0),
            dense("attention.self.value", 0),
            dense("attention.output.dense", last),
            norm("attention.output"),
            dense("intermediate.dense", 0),
            dense("output.dense", last),
            norm("output"),
        )

    def _at_end(self, values: NDArray[Any]) -> Sharded:
        """A copied value on the mesh where sums end, or on all meshes where nothing is summed."""
        copied = self.group.copy(values)
        return self.group.on_rank(copied, len(self.group) - 1) if self.contraction else copied

    def run(self, x: Array64, mask: NDArray[np.bool_], after: Callable[[int, Sharded], None] | None = None) -> Sharded:
        """The encoder on embeddings `x` [sentences, length, hidden], of which `mask` [sentences, length] are tokens.

        after: called with each layer's number and output.
        """
        hidden = self.group.copy(x, "x")
        scores_mask = self.group.copy(np.where(mask, 0.0, MASKED)[:, None, None, :], "mask")
        for number, layer in enumerate(self.layers):
            hidden = self._run_layer(layer, hidden, scores_mask)
            if after is not None:
                after(number, hidden)
        return hidden

    def _run(self, what: str, plan: Plan) -> Sharded:
        if self.watch is not None:
            self.watch(what, plan)
        return self.group.run(plan)

    def _each(self, what: str, kernel: Any, *values: Sharded) -> Sharded:
        return self._run(what, self.group.plan_each(kernel, *values))

    def _dense(self, what: str, x: Sharded, dense: Dense) -> Sharded:
        product = self._run(what, self.group.plan_matmul(x, dense.weight))
        return self._each(f"{what} bias", add, product, dense.bias)

    def _run_layer(self, layer: EncoderLayer, x: Sharded, mask: Sharded) -> Sharded:
        attended = self._attention(layer, x, mask)
        x = self._finish("attention output", attended, layer.output, x, layer.attention_norm)
        product = self._run("first matrix", self.group.plan_matmul(x, layer.intermediate.weight))
        hidden = self._each("GELU", bias_gelu, product, layer.intermediate.bias)
        return self._finish("second matrix", hidden, layer.contracted, x, layer.output_norm)

    def _attention(self, layer: EncoderLayer, x: Sharded, mask: Sharded) -> Sharded:
        size = self.model.config.hidden_size // self.model.config.num_attention_heads
        queries = self._each("queries", split_heads(size), self._dense("query", x, layer.query))
        keys = self._each("keys", split_heads(size), self._dense("key", x, layer.key))
        values = self._each("values", split_heads_transposed(size), self._dense("value", x, layer.value))
        scores = self._run("scores", self.group.plan_matmul(queries, keys))
        weights = self._each("softmax", softmax(scale=size**-0.5), scores, mask)
        heads = self._run("heads", self.group.plan_matmul(weights, values))
        return self._each("merged heads", merge_heads(), heads)

    def _finish(
        self, what: str, value: Sharded, dense: Dense, residual: Sharded, norm: tuple[Sharded, Sharded]
    ) -> Sharded:
        """A product, its bias, the residual and layer norm; the result copied on every mesh."""
        if self.contraction:
            total = self._run(what, self.group.plan_chain_reduce(value, dense.weight))
            residual = self.group.on_rank(residual, len(self.group) - 1)
            return self._run("broadcast", self.group.plan_broadcast(self._normed(total, dense.bias, residual, norm)))
        # The same operations in the same order whatever the number of meshes, so that bits can't depend on it.
        total = self._each(f"{what} bias", add, self._columns(what, value, dense), dense.bias)
        summed = self._each("residual", add, self._together(total), residual)
        return self._each("norm", self._norm(), summed, *norm)

    def _columns(self, what: str, value: Sharded, dense: Dense) -> Sharded:
        return self._run(what, self.group.plan_matmul(self._together(value), dense.weight))

    def _together(self, value: Sharded) -> Sharded:
        return value if len(self.group) == 1 else self._run("gather", self.group.plan_reshard(value, COPIED))

    def _normed(self, total: Sharded, bias: Sharded, residual: Sharded, norm: tuple[Sharded, Sharded]) -> Sharded:
        return self._each("norm", self._norm(), self._each("residual", bias_residual, total, bias, residual), *norm)

    def _norm(self) -> Any:
        return layer_norm(eps=self.model.config.layer_norm_eps)


def multiply_adds(model: MiniLM, tokens: Tokens) -> int:
    """Multiply-adds of the encoder on these tokens, padding included: products and attention."""
    config = model.config
    sentences, length = tokens.ids.shape
    each = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    attention = 2 * length * config.hidden_size
    return config.num_hidden_layers * sentences * length * (each + attention)


def pooled(hidden: NDArray[Any], mask: NDArray[np.bool_]) -> Array64:
    """Sentence embeddings [sentences, hidden]: the mean over tokens, of length 1; on the host, in float64."""
    weights = mask[:, :, None].astype(np.float64)
    mean = (hidden.astype(np.float64) * weights).sum(axis=1) / weights.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)

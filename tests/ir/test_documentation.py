"""The page about stage graphs: its JSON is the graph that its Python builds, and computes what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from evaluate.interpreter import interpret
from meshwright.ir.flow import block_counts
from meshwright.ir.form import require_well_formed
from meshwright.ir.serialise import from_json, schema

PAGE = Path(__file__).parents[2] / "docs" / "stage-graph.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_the_json_on_the_page_is_the_graph_that_is_built_there() -> None:
    names: dict[str, Any] = {}
    exec(compile(block("python"), str(PAGE), "exec"), names)
    jsonschema.Draft202012Validator(schema()).validate(json.loads(block("json")))
    assert from_json(block("json")) == names["graph"]


def test_it_computes_what_the_page_says() -> None:
    graph = from_json(block("json"))
    require_well_formed(graph)
    assert block_counts(graph) == {0: 2, 1: 2, 2: 2}
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    w = np.array([[1, -2, 3], [0, 1, -1]], dtype=np.float32)
    (y,) = interpret(graph, {"x": (x,), "w": (w,)})["y"]
    assert np.array_equal(y, np.maximum(x @ w.T, 0))

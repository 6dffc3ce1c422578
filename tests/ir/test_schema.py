"""The JSON schema of graph files: published, current, and telling graphs from other things."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from evaluate.random_graphs import Case, cases
from ir.random_records import graphs
from ir.samples import SAMPLES
from meshwright.errors import GraphError
from meshwright.ir.graph import Graph
from meshwright.ir.serialise import from_json, schema, schema_text, to_json

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "stage-graph.schema.json"
UPDATE = (
    'python -c "from meshwright.ir.serialise import schema_text; print(schema_text(), end=str())" '
    "> docs/schema/stage-graph.schema.json"
)
validator = jsonschema.Draft202012Validator(schema())


def test_the_published_schema_is_current() -> None:
    assert PUBLISHED.read_text() == schema_text(), f"the records have changed; publish their schema with\n  {UPDATE}"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs)
def test_what_is_written_fits_the_schema(graph: Graph) -> None:
    validator.validate(json.loads(to_json(graph)))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_well_formed_graphs_fit_the_schema(case: Case) -> None:
    validator.validate(json.loads(to_json(case.graph)))


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last, value = path

    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in keys:
            at = at[key]
        at[last] = value

    return change


BROKEN: dict[str, Callable[[dict[str, Any]], None]] = {
    "table missing": lambda d: d.pop("stages"),
    "unknown table": _set("spans", []),
    "unknown field": _set("buffers", 0, "banks", 2),
    "field missing": lambda d: d["buffers"][0].pop("depth"),
    "unknown kind": _set("stages", 0, "kind", "kind", "explode"),
    "unknown operation": _set("stages", 3, "kind", "op", "op", "convolve"),
    "unknown node": _set("stages", 3, "kind", "op", "epilogue", "node", "power"),
    "unknown format": _set("tensors", 0, "format", "f8"),
    "text for a number": _set("stages", 0, "kind", "num_blocks", "6"),
    "fraction for a number": _set("stages", 0, "kind", "num_blocks", 5.5),
    "truth for a number": _set("stages", 0, "kind", "num_blocks", True),
    "nothing for a number": _set("buffers", 0, "depth", None),
    "two numbers for three": _set("stages", 3, "kind", "op", "block", [4, 4]),
    "a word that is no constant": _set("stages", 3, "kind", "op", "epilogue", {"node": "constant", "value": "huge"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_by_schema_and_reader(name: str) -> None:
    document = json.loads(to_json(SAMPLES["linear_layer"]()))
    validator.validate(document)
    BROKEN[name](document)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document)
    with pytest.raises(GraphError):
        from_json(json.dumps(document))

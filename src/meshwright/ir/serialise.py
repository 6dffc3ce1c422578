"""Graphs as JSON and MessagePack, and the JSON schema of what a graph file holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from meshwright.errors import GraphError
from meshwright.ir.form import size_faults
from meshwright.ir.graph import Graph

_Source = TypeVar("_Source", bytes, str, bytes | str)
_json_decoder = msgspec.json.Decoder(Graph)
_msgpack_decoder = msgspec.msgpack.Decoder(Graph)


def to_json(graph: Graph) -> bytes:
    """The graph as JSON (UTF-8); equal graphs give equal bytes. `GraphError` for one that could not be read back."""
    _require_sizes(graph, "this graph can't be written as JSON")
    return msgspec.json.encode(graph)


def from_json(data: bytes | str) -> Graph:
    """The graph that `to_json` wrote, or anyone else to the schema; `GraphError` with the place of what is wrong.

    Reads what the schema allows; whether it is well formed is asked by `form.require_well_formed`.
    """
    return _read(_json_decoder.decode, data, "not a stage graph in JSON")


def to_msgpack(graph: Graph) -> bytes:
    """The graph as MessagePack; equal graphs give equal bytes. `GraphError` for one that could not be read back."""
    _require_sizes(graph, "this graph can't be written as MessagePack")
    return msgspec.msgpack.encode(graph)


def from_msgpack(data: bytes) -> Graph:
    """The graph that `to_msgpack` wrote, read as `from_json` does; `GraphError` with the place of what is wrong."""
    return _read(_msgpack_decoder.decode, data, "not a stage graph in MessagePack")


def _read(decode: Callable[[_Source], Graph], data: _Source, refusal: str) -> Graph:
    try:
        graph = decode(data)
    except RecursionError:
        raise GraphError(f"{refusal}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise GraphError(f"{refusal}: {error}") from None
    _require_sizes(graph, refusal)
    return graph


def _require_sizes(graph: Graph, refusal: str) -> None:
    # Before anything hashes, compares, prints or serialises an expression, all of which recurse.
    for fault in size_faults(graph):
        raise GraphError(f"{refusal}: {fault}")


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a graph file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Graph)}


def schema_text() -> str:
    """The schema as it is published, in `docs/schema/stage-graph.schema.json`."""
    return msgspec.json.format(msgspec.json.encode(schema(), order="sorted"), indent=2).decode() + "\n"

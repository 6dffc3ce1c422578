"""Graphs as JSON and MessagePack, and the JSON schema of what a graph file holds."""

from __future__ import annotations

from typing import Any

import msgspec

from meshwright.errors import GraphError
from meshwright.ir.graph import Graph

_json_decoder = msgspec.json.Decoder(Graph)
_msgpack_decoder = msgspec.msgpack.Decoder(Graph)


def to_json(graph: Graph) -> bytes:
    """The graph as JSON (UTF-8); equal graphs give equal bytes."""
    return msgspec.json.encode(graph)


def from_json(data: bytes | str) -> Graph:
    """The graph that `to_json` wrote, or anyone else to the schema; `GraphError` with the place of what is wrong."""
    try:
        return _json_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GraphError(f"not a stage graph in JSON: {_reason(error)}") from None


def to_msgpack(graph: Graph) -> bytes:
    """The graph as MessagePack; equal graphs give equal bytes."""
    return msgspec.msgpack.encode(graph)


def from_msgpack(data: bytes) -> Graph:
    """The graph that `to_msgpack` wrote; `GraphError` with the place of what is wrong."""
    try:
        return _msgpack_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GraphError(f"not a stage graph in MessagePack: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a graph file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Graph)}

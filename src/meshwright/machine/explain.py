"""Turns the complaint of a schema check into a key and a sentence that says what would do."""

import re
from difflib import get_close_matches
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from meshwright.machine.checks import Key, MachineKeyError
from meshwright.machine.mesh import listed
from meshwright.machine.spec import MachineSpec

_COMPLAINT: Final = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_WORDS: Final = (
    ("`object | null`", "a table"),
    ("`object`", "a table"),
    ("`array`", "an array"),
    ("`int`", "a whole number"),
    ("`float`", "a number"),
    ("`str`", "text"),
    ("`bool`", "true or false"),
)
"""What a schema check calls a type, and what people who write TOML call it."""
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`")


def explained(error: msgspec.ValidationError, raw: object) -> MachineKeyError:
    """The error that people see for a description `raw` that msgspec refused."""
    if isinstance(error.__cause__, MachineKeyError):
        return error.__cause__
    complaint = _COMPLAINT.fullmatch(str(error))
    text, path = (complaint["text"], complaint["path"] or "") if complaint else (str(error), "")
    key: Key = tuple(int(step["index"]) if step["index"] is not None else step["name"] for step in _STEP.finditer(path))
    if unknown := _UNKNOWN.fullmatch(text):
        return MachineKeyError((*key, unknown["name"]), _unknown_key(unknown["name"], _keys_at(key, raw)))
    if missing := _MISSING.fullmatch(text):
        return MachineKeyError((*key, missing["name"]), "this key is missing, and it has no default")
    return MachineKeyError(key, _wrong_value(text, key, raw))


def _unknown_key(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.65)
    hint = f'. Did you mean "{near[0]}"?' if near else ""
    return f"unknown key; known here: {listed(known)}{hint}"


def _wrong_value(text: str, key: Key, raw: object) -> str:
    found = _value_at(key, raw)
    allowed = _choices(_type_at(key, raw))
    if not allowed and key and key[-1] == "model":
        outer = _type_at(key[:-1], raw, tagged=False)
        members = outer.types if isinstance(outer, inspect.UnionType) else ()
        allowed = [str(member.tag) for member in members if isinstance(member, inspect.StructType)]
    wanted = f"one of {listed(allowed)}" if allowed else text.removeprefix("Expected ").split(", got")[0]
    for name, word in _WORDS:
        wanted = wanted.replace(name, word)
    if isinstance(found, dict):
        return f"expected {wanted}, found a table"
    if isinstance(found, list):
        return f"expected {wanted}, found an array of {len(cast(list[object], found))}"
    return f"expected {wanted}, found {_shown(found)}"


def _shown(found: object) -> str:
    if isinstance(found, str):
        return f'"{found}"'
    return str(found).lower() if isinstance(found, bool) else str(found)


def _value_at(key: Key, raw: object) -> object:
    for step in key:
        raw = cast(Any, raw)[step]
    return raw


def _keys_at(key: Key, raw: object) -> list[str]:
    found = _type_at(key, raw)
    if not isinstance(found, inspect.StructType):
        return []
    return ([found.tag_field] if found.tag_field else []) + [field.encode_name for field in found.fields]


def _choices(found: inspect.Type | None) -> list[str]:
    return [str(value) for value in found.values] if isinstance(found, inspect.LiteralType) else []


def _type_at(key: Key, raw: object, *, tagged: bool = True) -> inspect.Type | None:
    """The schema at `key`; a union of records is resolved by the tag found in `raw`, if `tagged`."""
    found: inspect.Type | None = inspect.type_info(MachineSpec)
    for length, step in enumerate(key):
        found = _inside(_member(found, _value_at(key[:length], raw)), step)
    return _member(found, _value_at(key, raw)) if tagged and key else found


def _member(found: inspect.Type | None, value: object) -> inspect.Type | None:
    if not isinstance(found, inspect.UnionType):
        return found
    members = [member for member in found.types if not isinstance(member, inspect.NoneType)]
    if len(members) == 1:
        return members[0]
    tag = cast(dict[str, object], value).get("model") if isinstance(value, dict) else None
    return next((m for m in members if isinstance(m, inspect.StructType) and m.tag == tag), None)


def _inside(found: inspect.Type | None, step: str | int) -> inspect.Type | None:
    if isinstance(found, inspect.StructType):
        return next((field.type for field in found.fields if field.encode_name == step), None)
    if isinstance(found, inspect.VarTupleType):
        return found.item_type
    if isinstance(found, inspect.TupleType) and isinstance(step, int) and step < len(found.item_types):
        return found.item_types[step]
    return None

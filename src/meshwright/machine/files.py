"""Reading machine descriptions: presets that come with the package, files of one's own, JSON."""

import re
import tomllib
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, cast

import msgspec

from meshwright.errors import MachineError
from meshwright.machine.checks import Key, MachineKeyError
from meshwright.machine.explain import explained
from meshwright.machine.mesh import listed
from meshwright.machine.positions import line_of, positions
from meshwright.machine.spec import MachineSpec, to_json


def presets() -> tuple[str, ...]:
    """Names of the machines that come with the package, sorted."""
    folder = resources.files("meshwright.machine") / "presets"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset, comments included: a start for a file of one's own."""
    if name not in presets():
        raise MachineError(_no_such(name))
    folder = resources.files("meshwright.machine") / "presets"
    return (folder / f"{name}.toml").read_text(encoding="utf-8")


def load(name_or_path: str | Path) -> MachineSpec:
    """The machine called so, or described by the TOML file at that path.

    A string that is the name of a preset means the preset; write `./name` for a file called the same. MachineError
    says file, line, key, what was found and what would do; where there is no such file, it lists the presets.
    """
    if isinstance(name_or_path, str) and name_or_path in presets():
        return loads(preset_text(name_or_path), f"{name_or_path}.toml")
    try:
        text = Path(name_or_path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MachineError(_no_such(str(name_or_path))) from None
    except UnicodeDecodeError as error:
        raise MachineError(f"{name_or_path}: not UTF-8 text, so not TOML (byte {error.start})") from None
    except OSError as error:
        raise MachineError(f"{name_or_path}: can't be read: {error.strerror}") from None
    return loads(text, str(name_or_path))


def loads(text: str, origin: str = "machine") -> MachineSpec:
    """The machine described by TOML `text`; `origin` is how messages call the text."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(_not_toml(str(error), text, origin)) from None
    try:
        return _converted(_expanded(raw))
    except MachineKeyError as error:
        raise MachineError(f"{origin}:{line_of(error.key, positions(text))}: {error}") from None


def from_json(data: bytes | str, origin: str = "machine") -> MachineSpec:
    """The machine that `to_json` wrote as `data`, equal to the one written."""
    try:
        return _converted(msgspec.json.decode(data))
    except MachineKeyError as error:
        raise MachineError(f"{origin}: {error}") from None
    except msgspec.DecodeError as error:
        raise MachineError(f"{origin}: not JSON: {error}") from None


def dumps(machine: MachineSpec) -> str:
    """The machine as TOML; `loads` gives an equal one back."""
    top = cast(dict[str, Any], msgspec.json.decode(to_json(machine)))
    lines: list[str] = []
    tables: list[str] = []
    for key, value in top.items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *_pairs(cast(dict[str, Any], value))]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in cast(list[dict[str, Any]], value):
                tables += ["", f"[[{key}]]", *_pairs(item)]
        elif value is not None:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *tables, ""])


def _converted(raw: object) -> MachineSpec:
    try:
        return msgspec.convert(raw, MachineSpec)
    except msgspec.ValidationError as error:
        raise explained(error, raw) from None


def _no_such(name: str) -> str:
    near = get_close_matches(name, presets(), n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    return (
        f'no machine and no file is called "{name}"{hint}. Machines: {listed(presets())}. A file of your own is '
        f"named by its path, such as ./mine.toml"
    )


def _not_toml(problem: str, text: str, origin: str) -> str:
    place = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", problem, re.DOTALL)
    what, line = (place[1], place[2]) if place else (problem, None)
    last = len(text.splitlines()) or 1
    return f"{origin}:{line or last}: not TOML: {what}"


def _expanded(raw: dict[str, Any]) -> dict[str, Any]:
    """`rectangle = [[x0, y0], [x1, y1]]` of a unit entry, written out as `at`, row by row.

    Anything of another form is left as it is, for the schema to refuse.
    """
    for mesh, number, unit in _unit_entries(raw):
        if "rectangle" not in unit:
            continue
        key: Key = ("mesh", mesh, "units", number, "rectangle")
        match unit.pop("rectangle"):
            case [[int(x0), int(y0)], [int(x1), int(y1)]] if 0 <= x0 <= x1 and 0 <= y0 <= y1:
                places = [[x, y] for y in range(y0, y1 + 1) for x in range(x0, x1 + 1)]
            case found:
                raise MachineKeyError(key, f"expected [[x0, y0], [x1, y1]] with x0 <= x1 and y0 <= y1, found {found}")
        if "at" in unit:
            raise MachineKeyError(key, "give a rectangle, or list coordinates with at, not both")
        unit["at"] = places
    return raw


def _unit_entries(raw: dict[str, Any]) -> list[tuple[int, int, dict[str, Any]]]:
    def items(value: Any) -> list[tuple[int, dict[str, Any]]]:
        entries = cast(list[Any], value) if isinstance(value, list) else []
        return [(i, cast(dict[str, Any], entry)) for i, entry in enumerate(entries) if isinstance(entry, dict)]

    return [
        (mesh, number, unit) for mesh, table in items(raw.get("mesh")) for number, unit in items(table.get("units"))
    ]


def _pairs(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]


def _toml(value: Any) -> str:
    """One value, inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(cast(dict[str, Any], value))) + " }"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in cast(list[Any], value))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's too, but for DEL, which only TOML wants escaped.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)

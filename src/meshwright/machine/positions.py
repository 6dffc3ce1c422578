"""Which line of a TOML file a key stands on. `tomllib` reads values without saying where they were."""

import tomllib
from collections.abc import Mapping

from meshwright.machine.checks import Key


def positions(text: str) -> dict[Key, int]:
    """Line (from 1) of every table, key and array element of a TOML document that `tomllib` accepts."""
    reader = _Reader(text)
    reader.document()
    return reader.found


def line_of(key: Key, found: Mapping[Key, int]) -> int:
    """Line of a key, or of the nearest thing that encloses it where the key itself is not in the file."""
    for length in range(len(key), 0, -1):
        if key[:length] in found:
            return found[key[:length]]
    return 1


class _Reader:
    """Walks a valid document and notes lines. It reads structure only: a scalar is skipped, not understood."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.found: dict[Key, int] = {}
        self.tables_in: dict[Key, int] = {}  # elements so far of each array of tables

    def document(self) -> None:
        table: Key = ()
        while self._skip() < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Key:
        array = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if array else 1
        *outer, last = self._key()
        self.at += 2 if array else 1
        path: Key = ()
        for part in outer:
            path = self._last_of((*path, part))
            self.found.setdefault(path, line)
        path = (*path, last)
        self.found.setdefault(path, line)
        if array:
            self.tables_in[path] = self.tables_in.get(path, 0) + 1
        path = self._last_of(path)
        self.found.setdefault(path, line)
        return path

    def _last_of(self, path: Key) -> Key:
        return (*path, self.tables_in[path] - 1) if path in self.tables_in else path

    def _pair(self, table: Key) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self.found.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Key) -> None:
        self._skip()
        self.found.setdefault(path, self._line())
        opener = self.text[self.at]
        if opener in "\"'":
            self._string()
        elif opener == "[":
            self._items("]", path)
        elif opener == "{":
            self._items("}", path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}\n#":
                self.at += 1

    def _items(self, closer: str, path: Key) -> None:
        self.at += 1
        number = 0
        while self.text[self._skip()] != closer:
            if closer == "]":
                self._value((*path, number))
            else:
                self._pair(path)
            number += 1
            if self.text[self._skip()] == ",":
                self.at += 1
        self.at += 1

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                parts.append(tomllib.loads(f"key = {self.text[start : self.at]}")["key"])
            else:
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            if self.text[self._skip()] != ".":
                return parts
            self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        closer = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(closer)
        while not self.text.startswith(closer, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closer)
        while len(closer) == 3 and self.text.startswith(quote, self.at):
            self.at += 1  # up to two more quotes belong to the string

    def _skip(self) -> int:
        """Past space, line ends and comments, to the next thing or the end."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self.at = (self.text.find("\n", self.at) + 1 or len(self.text) + 1) - 1
            elif self.text[self.at] not in " \t\n":
                break
            else:
                self.at += 1
        return self.at

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

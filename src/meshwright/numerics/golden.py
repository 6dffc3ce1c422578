"""Runs golden vector files, values that the machine's RTL gave, on every backend, and counts what differs.

A file's format is recognised by its arrays, not by its name; see tests/golden/README.md for what they mean.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.numerics import backend as backends_of
from meshwright.numerics.golden_formats import FORMATS, Arrays, Format
from meshwright.numerics.mxfp7 import described

_UNREADABLE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_UNFIT = (ValueError, TypeError, IndexError, KeyError)


@dataclass(frozen=True)
class FileResult:
    """What came of one vector file: its format, how many values were compared, and how many differ by backend.

    `error` says why a file could not be run, or stopped running; then the counts say nothing.
    """

    path: Path
    format: str | None
    vectors: int
    mismatches: Mapping[str, int]
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the file ran and every value is the machine's on every backend."""
        return self.error is None and self.vectors > 0 and not any(self.mismatches.values())


@dataclass(frozen=True)
class DirectoryResult:
    """What came of a directory: its vector files, and the names of the files of other kinds that were passed over."""

    files: tuple[FileResult, ...]
    passed_over: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there was a vector file and all of them are `ok`."""
        return bool(self.files) and all(result.ok for result in self.files)

    @property
    def vectors(self) -> int:
        """How many values were compared, over all files."""
        return sum(result.vectors for result in self.files)


def _read(path: Path) -> Arrays:
    # Opened here, because numpy leaves a file open that turns out not to be an archive.
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _recognise(arrays: Arrays) -> Format:
    names = frozenset(arrays)
    for layout in FORMATS.values():
        if layout.fits(names):
            return layout
    shown = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
    raise NumericsError(f"not a known vector format: arrays {shown or 'none'}; known are {', '.join(FORMATS)}")


def _compare(ours: NDArray[Any], machine: NDArray[Any]) -> int:
    """How many values differ; `NumericsError` when the file's array isn't integers of our result's shape."""
    if machine.dtype.kind not in "iub" or machine.shape != ours.shape:
        raise NumericsError(f"a result array is {described(machine)}; the inputs give {described(ours)}")
    return int(np.count_nonzero(ours.astype(np.int64) != machine.astype(np.int64)))


def _run(layout: Format, arrays: Arrays, backend: str) -> tuple[int, int]:
    """Values compared and values that differ on one backend."""
    vectors = mismatches = 0
    for ours, machine in layout.check(arrays, backend):
        mismatches += _compare(ours, machine)
        vectors += machine.size
    if not vectors:
        raise NumericsError("the file has no vectors")
    return vectors, mismatches


def check_file(path: Path | str, backends: Sequence[str] | None = None) -> FileResult:
    """Run one `.npz` vector file on `backends` (all available ones, unless given).

    A file that can't be read, has no known format or whose arrays don't belong together gives a result with
    `error`. Raises `NumericsError` for a backend that can't run here.
    """
    where = Path(path)
    chosen = [backends_of.resolve(name) for name in backends or backends_of.available()]
    try:
        arrays = _read(where)
    except _UNREADABLE as problem:
        return FileResult(where, None, 0, {}, f"can't be read: {problem}")
    try:
        layout = _recognise(arrays)
    except NumericsError as problem:
        return FileResult(where, None, 0, {}, str(problem))
    vectors, mismatches = 0, dict[str, int]()
    try:
        for name in chosen:
            vectors, mismatches[name] = _run(layout, arrays, name)
    except _UNFIT as problem:
        return FileResult(where, layout.name, 0, {}, f"arrays don't belong together: {problem}")
    return FileResult(where, layout.name, vectors, mismatches)


def check_directory(directory: Path | str, backends: Sequence[str] | None = None) -> DirectoryResult:
    """Run every `.npz` file in `directory` (not below it) on `backends`; other files are named and passed over.

    Raises `NumericsError` when there is no such directory or for a backend that can't run here.
    """
    where = Path(directory)
    if not where.is_dir():
        raise NumericsError(f"{where} is not a directory of vector files")
    files = sorted(entry for entry in where.iterdir() if entry.is_file())
    results = tuple(check_file(file, backends) for file in files if file.suffix == ".npz")
    return DirectoryResult(results, tuple(file.name for file in files if file.suffix != ".npz"))

"""Which implementation of the number formats runs: kernels compiled for this processor, or the numpy twins.

All of them give the same bits; they differ in speed only. The choice, most specific first: the `backend`
argument of a call, the innermost `using(...)`, the environment variable `MESHWRIGHT_BACKEND`, the fastest one
available.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Final, Literal, cast, get_args

from meshwright.errors import NumericsError

Backend = Literal["numpy", "scalar", "avx2", "avx512"]
"""`numpy` is the twin (the oracle); the others are compiled; `avx512` means AVX-512 with VNNI and VBMI."""

BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
ENVIRONMENT_BACKEND: Final = "MESHWRIGHT_BACKEND"
ENVIRONMENT_THREADS: Final = "MESHWRIGHT_THREADS"

_backend: ContextVar[Backend | None] = ContextVar("meshwright_backend", default=None)
_threads: ContextVar[int | None] = ContextVar("meshwright_threads", default=None)


@cache
def native(name: Literal["_matrix", "_lane"]) -> ModuleType | None:
    """The compiled module `name`, or None where the package was installed without a compiler."""
    try:
        return importlib.import_module(f"meshwright.numerics.{name}")
    except ImportError:
        return None


def compiled(name: Literal["_matrix", "_lane"]) -> ModuleType:
    """The compiled module `name`, for a caller that `resolve` gave a compiled backend."""
    module = native(name)
    if module is None:
        raise NumericsError(f"meshwright.numerics.{name} is not installed; backend='numpy' gives the same bits")
    return module


@cache
def available() -> tuple[Backend, ...]:
    """Backends that run here, slowest first; `numpy` always does."""
    matrix, lane = native("_matrix"), native("_lane")
    if matrix is None or lane is None:
        return ("numpy",)
    in_both = cast("list[Backend]", [name for name in matrix.supported() if name in lane.supported()])
    return ("numpy", *in_both)


def resolve(backend: str | None = None) -> Backend:
    """The backend that a call with this `backend` argument uses.

    Raises `NumericsError` for a name that isn't a backend, or one that this processor or installation hasn't.
    """
    asked = backend or _backend.get() or os.environ.get(ENVIRONMENT_BACKEND) or available()[-1]
    if asked not in available():
        known = "is not a backend" if asked not in BACKENDS else "can't run here"
        raise NumericsError(
            f"backend {asked!r} {known}; available: {', '.join(available())} (`meshwright doctor` says why)"
        )
    return asked


def resolve_threads(threads: int | None = None) -> int:
    """How many threads a kernel may use: the argument, `using(threads=...)`, `MESHWRIGHT_THREADS`, or all.

    Raises `NumericsError` for a count below 1 or one that isn't a number.
    """
    asked = threads if threads is not None else _threads.get()
    if asked is not None:
        if asked < 1:
            raise NumericsError(f"threads={asked}: must be at least 1")
        return asked
    text = os.environ.get(ENVIRONMENT_THREADS)
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise NumericsError(f"{ENVIRONMENT_THREADS}={text!r}: must be a whole number of at least 1")
        return int(text)
    return _usable_cores()


def _usable_cores() -> int:
    # Only Linux knows which cores this process may use; elsewhere all of them count.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def using(backend: str | None = None, threads: int | None = None) -> Generator[None]:
    """Within the block, calls that name no backend (or no threads) use these.

    Raises `NumericsError` as `resolve` does, on entry.
    """
    backend_token = _backend.set(resolve(backend) if backend is not None else _backend.get())
    threads_token = _threads.set(resolve_threads(threads) if threads is not None else _threads.get())
    try:
        yield
    finally:
        _backend.reset(backend_token)
        _threads.reset(threads_token)

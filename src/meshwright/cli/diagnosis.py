"""What `meshwright doctor` knows about this installation and this processor."""

import importlib
import importlib.util
import os
import platform
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from meshwright.cli.versions import version
from meshwright.errors import NumericsError
from meshwright.numerics.backend import (
    BACKENDS,
    ENVIRONMENT_BACKEND,
    ENVIRONMENT_THREADS,
    available,
    resolve,
    resolve_threads,
)

_NUMBERS: Final = ("meshwright.numerics._matrix", "meshwright.numerics._lane")
"""The number formats' kernels: without both of them the numpy backend is the only one."""
_MODULES: Final = (
    *_NUMBERS,
    "meshwright.evaluate._field",
    "meshwright.targets.ktpu._layout",
    "meshwright.simulator._cluster",
)
"""Every compiled module; each has a numpy twin that stands in for it where it isn't built."""
_NOTES: Final = {
    "numpy": "written in numpy: the oracle of the others, and the fallback without a compiler",
    "scalar": "compiled C++ without vector instructions",
    "avx2": "AVX2, FMA, BMI2 and F16C",
    "avx512": "AVX-512 F, BW, DQ and VL, with VNNI and VBMI",
}


class Module(msgspec.Struct, frozen=True):
    """One compiled module: whether it loads, where it is and what compiled it, in words."""

    name: str
    loaded: bool
    state: str


class BackendState(msgspec.Struct, frozen=True):
    """One backend: whether it runs here, and what it is or why it doesn't."""

    name: str
    runs: bool
    note: str


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything the command prints; `problem` says what the environment asks for that can't be had."""

    meshwright: str
    python: str
    numpy: str
    system: str
    processor: str
    usable_cores: int
    threads: int | None
    threads_from: str
    modules: tuple[Module, ...]
    backends: tuple[BackendState, ...]
    used: str | None
    used_because: str
    problem: str | None


def diagnose() -> Diagnosis:
    """Look at this installation, this processor and the environment."""
    modules = tuple(_module(name) for name in _MODULES)
    compiled = all(module.loaded for module in modules[: len(_NUMBERS)])
    used, because, backend_problem = _used()
    threads, threads_from, threads_problem = _threads()
    return Diagnosis(
        meshwright=version(),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        numpy=np.__version__,
        system=platform.platform(),
        processor=f"{_processor()}, {platform.machine()}",
        usable_cores=_usable_cores(),
        threads=threads,
        threads_from=threads_from,
        modules=modules,
        backends=tuple(_backend(name, compiled=compiled) for name in reversed(BACKENDS)),
        used=used,
        used_because=because,
        problem=backend_problem or threads_problem,
    )


def _module(full: str) -> Module:
    name = full.rpartition(".")[2]
    # Not `backend.native`: a module that is there and doesn't load is another matter than one that isn't there.
    found = importlib.util.find_spec(full)
    if found is None:
        return Module(name, False, "not installed")
    try:
        module = importlib.import_module(full)
    except ImportError as problem:
        return Module(name, False, f"{found.origin} does not load: {problem}")
    compiler = getattr(module, "compiler", None)
    return Module(name, True, f"compiled by {compiler}" if isinstance(compiler, str) else "compiled")


def _backend(name: str, *, compiled: bool) -> BackendState:
    if name in available():
        return BackendState(name, True, _NOTES[name])
    if not compiled:
        return BackendState(name, False, "the compiled kernels are not installed")
    return BackendState(name, False, f"this processor, or this build, lacks {_NOTES[name]}")


def _used() -> tuple[str | None, str, str | None]:
    asked = os.environ.get(ENVIRONMENT_BACKEND)
    try:
        used = resolve()
    except NumericsError as problem:
        return None, "", f"{ENVIRONMENT_BACKEND}={asked}: {problem}"
    return used, f"{ENVIRONMENT_BACKEND} asks for it" if asked else "the fastest that runs here", None


def _threads() -> tuple[int | None, str, str | None]:
    asked = os.environ.get(ENVIRONMENT_THREADS)
    try:
        threads = resolve_threads()
    except NumericsError as problem:
        return None, f"{ENVIRONMENT_THREADS} can't be read", str(problem)
    return threads, f"{ENVIRONMENT_THREADS} says so" if asked else "every core that this process may use", None


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    # Python has no call that names the processor on Linux; where /proc is missing, its own guess has to do.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"

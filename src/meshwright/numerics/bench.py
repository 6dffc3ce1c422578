"""How fast the exact product is beside numpy's float32 product of the same shape: `meshwright bench numerics`.

Exact means from fp16 operands to the fp16 result, quantising both operands included. Both run on one thread, in turns
in the same process, and the ratio of every pair of turns counts, so that what else the machine does weighs on both.
Times are processor time, which doesn't run while other programs have the core.

Every backend is measured in a process of its own. OpenBLAS reads `OPENBLAS_CORETYPE` and `OPENBLAS_L2_SIZE` when it is
loaded and both can slow it down, so that process runs without them; but the avx2 kernels are held against numpy's own
AVX2 kernel, which `OPENBLAS_CORETYPE=Haswell` selects.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import numpy as np

from meshwright.errors import NumericsError
from meshwright.numerics.backend import available, resolve
from meshwright.numerics.product import matmul_fp16

SIZES: Final = (256, 512, 1024, 2048)
REPEATS: Final = 11

_OPENBLAS_CORE: Final = {"avx2": "Haswell"}
"""Backends whose counterpart in numpy isn't the kernel that OpenBLAS would choose by itself."""
_SLOWING: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_TURN_SECONDS: Final = 0.004
"""A turn repeats its call until it has lasted about this long: the clock and the scheduler are coarser than a call."""


@dataclass(frozen=True)
class Measurement:
    """One backend at one size."""

    backend: str
    size: int
    """M = K = N."""
    ratio: float
    """Median over the pairs of turns of the exact product's time over float32's: below 1 ours is faster."""
    best_ratio: float
    """The shortest turn of one over the shortest of the other."""
    exact_gmacs: float
    """10^9 multiply-adds a second of processor time, median turn."""
    float32_gmacs: float
    float32_kernel: str
    """Library and architecture of numpy's kernel, as threadpoolctl names them."""
    repeats: int


@dataclass(frozen=True)
class Report:
    """Everything measured, printable and serialisable."""

    numpy: str
    measurements: tuple[Measurement, ...]

    def to_json(self) -> str:
        """The report as a JSON object; field names as in `Measurement`."""
        return json.dumps(asdict(self), indent=2)

    def table(self) -> str:
        """The report for people."""
        head = f"{'backend':<8} {'size':>6} {'ratio':>7} {'best':>7} {'exact':>8} {'float32':>8}  numpy's kernel"
        rows = [
            f"{m.backend:<8} {m.size:>6} {m.ratio:>7.3f} {m.best_ratio:>7.3f} {m.exact_gmacs:>8.1f} "
            f"{m.float32_gmacs:>8.1f}  {m.float32_kernel}"
            for m in self.measurements
        ]
        notes = [
            f"numpy {self.numpy}; one thread each; fp16 in, fp16 out, quantising both operands included; GMAC/s.",
            "ratio: time of the exact product over that of numpy's float32 product, median of interleaved turns.",
        ]
        if any(m.backend in _OPENBLAS_CORE for m in self.measurements):
            notes.append("avx2 is held against numpy's own AVX2 kernel (OPENBLAS_CORETYPE=Haswell).")
        set_here = [name for name in _SLOWING if name in os.environ]
        if set_here:
            notes.append(f"{' and '.join(set_here)} set here, but not in the processes measured.")
        return "\n".join([head, *rows, "", *notes])


def default_backends() -> tuple[str, ...]:
    """The compiled backends with vector instructions; where there are none, what there is."""
    wide = tuple(name for name in available() if name not in {"numpy", "scalar"})
    return wide or available()[-1:]


def run(sizes: Sequence[int] = SIZES, backends: Sequence[str] | None = None, repeats: int = REPEATS) -> Report:
    """Measure `backends` (default: those with vector instructions) at M = K = N of every size in `sizes`.

    `repeats` is how many turns each side has. Takes about a minute with the defaults.

    Raises `NumericsError` for a backend that can't run here, a size or count below 1, or without threadpoolctl,
    which tells numpy's kernel.
    """
    chosen = default_backends() if backends is None else tuple(resolve(name) for name in backends)
    if repeats < 1 or not sizes or min(sizes) < 1:
        raise NumericsError(f"bench numerics: sizes {list(sizes)} and repeats {repeats} must be at least 1")
    measured = [measurement for backend in chosen for measurement in _in_own_process(backend, sizes, repeats)]
    return Report(numpy=np.__version__, measurements=tuple(measured))


def _environment(backend: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _SLOWING}
    if backend in _OPENBLAS_CORE:
        environment["OPENBLAS_CORETYPE"] = _OPENBLAS_CORE[backend]
    return (
        environment | dict.fromkeys(_THREADS, "1") | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    )


def _in_own_process(backend: str, sizes: Sequence[int], repeats: int) -> list[Measurement]:
    command = [sys.executable, "-m", __name__, backend, str(repeats), *map(str, sizes)]
    done = subprocess.run(command, env=_environment(backend), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NumericsError(f"bench numerics: measuring {backend} failed: {lines[-1] if lines else done.returncode}")
    return [Measurement(**fields) for fields in json.loads(done.stdout)]


def _float32_kernel() -> str:
    """What multiplies float32 matrices in this process."""
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")  # only measuring needs it
    except ImportError:
        raise NumericsError(
            "bench numerics needs threadpoolctl, which names numpy's kernel: pip install 'meshwright[dev]'"
        ) from None
    info = cast("list[dict[str, Any]]", threadpoolctl.threadpool_info())
    kernels = [f"{pool['internal_api']} {pool.get('architecture', '?')}" for pool in info if pool["user_api"] == "blas"]
    return kernels[0] if kernels else "unknown"


def _turn(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def measure(backend: str, size: int, repeats: int) -> Measurement:
    """Measure in this process, with whatever kernel numpy has here."""
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size, size), dtype=np.float32)
    exact_a, exact_b = a.astype(np.float16), b.astype(np.float16)

    def exact() -> object:
        return matmul_fp16(exact_a, exact_b, backend=backend, threads=1)

    def float32() -> object:
        return a @ b.T

    for call in (exact, float32):  # the first calls load code and memory
        call()
    calls = max(1, round(_TURN_SECONDS / max(_turn(float32, 1), 1e-6)))
    turns = [(_turn(exact, calls), _turn(float32, calls)) for _ in range(repeats)]
    ours, theirs = zip(*turns, strict=True)
    work = size**3 / 1e9
    return Measurement(
        backend=backend,
        size=size,
        ratio=statistics.median(x / y for x, y in turns),
        best_ratio=min(ours) / min(theirs),
        exact_gmacs=work / statistics.median(ours),
        float32_gmacs=work / statistics.median(theirs),
        float32_kernel=_float32_kernel(),
        repeats=repeats,
    )


def _main(arguments: Sequence[str]) -> None:
    """What the process of one backend runs: backend, repeats, sizes."""
    backend, repeats, *sizes = arguments
    measurements = [measure(backend, int(size), int(repeats)) for size in sizes]
    json.dump([asdict(measurement) for measurement in measurements], sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1:])

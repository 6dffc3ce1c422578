import os

import numpy as np
import pytest

from meshwright.errors import NumericsError
from meshwright.numerics import backend, fp22
from meshwright.numerics.backend import BACKENDS, available, resolve, resolve_threads, using


def test_numpy_is_always_there_and_the_fastest_is_the_default(monkeypatch):
    monkeypatch.delenv("MESHWRIGHT_BACKEND", raising=False)
    assert available()[0] == "numpy"
    assert list(available()) == [name for name in BACKENDS if name in available()]
    assert resolve() == available()[-1]


def test_the_most_specific_choice_wins(monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_BACKEND", "numpy")
    assert resolve() == "numpy"
    last = available()[-1]
    with using(last):
        assert resolve() == last
        assert resolve("numpy") == "numpy"
        with using("numpy"):
            assert resolve() == "numpy"
        assert resolve() == last
        with using(threads=2):
            assert resolve() == last
            assert resolve_threads() == 2
    assert resolve() == "numpy"


def test_the_choice_reaches_a_call(monkeypatch):
    one = np.array([63 << 14], np.uint32)
    monkeypatch.setenv("MESHWRIGHT_BACKEND", "abacus")
    with pytest.raises(NumericsError, match="'abacus'"):
        fp22.add(one, one)
    assert fp22.add(one, one, backend="numpy") == 64 << 14


def test_what_is_not_a_backend_is_refused():
    found = f"available: {', '.join(available())} (`meshwright doctor` says why)"
    with pytest.raises(NumericsError) as refused:
        resolve("cuda")
    assert str(refused.value) == f"backend 'cuda' is not a backend; {found}"
    with pytest.raises(NumericsError, match="'cuda' is not a backend"), using("cuda"):
        pass


def test_a_backend_that_cannot_run_here_is_refused(monkeypatch):
    monkeypatch.setattr(backend, "available", lambda: ("numpy", "scalar"))
    with pytest.raises(NumericsError) as refused:
        resolve("avx512")
    assert str(refused.value) == (
        "backend 'avx512' can't run here; available: numpy, scalar (`meshwright doctor` says why)"
    )
    monkeypatch.setattr(backend, "native", lambda name: None)
    with pytest.raises(NumericsError, match="_matrix is not installed; backend='numpy' gives the same bits"):
        fp22.drain(np.zeros(1, np.uint32), backend="scalar")


def test_threads_by_argument_context_and_environment(monkeypatch):
    monkeypatch.delenv("MESHWRIGHT_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert resolve_threads() == cores
    monkeypatch.setenv("MESHWRIGHT_THREADS", "5")
    assert resolve_threads() == 5
    with using(threads=3):
        assert resolve_threads() == 3
        assert resolve_threads(7) == 7
    assert resolve_threads() == 5


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_thread_count_in_the_environment_must_be_one(text, monkeypatch):
    monkeypatch.setenv("MESHWRIGHT_THREADS", text)
    with pytest.raises(NumericsError) as refused:
        resolve_threads()
    assert str(refused.value) == f"MESHWRIGHT_THREADS={text!r}: must be a whole number of at least 1"
    assert resolve_threads(1) == 1


def test_a_thread_count_below_one_is_refused():
    for refuse in (lambda: resolve_threads(0), lambda: using(threads=0).__enter__()):
        with pytest.raises(NumericsError) as refused:
            refuse()
        assert str(refused.value) == "threads=0: must be at least 1"

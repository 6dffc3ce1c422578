"""`meshwright doctor` without golden vectors: what runs here, and why."""

import json
import os
import platform
from importlib.util import find_spec

import numpy as np
import pytest

from meshwright.numerics.backend import BACKENDS, available, native

MAIN = "from meshwright.cli import main; main()"
WITHOUT_KERNELS = (
    "import sys; sys.modules['meshwright.numerics._matrix'] = sys.modules['meshwright.numerics._lane'] = None; " + MAIN
)


def test_the_text_says_what_there_is(run):
    result = run("doctor")
    assert result.exit_code == 0
    for fact in (platform.python_version(), np.__version__, "processor", "threads", *BACKENDS):
        assert fact in result.stdout


def test_json_agrees_with_the_library(run):
    report = json.loads(run("doctor", "--json").stdout)
    assert report["python"].startswith(platform.python_version())
    assert report["numpy"] == np.__version__
    assert {entry["name"] for entry in report["backends"] if entry["runs"]} == set(available())
    assert [entry["name"] for entry in report["backends"]] == list(reversed(BACKENDS))
    assert report["used"] == available()[-1]
    assert report["used_because"] == "the fastest that runs here"
    assert {module["name"]: module["loaded"] for module in report["modules"]} == {
        "_matrix": native("_matrix") is not None,
        "_lane": native("_lane") is not None,
        "_field": find_spec("meshwright.evaluate._field") is not None,
        "_layout": find_spec("meshwright.targets.ktpu._layout") is not None,
        "_cluster": find_spec("meshwright.simulator._cluster") is not None,
    }
    assert report["problem"] is None


def test_the_environment_chooses(run):
    report = json.loads(run("doctor", "--json", MESHWRIGHT_BACKEND="numpy", MESHWRIGHT_THREADS="3").stdout)
    assert (report["used"], report["used_because"]) == ("numpy", "MESHWRIGHT_BACKEND asks for it")
    assert (report["threads"], report["threads_from"]) == (3, "MESHWRIGHT_THREADS says so")


def test_a_backend_that_is_none_is_a_problem_and_the_rest_is_shown(run):
    result = run("doctor", MESHWRIGHT_BACKEND="abacus")
    assert result.exit_code == 2
    assert "numpy" in result.stdout
    assert result.stderr == (
        "error: MESHWRIGHT_BACKEND=abacus: backend 'abacus' is not a backend; "
        f"available: {', '.join(available())} (`meshwright doctor` says why)\n"
    )


def test_threads_that_are_none_are_a_problem(run):
    result = run("doctor", MESHWRIGHT_THREADS="many")
    assert result.exit_code == 2
    assert result.stderr == "error: MESHWRIGHT_THREADS='many': must be a whole number of at least 1\n"


def test_without_kernels_it_says_so_and_how_to_get_them(run_apart):
    done = run_apart(WITHOUT_KERNELS, "doctor")
    assert done.returncode == 0
    assert "The compiled kernels are not installed, so the numpy twins compute: the same bits, slower." in done.stdout
    assert "apt install g++" in done.stdout
    assert "numpy    yes        yes   the fastest that runs here" in done.stdout
    assert "avx2     no               the compiled kernels are not installed" in done.stdout


def test_without_kernels_a_compiled_backend_is_refused(run_apart):
    done = run_apart(WITHOUT_KERNELS, "doctor", MESHWRIGHT_BACKEND="scalar")
    assert done.returncode == 2
    assert done.stderr == (
        "error: MESHWRIGHT_BACKEND=scalar: backend 'scalar' can't run here; available: numpy "
        "(`meshwright doctor` says why)\n"
    )


def test_kernels_that_do_not_load_are_told_from_kernels_that_are_not_there(run_apart):
    broken = f"""
import importlib, sys
from importlib import util
real_import, real_find = importlib.import_module, util.find_spec
class Found: origin = "broken.so"
def find(name, package=None):
    return Found if name.endswith("._matrix") else real_find(name, package)
def load(name, package=None):
    if name.endswith("._matrix"): raise ImportError("undefined symbol: x")
    return real_import(name, package)
importlib.import_module, util.find_spec = load, find
{MAIN}
"""
    done = run_apart(broken, "doctor")
    assert done.returncode == 0
    assert "broken.so does not load: undefined symbol: x" in done.stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can bind a process to a core")
def test_threads_are_the_cores_that_may_be_used(run_apart):
    bound = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + MAIN
    report = json.loads(run_apart(bound, "doctor", "--json").stdout)
    assert (report["threads"], report["usable_cores"]) == (1, 1)


def test_backend_option_belongs_to_golden(run):
    result = run("doctor", "--backend", "numpy")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --backend chooses what --golden runs: add --golden DIR, or set MESHWRIGHT_BACKEND instead\n",
    )

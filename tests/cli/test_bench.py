"""`meshwright bench`: measures what it was asked to, and refuses what can't be measured."""

import json
import sys

import pytest

from meshwright.frontend import bench_programs
from meshwright.numerics import bench
from meshwright.numerics.backend import available


def test_json_has_a_measurement_a_backend_and_size(run):
    result = run("bench", "numerics", "--json", "--size", "64", "--size", "96", "--repeats", "2")
    assert result.exit_code == 0, result.stderr
    measurements = json.loads(result.stdout)["measurements"]
    expected = [(backend, size) for backend in bench.default_backends() for size in (64, 96)]
    assert [(m["backend"], m["size"]) for m in measurements] == expected
    for m in measurements:
        assert m["repeats"] == 2
        assert m["ratio"] > 0
        assert m["exact_gmacs"] > 0
        assert m["float32_gmacs"] > 0


def test_text_has_a_line_a_measurement_and_says_what_was_measured(run):
    result = run("bench", "numerics", "--size", "64", "--repeats", "1", "--backend", "numpy")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("numpy ") and " 64 " in line]
    assert "GMAC/s" in result.stdout
    assert len(line.split()) >= 6


@pytest.mark.parametrize("arguments", [["--size", "0"], ["--repeats", "0"]])
def test_nothing_to_measure_is_refused(run, arguments):
    result = run("bench", "numerics", *arguments)
    assert result.exit_code == 2
    assert result.stderr.endswith("must be at least 1\n")


def test_a_backend_that_cannot_run_is_refused(run):
    result = run("bench", "numerics", "--backend", "abacus", "--size", "8")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: backend 'abacus' is not a backend; available: {', '.join(available())} "
        "(`meshwright doctor` says why)\n"
    )


def test_without_threadpoolctl_it_says_what_is_missing(run, tmp_path, monkeypatch):
    # The measuring process gets this process's path.
    (tmp_path / "threadpoolctl.py").write_text("raise ImportError\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    result = run("bench", "numerics", "--size", "8", "--repeats", "1", "--backend", "numpy")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "bench numerics needs threadpoolctl" in result.stderr


def test_programs_json_has_positive_figures_of_every_work(run):
    result = run("bench", "programs", "--json", "--repeats", "1")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    expected = [(work.name, work.multiply_adds) for work in bench_programs.works()]
    assert [(one.pop("name"), one.pop("multiply_adds")) for one in found] == expected
    fields = set(bench_programs.Measured.__struct_fields__) - {"name", "multiply_adds"}
    for one in found:
        assert set(one) == fields
        assert all(value > 0 for value in one.values())


def test_programs_text_has_a_line_a_work_and_a_rate_for_products(run, monkeypatch):
    product, *_, norm = bench_programs.works()
    monkeypatch.setattr(bench_programs, "works", lambda: iter((product, norm)))
    result = run("bench", "programs", "--repeats", "1")
    assert result.exit_code == 0, result.stderr
    head, of_product, of_norm, empty, *meaning = result.stdout.splitlines()
    assert head.split() == ["work", "words", "pack", "compile", "link", "execute", "whole", "evaluated", "execute"]
    assert of_product.startswith("product 256 x 256 x 256 ")
    assert of_product.endswith(" GMAC/s")
    assert of_norm.startswith("layer norm 64 x 384 ")
    assert of_norm.endswith(" ms")
    assert empty == ""
    assert meaning[0].startswith("one mesh, one thread; ")


def test_programs_without_a_turn_is_refused(run):
    result = run("bench", "programs", "--repeats", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --repeats 0: at least one turn is needed\n"

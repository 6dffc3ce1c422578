"""The oracle sweep: no rule is wrong, every missing one is listed with its reason, and the sweep itself has teeth."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright import kernels
from meshwright.cli import app
from meshwright.errors import SplitError
from meshwright.ir.pool import Pool
from meshwright.ir.spec import COPIED, Spec
from meshwright.kernels.compose import Composition
from meshwright.kernels.elementwise import Elementwise
from meshwright.sharding.catalogue import catalogue
from meshwright.sharding.rules import result_spec
from meshwright.sharding.sweep import sweep, swept
from sharding.samples import CARD, real_group

RULES = (Path(__file__).parents[2] / "docs" / "rules.md").read_text("utf-8")


def listed():
    """(kernel, operands, would be) of the rows of docs/rules.md that say what is missing."""
    table = RULES.split("| kernel | operands |")[1].splitlines()[2:]
    return {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in table if line.startswith("|")}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_no_rule_is_wrong_and_every_missing_one_has_a_reason(ranks):
    rows = sweep(CARD, ranks)
    assert not [str(case) for row in rows for case in row.wrong]
    missing = {(case.kernel, ", ".join(case.specs), case.truth) for row in rows for case in row.missing}
    assert missing <= listed()
    if ranks == 2:
        assert missing == listed()
    assert sum(row.combinations for row in rows) > 1500
    assert sum(row.legal for row in rows) > 200


def test_every_kernel_that_is_exported_is_in_it():
    tried = {type(sample.kernel) for sample in catalogue()} | {id(sample.kernel) for sample in catalogue()}
    values = {
        "attention": (4,),
        "split_heads": (4,),
        "split_heads_transposed": (4,),
        "scale": (2.0,),
        "reduce": ("sum",),
        "concat": (0,),
        "slice": (0, 0, 1),
        "elementwise": None,
        "MatrixProduct": (),
    }
    for name in kernels.__all__:
        exported = getattr(kernels, name)
        if isinstance(exported, Elementwise):
            assert id(exported) in tried, name
            continue
        if hasattr(exported, "emit") and not isinstance(exported, type):
            assert type(exported) in tried, name
            continue
        if name[0].isupper() and name != "MatrixProduct":
            continue
        arguments = values.get(name, ())
        if arguments is None:
            continue
        made = exported(*arguments)
        if isinstance(made, Composition):
            assert {type(call.kernel) for call in made.calls} <= tried, name
        else:
            assert type(made) in tried, name


def test_a_wrong_rule_is_found():
    """Rules that promise too much: linear in everything, whatever is split goes through, all is copied."""
    group = real_group(2)

    def careless(kernel, arguments, count):
        try:
            return result_spec(kernel, arguments, count)
        except SplitError:
            pools = {a.spec.partial for a in arguments} - {None}
            return Spec(partial=pools.pop()) if pools else COPIED

    samples = {sample.kernel.name: sample for sample in catalogue()}
    for name in ("gelu", "softmax", "scale(-2)", "reduce max"):
        row = swept(group, samples[name], samples[name].kernel, careless)
        assert row.wrong, name
        assert not swept(group, samples[name], samples[name].kernel).wrong


def test_a_missing_rule_is_found():
    group = real_group(2)

    def anxious(kernel, arguments, count):
        if any(not a.spec.is_copied for a in arguments):
            raise SplitError("no")
        return COPIED

    samples = {sample.kernel.name: sample for sample in catalogue()}
    found = {name: swept(group, samples[name], samples[name].kernel, anxious).missing for name in ("matmul", "tanh")}
    assert {case.truth for case in found["matmul"]} >= {"split 0", "split 1", "partial sum"}
    assert {case.truth for case in found["tanh"]} == {"split 0", "split 1", "partial max", "partial min"}


def test_a_wrong_pool_is_found():
    group = real_group(2)
    sample = next(s for s in catalogue() if s.kernel.name == "reduce max")

    def by_sum(kernel, arguments, count):
        spec = result_spec(kernel, arguments, count)
        return Spec(partial=Pool.SUM) if spec.partial is Pool.MAX else spec

    assert {case.truth for case in swept(group, sample, sample.kernel, by_sum).wrong} == {"partial max"}


def test_the_command():
    runner = CliRunner()
    shown = runner.invoke(app, ["sweep-rules", "--kernel", "tanh"])
    assert shown.exit_code == 0
    assert "7 combinations on 2 ranks, 5 legal: 0 wrong, 0 missing" in shown.stdout
    as_json = runner.invoke(app, ["sweep-rules", "--kernel", "negative", "--ranks", "4", "--json"])
    (row,) = json.loads(as_json.stdout)
    assert row["kernel"] == "negative(f16[8, 16])" and len(row["missing"]) == 2 and row["wrong"] == []
    refused = runner.invoke(app, ["sweep-rules", "--ranks", "3"])
    assert refused.exit_code == 2 and "operands divide by 2 and 4" in refused.stderr
    assert runner.invoke(app, ["sweep-rules", "--kernel", "nothing"]).exit_code == 2

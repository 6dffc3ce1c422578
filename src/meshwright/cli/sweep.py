"""`meshwright sweep-rules`: the rules of splitting against an oracle."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.cli.console import err, out, plain_table
from meshwright.cli.failures import NO
from meshwright.errors import UsageError
from meshwright.machine import MachineSpec, load
from meshwright.sharding.sweep import Row, sweep


def sweep_rules(
    machine: Annotated[str, typer.Option(help="Preset or machine file.")] = "ktpu-v13p",
    ranks: Annotated[int, typer.Option(help="How many ranks; 2 or 4: what the operands divide by.")] = 2,
    kernel: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only kernels whose name, with operands, contains TEXT.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Try every kernel with every combination of input splits on simulated ranks, against the unsplit result.

    A combination is copied, split on an axis, or partial, for each operand. Wrong: called legal, and the ranks' results
    are not the whole result. Missing: refused, although there is a split under which they are; docs/rules.md has the
    reasons. Exits with 1 when a rule is wrong.

    Examples:

      meshwright sweep-rules
      meshwright sweep-rules --ranks 4 --kernel softmax
      meshwright sweep-rules --json > rules.json
    """
    spec = load(machine)
    if ranks not in (2, 4) or ranks > len(spec.mesh_ids):
        raise UsageError(
            f"--ranks {ranks}: operands divide by 2 and 4, and {spec.name} has {len(spec.mesh_ids)} meshes"
        )
    rows = _swept(spec, ranks, kernel)
    if not rows:
        raise UsageError(f"--kernel {kernel}: no kernel is called like that; leave it out to see all")
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
    else:
        _show(rows, ranks)
    if any(row.wrong for row in rows):
        raise typer.Exit(NO)


def _swept(machine: MachineSpec, ranks: int, kernel: str | None) -> tuple[Row, ...]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task("kernels", total=None)
        return sweep(machine, ranks, kernel, lambda done, total: bar.update(task, completed=done, total=total))


def _show(rows: tuple[Row, ...], ranks: int) -> None:
    numbers = ("combinations", "legal", "wrong", "missing")
    table = plain_table("kernel", *numbers, numbers=numbers)
    for row in rows:
        table.add_row(row.kernel, str(row.combinations), str(row.legal), str(len(row.wrong)), str(len(row.missing)))
    tried, legal = sum(r.combinations for r in rows), sum(r.legal for r in rows)
    wrong, missing = sum(len(r.wrong) for r in rows), sum(len(r.missing) for r in rows)
    console = out()
    console.print(table)
    console.print(f"\n{tried:,} combinations on {ranks} ranks, {legal:,} legal: {wrong} wrong, {missing} missing\n")
    for row in rows:
        for case in row.wrong:
            console.print(f"wrong    {case}", soft_wrap=True)
        for case in row.missing:
            console.print(f"missing  {case}", soft_wrap=True)

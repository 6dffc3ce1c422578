"""`meshwright mutate`: faults put into sound graphs, and what the certificate says of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.certify.mutation import (
    KINDS,
    Answer,
    Complaint,
    Judgement,
    Kind,
    Row,
    Subject,
    complaints,
    every,
    judged,
    rows,
)
from meshwright.cli.console import err, out, plain_table
from meshwright.cli.failures import NO
from meshwright.cli.mutation_subjects import subjects
from meshwright.errors import UsageError


def mutate(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only kinds of fault whose name contains KIND.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as the documentation has it.")] = False,
) -> None:
    """Put faults into sound graphs, and see that the certificate catches each by the obligation that it belongs to.

    Every kind of fault, in every graph where it applies, at up to four places. A mutant is caught; or caught earlier,
    by an obligation without which the one it belongs to has no meaning; or equivalent, shown by evaluation; or
    refused when it is run, where tokens choose what a store covers; or missed. Nothing may be said of the
    graphs without a fault.
    Exits with 1 when a mutant is missed.

    [bold]Examples[/bold]

      meshwright mutate
      meshwright mutate --kind summand
      meshwright mutate --json > mutants.json
    """
    kinds = chosen(kind)
    there = subjects()
    said = [complaint for subject in there for complaint in complaints(subject)]
    found = _judged(kinds, there)
    table = rows(kinds, found)
    missed = [j for j in found if j.answer is Answer.MISSED]
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode({"rows": table, "missed": missed, "complaints": said})))
    elif markdown:
        typer.echo(as_markdown(table), nl=False)
    else:
        _show(table, found, said)
    if missed or said:
        raise typer.Exit(NO)


def chosen(text: str | None) -> tuple[Kind, ...]:
    """The kinds of fault whose name contains a text; `UsageError` where none does."""
    kinds = tuple(kind for kind in KINDS if (text or "") in kind.name)
    if not kinds:
        raise UsageError(f"--kind {text}: no kind of fault is called like that; leave it out to see all {len(KINDS)}")
    return kinds


def _judged(kinds: Sequence[Kind], there: Sequence[Subject]) -> list[Judgement]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task("mutants", total=None)
        return judged(
            list(every(kinds, there)), progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _counted(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in pairs)


def _alike(row: Row) -> str:
    return ", ".join(f"{count}" if name == "bits" else f"{count} in reals" for name, count in row.equivalent)


_HEADINGS = ("fault", "belongs to", "graphs", "mutants", "caught by", "earlier", "equivalent", "when run", "missed")


def _cells(row: Row) -> tuple[str, ...]:
    caught, earlier = _counted(row.caught), _counted(row.earlier)
    owners = ", ".join(row.belongs)
    return (
        row.kind,
        owners,
        f"{row.graphs}",
        f"{row.mutants}",
        caught,
        earlier,
        _alike(row),
        _counted(row.when_run),
        f"{row.missed}",
    )


def summary(table: Sequence[Row]) -> str:
    """All rows in a line."""
    total = Counter[str]()
    for row in table:
        total["mutants"] += row.mutants
        total["caught"] += sum(n for _, n in row.caught)
        total["earlier"] += sum(n for _, n in row.earlier)
        total["equivalent"] += sum(n for _, n in row.equivalent)
        total["when run"] += sum(n for _, n in row.when_run)
        total["missed"] += row.missed
    kinds = "1 kind" if len(table) == 1 else f"{len(table)} kinds"
    return (
        f"{total['mutants']} mutants of {kinds}: {total['caught']} caught, {total['earlier']} caught "
        f"earlier, {total['equivalent']} equivalent, {total['when run']} when run, {total['missed']} missed"
    )


def as_markdown(table: Sequence[Row]) -> str:
    """The table as a document has it, with the line that sums it up."""
    lines = [f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in table]
    return "\n".join([*lines, "", f"{summary(table)}.", ""])


def _show(table: Sequence[Row], found: Sequence[Judgement], said: Sequence[Complaint]) -> None:
    console = out()
    shown = plain_table(*_HEADINGS, numbers=("graphs", "mutants", "missed"))
    for row in table:
        shown.add_row(*_cells(row))
    console.print(shown)
    console.print(f"\n{summary(table)}")
    for judgement in found:
        if judgement.answer is Answer.MISSED:
            console.print(f"missed     {judgement}", soft_wrap=True)
    for complaint in said:
        text = f"{complaint.subject}, without a fault: {complaint.obligation}: {complaint.message}"
        console.print(f"complaint  {text}", soft_wrap=True)

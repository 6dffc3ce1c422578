"""`meshwright walk`: one product from the Python call to instruction words and back, step by step."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.syntax import Syntax
from rich.text import Text as Line

from meshwright.cli.console import out, plain_table
from meshwright.cli.failures import NO
from meshwright.report.document import Heading, Listing, Part, Rows, Text, markdown
from meshwright.report.walk import product
from meshwright.report.walk import walk as walk_through
from meshwright.report.walk_story import story

_MARKED: Final = re.compile(r"`(?P<code>[^`]+)`|\*\*(?P<bold>[^*]+)\*\*|\[(?P<label>[^]]+)\]\((?P<page>[^)]+)\)")


class Shown(StrEnum):
    """How many of the instruction words."""

    SOME = "some"
    ALL = "all"


def walk(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A and of C.")] = 32,
    k: Annotated[int, typer.Argument(metavar="K", help="The contraction: columns of A and of B.")] = 128,
    n: Annotated[int, typer.Argument(metavar="N", help="Rows of B, columns of C.")] = 32,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME|FILE", help="The machine: a name or a machine file.")
    ] = "ktpu-v13p",
    mesh: Annotated[
        int | None,
        typer.Option("--mesh", help="The mesh; by default the first with clusters.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="What the random operands are made from.")] = 0,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a page in Markdown.")] = False,
    words: Annotated[
        Shown, typer.Option("--words", help="Leave out what only repeats, or show every word with all its fields.")
    ] = Shown.SOME,
) -> None:
    """Follow one product from the Python call to instruction words and back.

    C[M, N] = A[M, K] @ B[N, K].T runs on a card in software, and every
    step is shown as it happened: the plan, the stage graph, its
    certificate, the tiling, which element lies at which byte, the
    256-bit words with their fields, each register that the host writes
    and reads, a block as a cluster quantises it, a sub-tile's FP22
    codes after each K block, the fp16 that is drained, and what came
    back, held against the evaluator's bits and float64.

    [bold]Examples[/bold]

      meshwright walk
      meshwright walk 5 33 7                 padding everywhere
      meshwright walk 64 4096 64 --mesh 1    many sweeps
      meshwright walk 8 64 8 --words all     every field of every word
      meshwright walk --markdown > walkthrough.md
    """
    walked = walk_through(product(machine, m, k, n, mesh, seed))
    parts = story(walked, words.value)
    if as_markdown:
        typer.echo(markdown(parts), nl=False)
    else:
        for part in parts:
            _show(part)
    if walked.comparison.different:
        raise typer.Exit(NO)


def _show(part: Part) -> None:
    console = out()
    match part:
        case Heading(level=level):
            console.print(Line(part.text, style="bold underline" if level == 1 else "bold"))
        case Text():
            console.print(_styled(part.text))
        case Listing(language="python"):
            console.print(Syntax(part.text, "python", theme="ansi_dark", background_color="default"))
        case Listing():
            # Columns stay columns: a line that is too long goes on past the edge.
            console.print(Line(part.text), soft_wrap=True)
        case Rows():
            table = plain_table(*part.headings, numbers=part.numbers)
            for row in part.rows:
                table.add_row(*row)
            console.print(table)
    console.print()


def _styled(text: str) -> Line:
    line, at = Line(), 0
    for found in _MARKED.finditer(text):
        line.append(text[at : found.start()])
        line.append(found["code"] or found["bold"] or found["label"], style="cyan" if found["code"] else "bold")
        if found["page"]:
            line.append(f" (docs/ktpu/{found['page']})")
        at = found.end()
    return line.append(text[at:])

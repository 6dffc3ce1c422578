"""`meshwright show`: a graph file as text, and as a picture."""

from pathlib import Path
from typing import Annotated, Final

import typer

from meshwright.cli.console import err
from meshwright.errors import GraphError, UsageError
from meshwright.ir.graph import Graph
from meshwright.ir.serialise import from_json, from_msgpack
from meshwright.machine import load
from meshwright.report import overview, picture, summarise
from meshwright.report.words import printable

MOST_BYTES: Final = 1 << 28
"""A larger file is refused rather than read."""
_LONGEST_MESSAGE: Final = 600


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A stage graph, JSON or MessagePack.")],
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", metavar="NAME|FILE", help="Show it on this machine: all of its chips, bytes over its links."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="OUT", help="Write a picture to this file instead of text.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print the graph itself, a line a record; with --svg as well.")
    ] = False,
) -> None:
    """Show a stage graph: what each site does, multicasts, bytes over links.

    [bold]Examples[/bold]

      meshwright show graph.json
      meshwright show graph.json --machine grid-2x4x4
      meshwright show graph.msgpack --svg graph.svg
      meshwright show graph.json --text | less
    """
    spec = None if machine is None else load(machine)
    try:
        graph = read_graph(file)
        summary = summarise(graph, spec)
    except GraphError as error:
        # A message may list several faults, and quote what a file says: one line, whatever it holds.
        raise UsageError(f"{printable(str(file), 200)}: {_one_line(str(error))}") from None
    if svg is not None:
        _write(svg, picture(summary, spec))
    if text:
        typer.echo("\n".join(printable(line, len(line)) for line in str(graph).split("\n")))
    elif svg is None:
        typer.echo(overview(summary), nl=False)


def read_graph(file: Path) -> Graph:
    """The graph in `file`; `UsageError` where it can't be read, `GraphError` where it is none."""
    name = printable(str(file), 200)
    # Asked first: a pipe or a device might never end.
    if not file.is_file():
        found = "a directory" if file.is_dir() else "a device or a pipe" if file.exists() else "nothing"
        raise UsageError(f"{name}: a graph file was expected, there is {found}")
    try:
        size = file.stat().st_size
        data = file.read_bytes() if size <= MOST_BYTES else b""
    except OSError as error:
        raise UsageError(f"{name}: can't be read: {error.strerror}") from None
    if size > MOST_BYTES:
        raise UsageError(f"{name}: {size:,} bytes; files of up to {MOST_BYTES:,} are read")
    # A JSON object begins with a brace, which in MessagePack would be the number 123.
    return from_json(data) if data.lstrip()[:1] == b"{" else from_msgpack(data)


def _one_line(message: str) -> str:
    return printable("; ".join(part.strip() for part in message.splitlines()).replace(":;", ":"), _LONGEST_MESSAGE)


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{printable(str(target), 200)}: can't be written: {error.strerror}") from None
    err().print(f"wrote {printable(str(target), 200)}", soft_wrap=True)

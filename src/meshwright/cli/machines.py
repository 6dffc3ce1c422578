"""`meshwright machines`: the machines that come with the package, and pictures of them."""

from typing import Annotated

import typer

from meshwright.cli.console import out
from meshwright.errors import UsageError
from meshwright.machine import dumps, load, preset_text, presets, to_json
from meshwright.machine.draw import describe, machines_table


def machines(
    machine: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", help="A machine's name, or the path of a machine file.")
    ] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the description itself: a start for a machine file of your own.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the description, all defaults filled in, as JSON.")
    ] = False,
) -> None:
    """List the machines, or show one: its meshes, units, links and figures.

    [bold]Examples[/bold]

      meshwright machines
      meshwright machines ktpu-v13p
      meshwright machines ktpu-v13p --toml > mine.toml
      meshwright machines ./mine.toml
    """
    if machine is None:
        if toml or json:
            raise UsageError(
                "--toml and --json print one machine: name it, as in `meshwright machines ktpu-v13p --toml`"
            )
        out().print(machines_table())
        return
    if toml and json:
        raise UsageError("--toml and --json exclude each other: give one of them")
    spec = load(machine)
    if toml:
        # A preset's own text has the comments that say where its figures come from.
        typer.echo(preset_text(machine) if machine in presets() else dumps(spec), nl=False)
    elif json:
        typer.echo(to_json(spec))
    else:
        typer.echo(describe(spec, out().width), nl=False)

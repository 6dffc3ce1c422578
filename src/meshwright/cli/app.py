"""The command `meshwright`: its options, and which function each subcommand runs."""

from typing import Annotated

import typer

from meshwright.cli import accuracy, asm, bench, check, demo, doctor, machines, mutate, show, simulate, sweep, walk
from meshwright.cli.failures import reported
from meshwright.cli.versions import version

_EXAMPLES = """
[bold]First steps[/bold]

  meshwright demo                           real weights over four meshes
  meshwright walk                           one product, down to the bits of its words
  meshwright doctor                         what runs here, and why
  meshwright doctor --golden tests/golden   are these the machine's bits?
  meshwright machines ktpu-v13p             four meshes in a chain, drawn

Exit status: 1 a check says no, 2 the request is refused, 70 a defect.
"""

app = typer.Typer(
    name="meshwright",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # `failures.reported` does this, without the frames.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"meshwright {version()}")
        raise typer.Exit


@app.callback(epilog=_EXAMPLES)
def _options(  # pyright: ignore[reportUnusedFunction]
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Tensor programs over the meshes of an accelerator: stated, checked, and evaluated bit for bit."""


app.command("accuracy")(reported(accuracy.accuracy))
app.command("asm")(reported(asm.asm))
app.command("check")(reported(check.check))
app.command("demo")(reported(demo.demo))
app.command("disasm")(reported(asm.disasm))
app.command("doctor")(reported(doctor.doctor))
app.command("machines")(reported(machines.machines))
app.command("mutate")(reported(mutate.mutate))
app.command("recheck")(reported(check.recheck_command))
app.command("show")(reported(show.show))
app.command("simulate")(reported(simulate.simulate))
app.command("sweep-rules")(reported(sweep.sweep_rules))
app.command("walk")(reported(walk.walk))
app.add_typer(bench.group, name="bench")


def main() -> None:
    """Entry point of the `meshwright` command."""
    app()

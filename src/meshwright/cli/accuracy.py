"""`meshwright accuracy`: how far each kernel is from float64, in a machine's arithmetic."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright import targets
from meshwright.cli.console import err
from meshwright.errors import UsageError
from meshwright.kernels import accuracy as measured
from meshwright.machine import load


def accuracy(
    machine: Annotated[str, typer.Option(help="Preset or machine file.")] = "ktpu-v13p",
    seed: Annotated[int, typer.Option(help="Of the random operands.")] = 0,
) -> None:
    """Print every kernel's errors against float64 as a table: median, 99th percentile and largest.

    Operands are f16 values of the distribution that the table names; errors are relative to the root mean square of the
    result, and in units of f16's last place.

    Examples:

      meshwright accuracy
      meshwright accuracy --seed 1 > here.md
    """
    spec = load(machine)
    places = [targets.placement(spec, mesh) for mesh in spec.mesh_ids]
    able = [place for place in places if place.has_vector_units]
    if not able:
        raise UsageError(f"no mesh of {spec.name} has vector units, and half of the kernels need one")
    with err().status("measuring"):
        rows = measured.table(able[0], targets.arithmetic(spec), seed)
    typer.echo(measured.markdown(rows))

"""`meshwright bench`: how fast this build computes on this machine."""

from typing import Annotated

import typer

from meshwright.cli.console import err
from meshwright.cli.failures import reported
from meshwright.numerics import bench

group = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Measure how fast things run here.",
    epilog="Example:  meshwright bench numerics",
)


@group.command("numerics")
@reported
def numerics(
    size: Annotated[
        list[int] | None,
        typer.Option(
            "--size",
            metavar="N",
            help="M, K and N of the product; may be given several times. "
            f"[default: {', '.join(map(str, bench.SIZES))}]",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="A backend to measure; may be given several times. [default: those with vector instructions]",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Turns of each side.")] = bench.REPEATS,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Time the exact product beside numpy's float32 product.

    Both run on one thread, in turns. The exact product starts at fp16
    operands and ends at the fp16 result, quantising included. A ratio
    below 1 says that the exact product is the faster one.

    [bold]Examples[/bold]

      meshwright bench numerics
      meshwright bench numerics --size 1024 --repeats 21
      meshwright bench numerics --backend avx2 --size 256 --size 512
      meshwright bench numerics --json > here.json
    """
    with err().status("measuring; about a minute with the default sizes"):
        report = bench.run(size or bench.SIZES, backend or None, repeats)
    typer.echo(report.to_json() if json else report.table())

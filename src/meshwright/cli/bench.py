"""`meshwright bench`: how fast this build computes on this machine."""

from typing import Annotated

import msgspec
import typer

from meshwright.cli.console import err
from meshwright.cli.failures import reported
from meshwright.frontend import bench as whole
from meshwright.frontend import bench_programs
from meshwright.frontend.minilm import load
from meshwright.machine import load as load_machine
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


@group.command("programs")
@reported
def programs(
    repeats: Annotated[int, typer.Option(metavar="N", help="Turns of each step; the best counts.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Time work run as instruction words on a card in software, step by step, on one mesh and one thread.

    pack: operands into the byte orders that units read. compile: a plan's
    graph into programs, the first time. link: addresses into words, and
    their encoding. execute: link, dispatch and simulation with operands on
    the card. whole: from operands on the host to the result on the host,
    beside the same calls evaluated.

    [bold]Examples[/bold]

      meshwright bench programs
      meshwright bench programs --repeats 21
      meshwright bench programs --json > here.json
    """
    with err().status("measuring") as status:
        found = bench_programs.run(load_machine("ktpu-v13p"), repeats, lambda name: status.update(f"measuring {name}"))
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    typer.echo(bench_programs.table(found))


@group.command("transformer")
@reported
def transformer(
    sentences: Annotated[int, typer.Option(help="How many sentences.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens in each.")] = 128,
    meshes: Annotated[int, typer.Option(help="Over how many meshes of the four-mesh card.")] = 4,
    repeats: Annotated[int, typer.Option(metavar="N", help="Turns of each side; the best counts.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Time a whole transformer on the meshes, bit for bit, beside float32 numpy.

    Both run on one thread, in turns. Needs the demo's model.

    [bold]Examples[/bold]

      meshwright bench transformer
      meshwright bench transformer --sentences 8 --meshes 1
    """
    model = load()
    text = whole.text_of(model, sentences, tokens)
    with err().status("measuring; about a minute with the default sizes"):
        report = whole.run(load_machine("ktpu-v13p"), meshes, model, text, repeats)
    if json:
        typer.echo(report.to_json())
        return
    typer.echo(
        f"{sentences} sentences of {tokens} tokens, {report.multiply_adds / 1e9:.1f} G multiply-adds, one thread each\n"
        f"on {meshes} meshes, bit for bit: {report.seconds:6.2f} s  {report.gmac:6.2f} GMAC/s, "
        f"{report.in_kernels:.0%} of the time in kernels\n"
        f"float32 numpy:              {report.float32_seconds:6.2f} s  {report.float32_gmac:6.2f} GMAC/s"
    )

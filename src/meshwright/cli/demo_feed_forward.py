"""`meshwright demo --part feed-forward`: each layer's feed-forward block, looked at closely."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.cli.console import err, out, plain_table
from meshwright.evaluate.arithmetic import Array
from meshwright.frontend.feed_forward import Errors, Layer, differing, layers
from meshwright.frontend.minilm import Array64, MiniLM
from meshwright.machine import MachineSpec
from meshwright.sharding.group import MeshGroup


def show_feed_forward(spec: MachineSpec, meshes: int, model: MiniLM, texts: Sequence[str]) -> None:
    """Runs every layer's feed-forward block on the sentences' embeddings and prints what came of it."""
    tokens = model.tokens(texts)
    x = model.embeddings(tokens)[tokens.mask]
    group = MeshGroup.open(spec, meshes)
    _introduce(group, model, texts, x)
    done = _run(group, model, x)
    _explain(done[0])
    alone = None if meshes == 1 else list(layers(MeshGroup.open(spec, 1), model, x))
    _results(done, alone)
    _totals(done)


def _introduce(group: MeshGroup, model: MiniLM, texts: Sequence[str], x: Array64) -> None:
    console = out()
    chain = " - ".join(map(str, group.meshes))
    console.print(
        f"{len(texts)} sentences, {x.shape[0]} tokens of {x.shape[1]}, on meshes {chain} of {group.machine.name}"
    )
    config = model.config
    console.print(
        f"all-MiniLM-L6-v2: {config.num_hidden_layers} layers, feed-forward "
        f"{config.hidden_size} -> {config.intermediate_size} -> {config.hidden_size}\n"
    )


def _run(group: MeshGroup, model: MiniLM, x: Array64) -> list[Layer]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task("plans run", total=4 * model.config.num_hidden_layers)
        return list(layers(group, model, x, lambda done, _: progress.update(task, completed=done)))


def _explain(layer: Layer) -> None:
    console = out()
    console.print("The split of every layer, and why it is legal:")
    for plan in layer.plans:
        result = plan.slots[plan.into]
        console.print(f"  {result.name}: {plan.reason}", soft_wrap=True)
    console.print()


def _results(done: list[Layer], alone: list[Layer] | None) -> None:
    links = sorted({link for layer in done for link in layer.crossed})
    over = [f"{a} > {b}" for a, b in links]
    errors = ("median", "99th %ile", "largest", "rms")
    table = plain_table("layer", *errors, *over, "columns", "contraction", numbers=(*errors, *over))
    for number, layer in enumerate(done):
        table.add_row(
            str(layer.number),
            *_errors(layer.errors),
            *(f"{layer.crossed.get(link, 0):,}" for link in links),
            *_against(layer, None if alone is None else alone[number]),
        )
    out().print(table)
    _legend(alone is not None)


def _errors(errors: Errors) -> tuple[str, ...]:
    return f"{errors.median:.2%}", f"{errors.p99:.1%}", f"{errors.largest:.3g}", f"{errors.rms:.2%}"


def _against(layer: Layer, alone: Layer | None) -> tuple[str, str]:
    if alone is None:
        return "one mesh", "one mesh"
    return _columns(layer.hidden_product, alone.hidden_product), _contraction(layer.output, alone.output)


def _columns(values: Array, alone: Array) -> str:
    other, _ = differing(values, alone)
    return "bits equal" if other == 0 else f"{other} differ"


def _contraction(values: Array, alone: Array) -> str:
    other, largest = differing(values, alone)
    return f"{other / values.size:.0%}, by {largest:.1g} rms"


def _legend(compared: bool) -> None:
    console = out()
    console.print("median, 99th %ile, largest: relative errors of the block's result, all elements, against float64")
    console.print("  with the same weights on the same token embeddings; the largest are at elements close to zero.")
    console.print("rms: of the errors, as a share of the result's own. a > b: payload bytes over that link.")
    if compared:
        console.print(
            "columns, contraction: the first product, and the block's result, against one mesh's: how many differ,"
        )
        console.print("  and by how much of the result's rms at most.")
    console.print()


def _totals(done: list[Layer]) -> None:
    seconds = sum(layer.seconds for layer in done)
    macs = sum(layer.macs for layer in done)
    sizes = [layer.sizes for layer in done]
    console = out()
    console.print(
        f"stage graphs: {sum(s.graphs for s in sizes)}, with {sum(s.stages for s in sizes):,} stages, "
        f"{sum(s.buffers for s in sizes):,} buffers and {sum(s.tensors for s in sizes)} tensors"
    )
    console.print(
        f"time: {seconds:.2f} s for {macs / 1e6:,.0f} million multiply-adds, {macs / seconds / 1e9:.2f} GMAC/s"
    )

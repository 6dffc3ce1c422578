"""`meshwright demo`: a real sentence transformer over the meshes of the card, from one command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.cli.console import err, out, plain_table
from meshwright.cli.demo_feed_forward import show_feed_forward
from meshwright.cli.demo_programs import show_programs
from meshwright.errors import UsageError
from meshwright.frontend import embedding
from meshwright.frontend.embedding import Comparison, Run, compare, run_encoder
from meshwright.frontend.feed_forward import differing
from meshwright.frontend.minilm import MiniLM, Tokens, load
from meshwright.machine import MachineSpec
from meshwright.machine import load as load_machine
from meshwright.runtime.cards import BackendName
from meshwright.sharding import Step

SENTENCES = (
    "The weather is lovely today.",
    "It is so sunny outside!",
    "He drove to the stadium in an old red car.",
)


class Backend(StrEnum):
    """How graphs run."""

    EVALUATOR = "evaluator"
    SIMULATOR = "simulator"


class Part(StrEnum):
    """What is run."""

    WHOLE = "whole"
    FEED_FORWARD = "feed-forward"


def demo(
    sentences: Annotated[
        list[str] | None, typer.Argument(help="Sentences to work on; three are there if none is given.")
    ] = None,
    machine: Annotated[str, typer.Option(help="Preset or machine file.")] = "ktpu-v13p",
    meshes: Annotated[int, typer.Option(help="Over how many meshes: 1 to 4 on the four-mesh card.")] = 4,
    part: Annotated[Part, typer.Option(help="The whole encoder, or its feed-forward blocks one by one.")] = Part.WHOLE,
    backend: Annotated[
        Backend, typer.Option(help="Evaluate stage graphs, or run instruction words on a card in software as well.")
    ] = Backend.EVALUATOR,
) -> None:
    """Embed sentences with a real transformer spread over the meshes of the card, bit for bit as the card would.

    Every operation of all six layers runs on the meshes: query, key, value and the first feed-forward matrix split by
    output columns, attention by heads, the output projection and the second feed-forward matrix by contraction, summed
    from mesh to mesh inside the accumulators. Printed: the splits and why they are legal, similarities from the card's
    arithmetic and from float64 side by side, the error after each layer, bytes over each link, and the rate.

    Examples:

      meshwright demo
      meshwright demo "One sentence." "And another one." --meshes 2
      meshwright demo --backend simulator
      meshwright demo --part feed-forward
    """
    spec = load_machine(machine)
    if not 1 <= meshes <= len(spec.mesh_ids):
        raise UsageError(
            f"--meshes {meshes}: {spec.name} has {len(spec.mesh_ids)} "
            f"mesh{'es' if len(spec.mesh_ids) > 1 else ''}; ask for 1 to {len(spec.mesh_ids)}"
        )
    model = load()
    texts = sentences or SENTENCES
    if part is Part.FEED_FORWARD and backend is Backend.SIMULATOR:
        raise UsageError(
            "--part feed-forward has no instruction words to show: --backend simulator runs the whole encoder"
        )
    if part is Part.FEED_FORWARD:
        show_feed_forward(spec, meshes, model, texts)
    else:
        _show_whole(spec, meshes, model, texts, backend)


def _show_whole(spec: MachineSpec, meshes: int, model: MiniLM, texts: Sequence[str], backend: Backend) -> None:
    tokens = model.tokens(texts)
    console = out()
    chain = " - ".join(map(str, spec.mesh_ids[:meshes]))
    console.print(
        f"all-MiniLM-L6-v2 on meshes {chain} of {spec.name}: {len(texts)} sentences, {int(tokens.mask.sum())} tokens, "
        f"{tokens.mask.size} positions with padding\n"
    )
    run = _with_progress(spec, meshes, model, tokens, True, "the encoder")
    if backend is Backend.SIMULATOR:
        show_programs(run, _with_progress(spec, meshes, model, tokens, True, "as instruction words", "simulator"))
    _picture(run)
    _certificates(run)
    comparison = compare(run, model, tokens)
    _similarities(texts, comparison)
    _errors(comparison, texts)
    _against_one_mesh(spec, meshes, model, tokens, run)
    _rates(run, model, tokens)


def _with_progress(
    spec: MachineSpec,
    meshes: int,
    model: MiniLM,
    tokens: Tokens,
    contraction: bool,
    what: str,
    backend: BackendName = "evaluator",
) -> Run:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task(what, total=None)
        return run_encoder(
            spec,
            meshes,
            model,
            tokens,
            contraction,
            lambda name, done, total: progress.update(task, description=f"{what}: {name}", completed=done, total=total),
            backend,
        )


def _picture(run: Run) -> None:
    """One layer as a table: every operation, what each mesh does, what crosses which link."""
    layer = run.operations[: len(run.operations) // len(run.layers)]
    meshes = list(dict.fromkeys(step.node for op in layer for step in op.plan.steps))
    chain = [m for m in layer[0].plan.ranks.meshes if m in meshes]
    table = plain_table("operation of a layer", "result", *(f"mesh {m}" for m in chain), "bytes over links")
    for op in layer:
        slot = op.plan.slots[op.plan.into]
        table.add_row(
            op.what,
            f"{slot.shaped} {' x '.join(map(str, slot.specs))}",
            *(_does(op.plan.steps, mesh) for mesh in chain),
            ", ".join(f"{a}>{b} {count:,}" for (a, b), count in sorted(op.crossed.items())),
        )
    console = out()
    console.print(table)
    console.print(
        "#: works on its own share; +: on another's as well; s: opens sums, a: adds arriving ones, d: drains;"
    )
    console.print("c: copies. Every layer is the same. Why each split is legal:")
    for reason in dict.fromkeys(op.plan.reason for op in layer):
        console.print(f"  {reason}", soft_wrap=True)
    console.print()


def _certificates(run: Run) -> None:
    certificates = [op.plan.certificate() for op in run.operations]
    stages = sum(len(op.plan.graph().stages) for op in run.operations)
    verdicts = Counter(entry.verdict for certificate in certificates for entry in certificate.entries)
    found = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.items())
    out().print(
        f"certificates: {len(certificates)} stage graphs with {stages:,} stages, "
        f"{len(certificates[0].entries)} obligations each, from shapes to partial sums: {found}\n",
        highlight=False,
    )


_MARKS = {"matmul, opens": "s", "add into": "a", "drain": "d", "copy": "c"}


def _does(steps: Sequence[Step], mesh: int) -> str:
    marks: dict[str, None] = {}
    for step in steps:
        if step.node == mesh:
            mark = _MARKS.get(step.kernel.name, "#")
            # A second piece of ordinary work is another mesh's.
            marks["+" if mark == "#" and "#" in marks else mark] = None
    return "".join(marks) or "."


def _similarities(texts: Sequence[str], comparison: Comparison) -> None:
    console = out()
    console.print("cosine similarity, card | float64")
    width = len(str(len(texts)))
    for row in range(len(texts)):
        pairs = [
            f"{comparison.card[row] @ comparison.card[column]:.4f} | "
            f"{comparison.reference[row] @ comparison.reference[column]:.4f}"
            for column in range(len(texts))
        ]
        if len(texts) <= 8:
            console.print(f"  {row + 1:>{width}}  {'   '.join(pairs)}   {texts[row]}", soft_wrap=True, highlight=False)
    worst = min(comparison.cosines)
    console.print(f"each embedding with float64's: cosine {worst:.5f} or more\n", highlight=False)


def _errors(comparison: Comparison, texts: Sequence[str]) -> None:
    table = plain_table("after layer", *(str(n) for n in range(len(comparison.errors))))
    table.add_row("error", *(f"{error:.2%}" for error in comparison.errors))
    console = out()
    console.print(table)
    console.print(
        f"error: rms of the difference to float64 as a share of float64's, all tokens of {len(texts)} sentences\n"
    )


def _against_one_mesh(spec: MachineSpec, meshes: int, model: MiniLM, tokens: Tokens, run: Run) -> None:
    if meshes == 1:
        return
    one = _with_progress(spec, 1, model, tokens, False, "one mesh, for comparison")
    many = _with_progress(spec, meshes, model, tokens, False, "split by columns only, for comparison")
    equal = embedding.bits_equal([one, many], tokens.mask)
    other, largest = differing(run.hidden[tokens.mask], one.hidden[tokens.mask])
    console = out()
    console.print(
        f"nothing split by contraction: bits on {meshes} meshes and on one are {'equal' if equal else 'NOT equal'}"
    )
    console.print(
        f"split by contraction: {other / run.hidden[tokens.mask].size:.1%} of the last layer's values differ from one "
        f"mesh's, by {largest:.2g} rms at most\n"
    )
    links = sorted(run.crossed)
    table = plain_table("bytes over links", *(f"{a} > {b}" for a, b in links))
    table.add_row("by contraction", *(f"{run.crossed[link]:,}" for link in links))
    table.add_row("by columns only", *(f"{many.crossed.get(link, 0):,}" for link in links))
    console.print(table)


def _rates(run: Run, model: MiniLM, tokens: Tokens) -> None:
    mine, theirs = embedding.rate(run.seconds, model, tokens), embedding.float32_rate(model, tokens)
    out().print(
        f"\ntime: {mine.seconds:.2f} s, {mine.gmac:.2f} GMAC/s evaluated bit for bit; "
        f"float32 numpy: {theirs.seconds:.2f} s, {theirs.gmac:.2f} GMAC/s",
        highlight=False,
    )

"""A walk as text: what the host says, sends and reads. What the cluster does is in `walk_story_cluster`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from meshwright.report.document import Heading, Listing, Part, Rows, Text
from meshwright.report.walk import Product, Walk
from meshwright.report.walk_exchange import Exchange, Named
from meshwright.report.walk_orders import Line, Picture
from meshwright.report.walk_story_cluster import cluster, comparison
from meshwright.report.walk_story_text import aligned, bytes_of, counted, lines_or_some
from meshwright.report.walk_story_words import programs, staged
from meshwright.targets.ktpu.tiling import Tiling

Words: TypeAlias = Literal["some", "all"]
_MOST_CALLS: Final = 12
_FIRST_CALLS, _LAST_CALLS = 8, 3


def story(walked: Walk, words: Words = "some") -> tuple[Part, ...]:
    """The whole walk; words: "some" leaves out what only repeats, and says so."""
    whole = words == "all"
    return (
        *_introduction(walked.product),
        *_call(walked.product),
        *_plan(walked),
        *_graph(walked, whole),
        *_certificate(walked),
        *_tiling(walked),
        *_orders(walked),
        *programs(walked, whole),
        *_round(walked, whole),
        *cluster(walked, whole),
        *comparison(walked),
        *_counts(walked),
    )


def command_of(asked: Product) -> str:
    """The command line that gives this walk."""
    seed = f" --seed {asked.seed}" if asked.seed else ""
    return f"meshwright walk {asked.m} {asked.k} {asked.n} --machine {asked.named} --mesh {asked.mesh}{seed}"


def _introduction(asked: Product) -> Iterator[Part]:
    yield Heading("One product, from the call to words and back", 1)
    yield Text(
        "How a line of Python becomes bytes in memory, 256-bit instruction words and writes of registers, what a "
        "cluster makes of them, and how the answer comes back. Everything below happened in one run on a card in "
        "software: a transport wrote down what passed between host and card, and one cluster was looked at while it "
        "worked. A card behind another transport is sent the same words by the same code."
    )
    yield Text(f"`{command_of(asked)}` shows it in a terminal; with `--markdown` it prints this page.")


def _call(asked: Product) -> Iterator[Part]:
    a, _ = asked.operands()
    yield Heading("1. The call")
    yield Listing(
        f"import numpy as np\n\nimport meshwright as mw\n\nrng = np.random.default_rng({asked.seed})\n"
        f"a = rng.standard_normal(({asked.m}, {asked.k})).astype(np.float16)\n"
        f"b = rng.standard_normal(({asked.n}, {asked.k})).astype(np.float16)\n"
        f"group = mw.MeshGroup.open(mw.simulated({_quoted(asked.named)}), meshes=[{asked.mesh}])\n"
        "c = group.matmul(group.copy(a), group.copy(b))  # a @ b.T\n"
        "c = np.asarray(c)",
        "python",
    )
    first = ", ".join(f"{value:.4g}" for value in a[0, :4])
    more = " and so on" if a.shape[1] > 4 else ""
    yield Text(
        f"A is {asked.m} x {asked.k} and B {asked.n} x {asked.k}; C is A times B transposed, {asked.m} x {asked.n}. "
        f"Both are standard normal, rounded to fp16; A begins {first}{more}."
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plan(walked: Walk) -> Iterator[Part]:
    yield Heading("2. The plan")
    yield Text("What runs where, and why that is legal. Nothing has run yet.")
    yield Listing(walked.plan)


def _graph(walked: Walk, whole: bool) -> Iterator[Part]:
    yield Heading("3. The stage graph")
    lines = str(walked.graph).splitlines()
    others = len(walked.programs) - 1
    mine = [line for line in lines if line.startswith("t") or f" {walked.watched} " in f"{line} "]
    yield Text(
        "Tensors (t), buffers (b) and stages (s): each cluster loads blocks of A and B into FIFOs, multiplies them, "
        "and stores its block of C. A pattern such as `(0, 0)+[32, 128] 1*(32, 0)` is the box of the first block, then "
        "loops: how often, and by how much the box moves."
    )
    if whole or not others or len(mine) == len(lines):
        yield Listing("\n".join(lines))
        return
    yield Listing("\n".join(mine))
    yield Text(f"And {len(lines) - len(mine)} lines like these for {counted(others, 'other cluster')}.")


def _certificate(walked: Walk) -> Iterator[Part]:
    yield Heading("4. The certificate")
    found = Counter(one.verdict for one in walked.obligations)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    yield Text(
        f"What can be promised of the graph on this machine, with evidence that `meshwright recheck` follows: "
        f"{len(walked.obligations)} obligations, {verdicts}. Without it the plan isn't run."
    )
    asked = [one.name for one in walked.obligations if not one.note]
    empty = [f"{one.name} ({one.note})" for one in walked.obligations if one.note]
    yield Text(f"With evidence: {', '.join(asked)}.")
    if empty:
        yield Text(f"Nothing to ask: {', '.join(empty)}.")


def _tiling(walked: Walk) -> Iterator[Part]:
    taken, first = walked.tilings.taken, walked.tilings.first
    yield Heading("5. The tiling")
    down, across = taken.grid
    same = taken.tile == first.tile
    found = counted(walked.tilings.candidates, "candidate")
    yield Text(
        f"C is cut into {down} x {across} tiles of `gm` x `gn` = {taken.gm} x {taken.gn} sub-tiles of 4 x 4, dealt to "
        f"{taken.at_work} of {walked.clusters} clusters. Along K a tile is summed in {counted(taken.chunks, 'sweep')} "
        f"of `nk` = {counted(taken.nk, 'K block')} of 32; sweeps after the first continue the resident tile."
    )
    yield Text(
        "The default is the plain tile, up to 64 x 128 outputs and narrower where every cluster then has a share, "
        "unless another one of 64 rows at most is estimated to take less than 0.8 of its cycles; a product of less "
        "than 10,000 cycles keeps the plain tile. More of that: [Tilings](tiling.md#the-default-tile). "
        + (f"Of {found} it is the first in their order:" if same else f"Beside it the first of {found} in their order:")
    )
    rows = [("taken", taken)] + [("first", first)] * (not same)
    headings = ("tile", "m x n x k", "gm, gn, nk", "clusters at work", "L1 entries", "padding", "cycles, estimated")
    yield Rows(
        headings,
        tuple(_tiling_row(name, tiling) for name, tiling in rows),
        numbers=headings[3:],
    )


def _tiling_row(name: str, tiling: Tiling) -> tuple[str, ...]:
    cycles = "not known" if tiling.cycles is None else f"{tiling.cycles:,.0f}"
    return (
        name,
        " x ".join(map(str, tiling.tile)),
        f"{tiling.gm}, {tiling.gn}, {tiling.nk}",
        str(tiling.at_work),
        f"{tiling.operand_words:,}",
        f"{tiling.padding:.1%}",
        cycles,
    )


def _orders(walked: Walk) -> Iterator[Part]:
    yield Heading("6. The bytes in memory")
    yield Text(
        "Clusters stream A and B through L1 in entries of 4 rows by 32 of K, 256 bytes of fp16 each, in the order in "
        "which FILLs name them. C comes back in sub-tiles of 4 x 4, 32 bytes each. Rows and K are padded with zeros up "
        "to whole tiles. Nothing was sent when `group.copy` was called: a value is written when a program first "
        "needs it, in the order that the program reads."
    )
    for picture in walked.pictures:
        yield from _picture(picture)


def _picture(picture: Picture) -> Iterator[Part]:
    rows, columns = picture.shape
    yield Text(
        f"**{picture.name.upper()}**, {rows} x {columns}, {picture.nbytes:,} bytes at `{picture.address:#x}` for "
        f"units, at `{picture.host:#x}` for the host: `{picture.order}`, index order ({picture.index}). Byte at which "
        f"each {picture.unit} begins:"
    )
    yield Listing(_map(picture))
    column = "k" if picture.unit.endswith("32") else "column"
    yield Text(f"And single elements, (row, {column}), with the bytes as they {_passed(picture)}:")
    yield Listing(aligned([("byte", "bytes", "elements", "fp16"), *map(_line, picture.lines)]))


def _passed(picture: Picture) -> str:
    return "were read back" if picture.name == "c" else "were written"


def _map(picture: Picture) -> str:
    wide = int(picture.unit.split(" x ")[1])
    what = "k" if picture.unit.endswith("32") else "columns"
    down, over = picture.mapped
    more = over - len(picture.columns)
    head = ["", *(f"{what} {first}..{first + wide - 1}" for first in picture.columns)]
    dots = ("...",) if more else ()
    rows: list[tuple[str, ...]] = [
        (f"rows {first}..{first + 3}", *(f"{byte:,}" for byte in bytes_), *dots) for first, bytes_ in picture.map
    ]
    if more:
        head.append(f"and {more} more")
    if down > len(rows):
        rows.append((f"and {down - len(picture.map)} more", *("..." for _ in head[1:])))
    return aligned([tuple(head), *rows])


def _line(line: Line) -> tuple[str, ...]:
    elements = " ".join("pad" if place is None else f"({place[0]}, {place[1]})" for place in line.elements)
    if line.data is None:
        return f"{line.byte:,}", "not read", "-" if not any(line.elements) else elements, ""
    values = np.frombuffer(line.data, np.float16)
    return f"{line.byte:,}", bytes_of(line.data), elements, " ".join(f"{value:.4g}" for value in values)


def _round(walked: Walk, whole: bool) -> Iterator[Part]:
    calls = walked.exchanges.calls
    yield Heading("8. The round")
    yield Text(
        "Before anything ran, the host asked every place of every mesh which unit stands there: "
        f"{counted(walked.discovery.calls, 'call')} of the transport, through the agents' mailboxes. Then, call by "
        "call; a call is as many writes, or reads, as it lists. A register stands with its offset in the agent's "
        "window; offsets of DRAM are this mesh's."
    )
    shown: Sequence[Exchange] = calls
    cut = not whole and len(calls) > _MOST_CALLS
    if cut:
        shown = calls[:_FIRST_CALLS]
    base = walked.discovery.calls - 1
    yield Listing("\n\n".join(_exchange(call, base, whole) for call in shown))
    if cut:
        left = calls[_FIRST_CALLS:-_LAST_CALLS]
        kinds = Counter[str](call.kind for call in left)
        listed = ", ".join(counted(count, kind) for kind, count in kinds.items())
        yield Text(f"And {counted(len(left), 'call')} like these ({listed}), then:")
        yield Listing("\n\n".join(_exchange(call, base, whole) for call in calls[-_LAST_CALLS:]))
    kick = walked.exchanges.kicks[0]
    agent = walked.product.machine.mesh(walked.product.mesh).agent
    yield Text(
        "The order is the whole protocol. Credits are written once a round: each flit that goes out takes one, each "
        "completion but a kick's last brings one back, so that no queue of a unit overflows. Slots may be rewritten "
        "only when everything that was kicked is complete. A kick that comes while the dispatcher is at work is "
        "dropped without a word, which is why `PROG_STAT` is polled between kicks. A register that holds the right "
        "value already isn't written again."
    )
    sent = [one for one in walked.exchanges.kicks if one.at == kick.at]
    words = sum(len(one.flits) for one in sent)
    yield Text(
        f"The mirror's word of ({kick.at[0]}, {kick.at[1]}) before: `{_mirror(walked, kick.at, 0)}`; after: "
        f"`{_mirror(walked, kick.at, -1)}`. The count went up by {words}, one for each word that was sent; the last "
        f"signal is BATCH_COMPLETE with the number of its last kick, {sent[-1].flits[-1].txn}, so that an old answer "
        "isn't taken for this one."
    )
    yield from staged(kick, agent)


def _exchange(call: Exchange, base: int, whole: bool) -> str:
    blocks = lines_or_some([_named(block) for block in call.blocks], whole)
    return f"call {call.number - base}: {call.kind}\n{aligned(blocks, indent='  ')}"


def _named(block: Named) -> tuple[str, str, str]:
    return block.what, block.value, block.says


def _mirror(walked: Walk, at: tuple[int, int], which: int) -> str:
    label = f"NODE_STATUS ({at[0]}, {at[1]}) "
    words = [block for call in walked.exchanges.calls for block in call.blocks if block.what.startswith(label)]
    return f"{words[which].value}: {words[which].says}"


def _counts(walked: Walk) -> Iterator[Part]:
    stats, run, back = walked.stats, walked.run, walked.back
    yield Heading("11. What it took")
    yield Rows(
        ("what", "how much"),
        (
            ("clusters that were sent a program", f"{len(walked.programs)} of {walked.clusters}"),
            ("instruction words", f"{stats.words:,}"),
            ("rounds, kicks", f"{walked.exchanges.rounds}, {len(walked.exchanges.kicks)}"),
            ("transport calls: looking for units", f"{walked.discovery.calls:,}"),
            ("transport calls: the run", f"{run.calls:,} ({run.submits} submits, {run.polls} polls)"),
            ("transport calls: reading C", f"{back.calls:,}"),
            ("bytes to the card, images, words and registers", f"{run.written:,}"),
            ("bytes from the card, registers and C", f"{run.read + back.read:,}"),
            ("bytes of A and B, of C", f"{stats.sent:,}, {stats.fetched:,}"),
            ("relayouts", f"{stats.relayouts:,}"),
        ),
        numbers=("how much",),
    )
    yield Text(
        "How graphs become programs in general, with vector cores, copies and several meshes: "
        "[Graphs as programs](backend.md)."
    )

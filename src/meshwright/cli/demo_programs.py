"""What `meshwright demo --backend simulator` says of a run through instruction words."""

from __future__ import annotations

import numpy as np

from meshwright.cli.console import out, plain_table
from meshwright.errors import MeshwrightError
from meshwright.frontend.embedding import Run


def show_programs(evaluated: Run, executed: Run) -> None:
    """Both runs side by side: whether every layer has the same bits, and what was sent to which mesh for it.

    Raises `MeshwrightError` where bits differ: one of the two is wrong.
    """
    pairs = zip(evaluated.layers, executed.layers, strict=True)
    different = [int((a.view(np.uint16) != b.view(np.uint16)).sum()) for a, b in pairs]
    if any(different):
        found = ", ".join(f"{count:,} of layer {layer}" for layer, count in enumerate(different) if count)
        raise MeshwrightError(
            f"the simulator and the evaluator don't agree: {found} of {evaluated.hidden.size:,} values each differ. "
            "One of them computes what the card doesn't; please report it with this command line"
        )
    _table(executed)
    console = out()
    console.print(
        f"run as instruction words on {len(executed.devices)} meshes of a card in software: bits of all "
        f"{len(executed.layers)} layers are equal to the evaluator's, {evaluated.hidden.size:,} values each, padding "
        "included",
        soft_wrap=True,
        highlight=False,
    )
    console.print(f"time: {executed.seconds:.1f} s; evaluated {evaluated.seconds:.2f} s\n", highlight=False)


def _table(run: Run) -> None:
    table = plain_table("instruction words", *(f"mesh {mesh}" for mesh in run.devices))
    stats = run.devices.values()
    table.add_row("programs", *(f"{s.programs:,}" for s in stats))
    table.add_row("words in them", *(f"{s.words:,}" for s in stats))
    table.add_row("relayouts", *(f"{s.relayouts:,}" for s in stats))
    table.add_row("bytes relaid", *(f"{s.relaid:,}" for s in stats))
    table.add_row("bytes carried by the host", *(f"{s.carried:,}" for s in stats))
    out().print(table)

"""Coverage-guided fuzzing of what `meshwright check` does with a file: read it, certify it, follow its evidence.

    python fuzz/fuzz_check.py --seconds 300        (needs `pip install atheris`)

Inputs are JSON of real graphs with parts exchanged, and bytes as they come. A graph is refused with a `MeshwrightError`
or certified, and what is certified can be rechecked unless something in it is open; any other exception, and any
input that takes over ten seconds or a gigabyte, ends the run with the input that did it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from meshwright.certify import Verdict, certify, recheck
    from meshwright.errors import MeshwrightError
    from meshwright.ir.serialise import from_json, to_json
    from meshwright.machine import load

SAMPLES = sorted((Path(__file__).parents[1] / "tests" / "report" / "samples").glob("*.json"))
MOST_BYTES = 1 << 16
MACHINES = [load(name) for name in ("ktpu-v13p", "grid-2x4x4")]
GRAPHS = [text for text in (path.read_text() for path in SAMPLES) if len(text) < MOST_BYTES]
WHOLE = (-1, 0, 1, 2, 3, 31, 255, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 70, -(1 << 63))


def exchanged(node: object, data: atheris.FuzzedDataProvider, left: list[int]) -> object:
    """A copy with some of its numbers, names and lists exchanged."""
    if left[0] > 0 and data.ConsumeProbability() < 0.02:
        left[0] -= 1
        if isinstance(node, list):
            return data.PickValueInList([[], node[:-1], [*node, *node[-1:]], node[::-1]])
        if isinstance(node, bool) or node is None:
            return data.PickValueInList([True, None, 0])
        if isinstance(node, int | float):
            return data.PickValueInList([*WHOLE, node + 1, node - 1, 0.5, 1e308])
        if isinstance(node, str):
            return data.PickValueInList(["", "x", "f16", "f32", "load", "store", node + node])
    if isinstance(node, dict):
        return {key: exchanged(value, data, left) for key, value in node.items()}
    if isinstance(node, list):
        return [exchanged(value, data, left) for value in node]
    return node


def one_input(raw: bytes) -> None:
    """One run; raises for a defect."""
    # A graph and what was found of it refer to each other, and what was found may be arrays of a quarter of a gigabyte
    # (the bound of `check`). Among all that an instrumented process keeps, the collector comes by too seldom.
    gc.collect()
    data = atheris.FuzzedDataProvider(raw)
    if data.ConsumeBool():
        graph_text = data.PickValueInList(GRAPHS)
        text = json.dumps(exchanged(json.loads(graph_text), data, [data.ConsumeIntInRange(1, 6)])).encode()
    else:
        text = data.ConsumeBytes(MOST_BYTES)
    machine = data.PickValueInList(MACHINES)
    try:
        graph = from_json(text)
        certificate = certify(graph, machine)
    except MeshwrightError:
        return
    if from_json(to_json(graph)) != graph:
        raise AssertionError("a graph that was read is not the one that is written")
    if certificate.verdict is Verdict.HELD:
        recheck(certificate, graph, machine)


def main() -> None:
    """Fuzzes for the seconds asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300)
    chosen = parser.parse_args()
    limits = [
        f"-max_total_time={chosen.seconds}",
        "-timeout=10",
        "-rss_limit_mb=3000",
        "-max_len=4096",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *limits], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""`meshwright check` and `meshwright recheck`: the certificate of a graph, made, shown, written and followed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from meshwright.certify import (
    Certificate,
    CertificateError,
    Entry,
    Verdict,
    Waiver,
    certify,
    from_json,
    recheck,
    to_json,
)
from meshwright.certify.certificate import (
    BlockCounts,
    ChannelOrder,
    FieldAgreement,
    FiringOrder,
    Memory,
    Openings,
    Peaks,
    Room,
    Sums,
    Transfers,
    Units,
    WellFormed,
    graph_hash,
)
from meshwright.certify.same_function import same_function
from meshwright.cli.console import out, plain_table
from meshwright.cli.failures import NO
from meshwright.errors import EvaluationError, GraphError, UsageError
from meshwright.ir import serialise
from meshwright.ir.graph import Graph
from meshwright.ir.records import Load
from meshwright.machine import MachineSpec, load

NOT_DECIDED: Final = 3
DEFAULT_MACHINE: Final = "ktpu-v13p"
MOST_BYTES: Final = 64 << 20
"""A larger file isn't read."""
MOST_STAGES: Final = 1 << 17
"""A graph of more stages isn't checked."""
MOST_RECORDS: Final = 1 << 18
"""Nor one of more tensors, buffers, groups or precedences than this."""
MOST_PAIRS: Final = 1 << 26
"""Nor one with more pairs of a multicast and a stage."""
_MOST_AXES: Final = 32

MachineOption = Annotated[
    str, typer.Option("--machine", metavar="NAME|FILE", help="The machine it is to run on: a name or a machine file.")
]


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A stage graph: JSON, or MessagePack in a .msgpack.")],
    machine: MachineOption = DEFAULT_MACHINE,
    json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="A graph that has to compute the same.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="OUT", help="Write the certificate to this file.")
    ] = None,
    waive: Annotated[
        list[str] | None, typer.Option("--waive", metavar="OBLIGATION", help="An obligation that need not hold.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; goes into the certificate.")] = "",
    who: Annotated[str, typer.Option("--who", help="Who says so; goes into the certificate.")] = "",
) -> None:
    """What can be promised of a stage graph on a machine, with evidence.

    Exit status: 0 everything is held (or waived), 1 something is broken, 3 something can't be decided, 2 the input
    can't be used.

    [bold]Examples[/bold]

      meshwright check graph.json --machine grid-8x8
      meshwright check graph.json --certificate graph.cert.json
      meshwright check graph.json --waive RoundFits --reason "one step a round" --who "A. Person"
    """
    graph = read_graph(file)
    spec = load(machine)
    whole = None if reference is None else read_graph(reference)
    if (reason or who) and not waive:
        raise UsageError("--reason and --who go with --waive: name the obligation that need not hold")
    made = certify(graph, spec, [Waiver(name, reason, who) for name in waive or []], whole)
    if certificate is not None:
        _write(certificate, to_json(made))
    if json:
        typer.echo(to_json(made))
    else:
        _show(made, file, spec)
    raise typer.Exit({Verdict.BROKEN: NO, Verdict.NOT_DECIDED: NOT_DECIDED}.get(made.verdict, 0))


def recheck_command(
    certificate: Annotated[Path, typer.Argument(metavar="CERT", help="A certificate that `check` wrote.")],
    file: Annotated[Path, typer.Argument(metavar="GRAPH", help="The graph that it is about.")],
    machine: MachineOption = DEFAULT_MACHINE,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="The graph that it computes the same as.")
    ] = None,
    no_waivers: Annotated[bool, typer.Option("--no-waivers", help="A waived obligation counts as broken.")] = False,
) -> None:
    """Follow a certificate's evidence again, believing nothing else. Exit status 1 where it doesn't show its claims.

    [bold]Examples[/bold]

      meshwright recheck graph.cert.json graph.json --machine grid-8x8
    """
    try:
        made = from_json(_read(certificate))
    except CertificateError as problem:
        raise UsageError(f"{certificate}: {problem}") from None
    graph = read_graph(file)
    whole = None if reference is None else read_graph(reference)
    try:
        recheck(made, graph, load(machine), not no_waivers, None if whole is None else _agreement(whole))
    except CertificateError as problem:
        out().print(f"refused: {problem}", soft_wrap=True)
        raise typer.Exit(NO) from None
    waived = [entry.obligation for entry in made.entries if entry.verdict is Verdict.WAIVED]
    held = len(made.entries) - len(waived)
    out().print(f"{held} obligations held, each by its evidence" + (f"; waived: {', '.join(waived)}" if waived else ""))


def _agreement(reference: Graph) -> Callable[[Graph, FieldAgreement], bool]:
    def agrees(graph: Graph, evidence: FieldAgreement) -> bool:
        if evidence.reference != graph_hash(reference):
            return False
        try:
            answer = same_function(graph, reference, evidence.rounds, evidence.seed, names=dict(evidence.names))
        except (GraphError, EvaluationError):
            return False
        return answer.held and answer.error <= evidence.error

    return agrees


def read_graph(file: Path) -> Graph:
    """The graph in a file, `UsageError` in one line for one that can't be read or is past the bounds of this module."""
    data = _read(file)
    try:
        graph = serialise.from_msgpack(data) if file.suffix == ".msgpack" else serialise.from_json(data)
    except (GraphError, MemoryError, OverflowError) as problem:
        raise UsageError(f"{file}: {_one_line(str(problem))}") from None
    if fault := _too_large(graph):
        raise UsageError(f"{file}: {fault}")
    return graph


def _too_large(graph: Graph) -> str:
    if len(graph.stages) > MOST_STAGES:
        return f"{len(graph.stages)} stages; graphs of up to {MOST_STAGES} are checked"
    for what in ("tensors", "buffers", "groups", "precedences"):
        if len(getattr(graph, what)) > MOST_RECORDS:
            return f"{len(getattr(graph, what))} {what}; graphs of up to {MOST_RECORDS} are checked"
    ports = sum(len(s.ins) + len(s.outs) for s in graph.stages)
    if ports > 2 * MOST_RECORDS:
        return f"{ports} ports; graphs of up to {2 * MOST_RECORDS} are checked"
    sends = sum(isinstance(s.kind, Load) and s.kind.multicast is not None for s in graph.stages)
    if sends * len(graph.stages) > MOST_PAIRS:
        return f"{sends} multicasts among {len(graph.stages)} stages; up to {MOST_PAIRS} pairs of them are checked"
    if any(len(t.shape) > _MOST_AXES for t in graph.tensors) or any(len(b.block) > _MOST_AXES for b in graph.buffers):
        return f"a tensor or block of more than {_MOST_AXES} axes"
    return ""


def _read(file: Path) -> bytes:
    try:
        if not file.is_file():
            raise UsageError(f"{file}: there is no such file")
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"{file}: {file.stat().st_size} bytes; files of up to {MOST_BYTES} are read")
        return file.read_bytes()
    except OSError as problem:
        raise UsageError(f"{file}: can't be read: {problem.strerror}") from None


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as problem:
        raise UsageError(f"{file}: can't be written: {problem.strerror}") from None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def _show(made: Certificate, file: Path, machine: MachineSpec) -> None:
    console = out()
    table = plain_table("obligation", "verdict", "")
    for entry in made.entries:
        table.add_row(entry.obligation, entry.verdict.value, _brief(entry))
    console.print(table)
    for entry in made.entries:
        for line in _details(entry):
            console.print(line, soft_wrap=True)
    console.print(f"\n{made.verdict.value}: {file} on {machine.name}", soft_wrap=True)


def _brief(entry: Entry) -> str:
    match entry.verdict:
        case Verdict.HELD:
            return entry.message or _shown(entry)
        case Verdict.WAIVED if entry.waiver is not None:
            return f"by {entry.waiver.who}: {entry.waiver.reason}"
        case Verdict.NOT_DECIDED:
            return entry.message
        case _:
            return entry.message.split("\n", 1)[0]


def _shown(entry: Entry) -> str:
    """What the evidence shows, in a few words."""
    match entry.evidence:
        case WellFormed(stages=stages):
            return f"{stages} stages"
        case BlockCounts(counts):
            return f"{sum(counts)} blocks through {len(counts)} buffers"
        case FiringOrder(parts):
            return (
                f"an order of {sum(part.times * len(part.runs) for part in parts)} runs, written in {len(parts)} parts"
            )
        case Peaks(peaks):
            return f"{max(peaks, default=0)} blocks in a buffer at most"
        case ChannelOrder(channels):
            return f"{len(channels)} links, in one order"
        case Room(uses=uses) if uses:
            fullest = max(uses, key=lambda use: use.used / max(use.limit, 1))
            return f"fullest: {fullest.used:,} of {fullest.limit:,} at {fullest.where}"
        case Memory(pieces):
            return f"{len(pieces)} pieces stored"
        case Sums(buffers):
            return f"{sum(content.held is not None for content in buffers)} partial streams followed"
        case Openings(accumulators):
            return f"{len(accumulators)} accumulators"
        case Transfers(moves):
            return f"{len(moves)} transfers"
        case Units(units):
            return ", ".join(f"{units.count(kind)} on {kind}" for kind in sorted(set(units)))
        case FieldAgreement(rounds=rounds, error=error):
            return f"equal in {rounds} rounds, error at most {error:.2g}"
        case _:
            return ""


def _details(entry: Entry) -> list[str]:
    """What is broken, in full."""
    witness = entry.witness
    if witness is None or entry.verdict is not Verdict.BROKEN:
        return []
    where = {
        "stages": ", ".join(f"s{s}" for s in witness.stages[:8]) + (" ..." if len(witness.stages) > 8 else ""),
        "buffers": ", ".join(f"b{b}" for b in witness.buffers[:8]) + (" ..." if len(witness.buffers) > 8 else ""),
        "chips": ", ".join(map(str, witness.chips)),
        "elements": f"{witness.tensor or ''}[{', '.join(f'{a}:{b}' for a, b in witness.elements)}]"
        if witness.elements
        else "",
        "change": witness.change,
    }
    return [f"\n{entry.obligation}: {entry.message}", *(f"  {name:<9}{said}" for name, said in where.items() if said)]

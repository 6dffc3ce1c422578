"""`meshwright doctor`: what runs here, and whether its bits are the machine's."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from meshwright.cli.console import out, plain_table
from meshwright.cli.diagnosis import Diagnosis, diagnose
from meshwright.cli.failures import REFUSED, say_error
from meshwright.cli.golden import run_golden
from meshwright.errors import UsageError

_NO_KERNELS = """\
The compiled kernels are not installed, so the numpy twins compute: the same bits, slower.
To build them, install a C++17 compiler
    Debian, Ubuntu   apt install g++
    Fedora           dnf install gcc-c++
    macOS            xcode-select --install
    Windows          the Visual Studio Build Tools, with "Desktop development with C++"
and install meshwright again: `make clean test` in its source folder, or
    pip install -v --force-reinstall --no-deps PATH_OF_THE_SOURCE_FOLDER
which shows what the compiler says if it fails."""


def doctor(
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden", metavar="DIR", help="Run the golden vector files in DIR on every backend and compare the bits."
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="NAME", help="With --golden: only this backend; may be given several times."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show versions, processor, backends and threads; check the bits.

    A backend is one implementation of the number formats. All give the
    same bits; the fastest that runs on this processor is used, unless
    MESHWRIGHT_BACKEND names another. MESHWRIGHT_THREADS sets its threads.
    With --golden, exits with 1 when a value differs from the machine's,
    and with 2 when a file can't be read.

    [bold]Examples[/bold]

      meshwright doctor
      meshwright doctor --golden tests/golden
      meshwright doctor --golden tests/golden --backend numpy
      MESHWRIGHT_BACKEND=scalar meshwright doctor
    """
    if golden is not None:
        raise typer.Exit(run_golden(golden, backend, json=json))
    if backend:
        raise UsageError("--backend chooses what --golden runs: add --golden DIR, or set MESHWRIGHT_BACKEND instead")
    diagnosis = diagnose()
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        _show(diagnosis)
    if diagnosis.problem is not None:
        say_error(diagnosis.problem)
        raise typer.Exit(REFUSED)


def _show(diagnosis: Diagnosis) -> None:
    facts = plain_table("", "")
    facts.show_header = False
    facts.add_row("meshwright", diagnosis.meshwright)
    facts.add_row("python", diagnosis.python)
    facts.add_row("numpy", diagnosis.numpy)
    facts.add_row("system", diagnosis.system)
    facts.add_row("processor", f"{diagnosis.processor}, {diagnosis.usable_cores} cores usable")
    facts.add_row("threads", f"{diagnosis.threads or 'none'} ({diagnosis.threads_from})")
    for module in diagnosis.modules:
        facts.add_row(f"kernels {module.name}", module.state)
    backends = plain_table("backend", "runs here", "used", "")
    for entry in diagnosis.backends:
        used = diagnosis.used_because if entry.name == diagnosis.used else ""
        backends.add_row(entry.name, "yes" if entry.runs else "no", "yes" if used else "", used or entry.note)
    console = out()
    console.print(facts)
    console.print()
    console.print(backends)
    if not all(module.loaded for module in diagnosis.modules):
        console.print(f"\n{_NO_KERNELS}", soft_wrap=True)

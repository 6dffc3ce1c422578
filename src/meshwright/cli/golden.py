"""`meshwright doctor --golden DIR`: every vector file in a directory, on every backend."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from meshwright.cli.console import err, out, plain_table
from meshwright.cli.failures import NO, REFUSED, say_error
from meshwright.errors import UsageError
from meshwright.numerics import backend as backends_of
from meshwright.numerics.golden import FileResult, check_file

_ENDING = ".npz"


class FileLine(msgspec.Struct, frozen=True):
    """One vector file as `--json` prints it."""

    file: str
    format: str | None
    vectors: int
    mismatches: dict[str, int]
    error: str | None


class GoldenReport(msgspec.Struct, frozen=True):
    """The whole answer as `--json` prints it."""

    directory: str
    backends: list[str]
    files: list[FileLine]
    passed_over: list[str]
    vectors: int
    mismatches: int


def run_golden(directory: Path, backends: Sequence[str] | None, *, json: bool) -> int:
    """Check the vector files in `directory`, print what came of it, and return the exit status.

    1 when a value differs on some backend, else 2 when some file could not be read, else 0. Raises `UsageError`
    when there is no such directory or no vector file in it, `NumericsError` for a backend that can't run here.
    """
    names = [backends_of.resolve(name) for name in backends or backends_of.available()]
    files, passed_over = _listed(directory)
    results = list(_checked(files, names))
    report = GoldenReport(
        directory=str(directory),
        backends=[str(name) for name in names],
        files=[FileLine(r.path.name, r.format, r.vectors, dict(r.mismatches), r.error) for r in results],
        passed_over=passed_over,
        vectors=sum(result.vectors for result in results),
        mismatches=sum(sum(result.mismatches.values()) for result in results),
    )
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _show(report)
    for result in results:
        if result.error is not None:
            say_error(f"{result.path}: {result.error}")
    if report.mismatches:
        differ = "1 value differs" if report.mismatches == 1 else f"{report.mismatches:,} values differ"
        say_error(f"{differ} from the machine's: this build must not be trusted with numbers")
        return NO
    return REFUSED if any(result.error is not None for result in results) else 0


def _listed(directory: Path) -> tuple[list[Path], list[str]]:
    """The vector files in `directory`, and the names of the other files."""
    if not directory.is_dir():
        raise UsageError(
            f"--golden {directory}: there is no such directory. "
            "The vectors that come with the source are in tests/golden"
        )
    try:
        files = sorted(entry for entry in directory.iterdir() if entry.is_file())
    except OSError as problem:
        raise UsageError(f"--golden {directory}: the directory can't be read: {problem.strerror}") from None
    vectors = [file for file in files if file.suffix == _ENDING]
    if not vectors:
        found = f"{len(files)} other file{'s' if len(files) > 1 else ''}" if files else "nothing"
        raise UsageError(
            f"--golden {directory}: no vector file ({_ENDING}) in it, but {found}; nothing was checked. "
            "The vectors that come with the source are in tests/golden"
        )
    return vectors, [file.name for file in files if file.suffix != _ENDING]


def _checked(files: Sequence[Path], backends: Sequence[str]) -> Iterator[FileResult]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = err()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(files))
        for file in files:
            progress.update(task, description=file.name)
            yield check_file(file, backends)
            progress.advance(task)


def _show(report: GoldenReport) -> None:
    table = plain_table("file", "format", "values", *report.backends, "", numbers=("values", *report.backends))
    for line in report.files:
        counts = [f"{line.mismatches[name]:,}" if line.error is None else "-" for name in report.backends]
        differs = any(line.mismatches.values())
        verdict = "not run" if line.error is not None else "DIFFERS" if differs else "same bits"
        values = f"{line.vectors:,}" if line.error is None else "-"
        table.add_row(line.file, line.format or "-", values, *counts, verdict)
    console = out()
    console.print(table)
    console.print("\nUnder each backend: how many of its values differ from the machine's.")
    if report.passed_over:
        console.print(f"Passed over, not vector files: {', '.join(report.passed_over)}", soft_wrap=True)
    if all(line.error is None for line in report.files) and not report.mismatches:
        console.print(f"{report.vectors:,} values, {len(report.backends)} backends: every bit is the machine's.")

"""Where the command line writes: what was asked for to stdout, everything else to stderr."""

import sys

from rich.console import Console
from rich.table import Table

_WIDTH_OF_FILES = 120


def _console(*, stderr: bool) -> Console:
    # Made for each use: the streams may have been exchanged since, and rich looks at them when it is made. A pipe
    # or a file has no width, and rich's guess of 80 columns would break tables that fit on today's screens.
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, markup=False, width=None if stream.isatty() else _WIDTH_OF_FILES)


def out() -> Console:
    """The console for what was asked for."""
    return _console(stderr=False)


def err() -> Console:
    """The console for progress and for what went wrong."""
    return _console(stderr=True)


def plain_table(*headings: str, numbers: tuple[str, ...] = ()) -> Table:
    """An empty table without a frame; the columns named in `numbers` are set flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table

"""What a user sees of an error: one block on stderr and an exit status, never a traceback unless it was asked for.

Exit status: 0 done; 1 the answer is no (a mismatch); 2 the request can't be met, as for a wrong option;
70 a defect of meshwright; 130 interrupted; 141 nobody reads the output any more.
"""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Final, NoReturn, ParamSpec, TypeVar

import typer
from rich.text import Text

from meshwright.cli.console import err
from meshwright.errors import MeshwrightError

ENVIRONMENT_TRACEBACK: Final = "MESHWRIGHT_TRACEBACK"

NO: Final = 1
REFUSED: Final = 2
DEFECT: Final = 70
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

_P = ParamSpec("_P")
_R = TypeVar("_R")


def reported(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """`command` with its exceptions turned into a message and an exit status (see the module)."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except MeshwrightError as problem:
            _leave(REFUSED, str(problem))
        except KeyboardInterrupt:
            _leave(INTERRUPTED, "interrupted")
        except BrokenPipeError:
            # Python would flush stdout once more on its way out, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as problem:
            _leave(
                DEFECT,
                f"{type(problem).__name__}: {problem}: a defect of meshwright; "
                f"{ENVIRONMENT_TRACEBACK}=1 in the environment shows where",
            )

    return run


def _leave(status: int, message: str) -> NoReturn:
    if os.environ.get(ENVIRONMENT_TRACEBACK) == "1":
        traceback.print_exc()
    say_error(message)
    raise typer.Exit(status) from None


def say_error(message: str) -> None:
    """Print `message` on stderr as an error; lines stay as they are, so that they can be copied."""
    err().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)

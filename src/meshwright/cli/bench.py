"""`meshwright bench`: how fast this build computes on this machine."""

import typer

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Measure how fast things run here.")

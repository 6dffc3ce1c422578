"""`meshwright simulate`: the card in software, in a process of its own, behind a socket."""

import contextlib
from typing import Annotated

import typer

from meshwright.machine import load
from meshwright.runtime.transport import InProcess
from meshwright.runtime.transport_socket import Server
from meshwright.simulator import Card


def simulate(
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="unix:PATH, or tcp:127.0.0.1:PORT (0: any free port).",
            show_default=False,
        ),
    ],
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME|FILE", help="The machine: a name or a machine file.")
    ] = "ktpu-v13p",
) -> None:
    """Simulate a card for other processes of this computer, until Ctrl-C.

    Prints the address that it listens at. Hosts share the one card;
    what it raises on a fault, the host that asked gets.
    A host in Python is Remote(ADDRESS), of
    meshwright.runtime.transport_socket: it is told the machine
    and where the registers of the agents are.

    [bold]Examples[/bold]

      meshwright simulate --listen unix:card.sock
      meshwright simulate --listen tcp:127.0.0.1:0 --machine ktpu-1
    """
    spec = load(machine)
    server = Server(InProcess(Card(spec)), spec, listen)
    typer.echo(f"{spec.name} at {server.address}")
    # Ctrl-C is how it is meant to end.
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()

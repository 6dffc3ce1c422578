"""Cards that run programs: in software in this process, behind a socket, or behind any transport."""

from __future__ import annotations

from typing import Literal, get_args

from meshwright.errors import DeviceError
from meshwright.machine import MachineSpec, load
from meshwright.runtime import discovery
from meshwright.runtime.device import Card
from meshwright.runtime.dispatch import Dispatcher
from meshwright.runtime.programs import Programs
from meshwright.runtime.transport import InProcess, Transport
from meshwright.runtime.transport_socket import Remote
from meshwright.simulator import Card as SimulatedCard

BackendName = Literal["evaluator", "simulator"]


def opened(machine: str | MachineSpec | Card, backend: BackendName = "evaluator") -> Card:
    """The card of a machine whose graphs are evaluated, or run as programs in software; an open card as it is.

    Raises `MachineError` for a machine that isn't there, and `DeviceError` for another backend.
    """
    if backend not in get_args(BackendName):
        raise DeviceError(f"there is no backend {backend!r}; there are {' and '.join(get_args(BackendName))}")
    if isinstance(machine, Card):
        return machine
    if backend == "simulator":
        return simulated(machine)
    return Card(load(machine) if isinstance(machine, str) else machine)


def simulated(machine: str | MachineSpec, *, threads: int | None = None, timeout: float = 30.0) -> Card:
    """A card in software, in this process: programs run on it bit for bit as on the silicon.

    threads: of its kernels; None takes all cores. timeout: seconds that a unit may make no progress. Raises
    `MachineError` for a machine that isn't there or has no instruction words.
    """
    spec = load(machine) if isinstance(machine, str) else machine
    return over(InProcess(SimulatedCard(spec, threads=threads)), spec, timeout=timeout)


def connected(address: str, *, timeout: float = 60.0) -> Card:
    """The card behind `meshwright simulate --listen ADDRESS`, on the machine that it says it is.

    address: `unix:PATH` or `tcp:127.0.0.1:PORT`. timeout: seconds that any one answer may take, and that a unit may
    make no progress. Raises `TransportError` where nobody answers, and as `over` does.
    """
    remote = Remote(address, timeout)
    return over(remote, remote.machine, timeout=timeout)


def over(transport: Transport, machine: MachineSpec, *, timeout: float = 30.0, verify: bool = False) -> Card:
    """The card behind `transport`, whose units are enumerated first and have to be those of `machine`.

    timeout: seconds that a unit may make no progress. verify: what the host writes to DRAM is read back and compared.
    Raises `DeviceError` where card and description differ, or the machine is of a family without instruction words.
    """
    if machine.numerics != "ktpu":
        raise DeviceError(
            f'{machine.name} has numerics = "{machine.numerics}", and programs are for the "ktpu" family; its graphs '
            "are evaluated: MeshGroup.open(machine)"
        )
    found = discovery.discover(transport, machine)
    discovery.check(machine, found)
    dispatcher = Dispatcher(transport, machine, timeout=timeout, units=found, verify=verify)
    return Card(machine, Programs(machine, transport, dispatcher))

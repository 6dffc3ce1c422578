"""The exceptions of meshwright: one small tree, so that a caller can catch as much or as little as it wants.

A message says what was asked, what was found (names, shapes, both sides), why that can't work here, and, where
there is one, the call that would. User mistakes are also `ValueError` or `TypeError`, as Python people expect.
"""


class MeshwrightError(Exception):
    """Root of every error that meshwright raises on purpose."""


class MachineError(MeshwrightError, ValueError):
    """A machine description is wrong, or a machine has not got what was asked of it."""


class NumericsError(MeshwrightError, ValueError):
    """Operands whose shape, type or value a number format can't take."""


class GraphError(MeshwrightError, ValueError):
    """A stage graph that is not well formed; the message names the stage and the reason."""


class EvaluationError(MeshwrightError, ValueError):
    """A well-formed graph that can't be evaluated on what it was given."""


class SplitError(MeshwrightError, ValueError):
    """A stated split, or a pairing of splits, that can't be honoured."""


class PlacementError(MeshwrightError, ValueError):
    """Work placed where the machine has no unit for it, or moved where no link goes."""


class DeviceError(MeshwrightError, RuntimeError):
    """A device or its memory can't do what was asked: out of memory, stale value, foreign value."""


class TransportError(MeshwrightError, RuntimeError):
    """Words or blocks that a transport can't carry, or a connection or channel that is lost."""


class DispatchError(DeviceError):
    """Work that can't be sent to the units of a card, or that went wrong there."""


class UnitTimeout(DispatchError):  # noqa: N818
    """A unit, or the dispatcher of a whole mesh, that made no progress for as long as it is given."""


class UnitFault(DispatchError):  # noqa: N818
    """A unit that signalled a fault instead of a completion."""


class UnitWedged(DispatchError):  # noqa: N818
    """Work for a unit that stopped answering before, and is used no more."""


class ConnectionLost(DispatchError, TransportError):  # noqa: N818
    """The transport failed in the middle of work, or had failed before it."""


class UsageError(MeshwrightError, ValueError):
    """What a command was given can't be used; the command line prints it and exits with status 2."""


class KernelError(MeshwrightError, ValueError):
    """Operands that a kernel can't take, or a function that can't become one."""


class PlanError(MeshwrightError, ValueError):
    """A plan whose steps have no sound order."""

"""`check_program`: a program against the machine that is to run it."""

from __future__ import annotations

from meshwright.errors import MachineError
from meshwright.machine import Coord, MachineSpec
from meshwright.targets.ktpu.isa.check_cluster import check_cluster
from meshwright.targets.ktpu.isa.check_vector import Code, check_run
from meshwright.targets.ktpu.isa.descriptors import Descriptor
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Run
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.span import Place


def check_program(program: Program, machine: MachineSpec, mesh: int, at: Coord | None = None) -> None:
    """`InstructionError` where the program, on a unit of mesh `mesh`, at `at` if given, would go wrong.

    That is: a word can't be encoded; an address is outside the unit's own mesh, or not global; a count, tile or walk
    is past what the machine holds; a destination isn't there; a run of a vector core would fault, never end, or use
    one of the instructions that give wrong data. Not decided here: whether operands are in place in time, which
    depends on the other units. `MachineError` where the mesh, or a unit of the program's type, isn't there.
    """
    units = machine.coords(mesh, program.unit)
    if at is not None and at not in units:
        raise MachineError(
            f"no {program.unit} stands at {at} of mesh {mesh} of {machine.name}; they stand at "
            f"{', '.join(map(str, units))}"
        )
    place = Place(machine, mesh, at)
    vector = _Vector(place)
    for index, instruction in enumerate(program.words):
        try:
            match instruction:
                case Imem() | Desc() | Run():
                    vector.step(instruction)
                case _:
                    check_cluster(instruction, place)
        except InstructionError as error:
            raise InstructionError(f"word {index}: {error}") from None


class _Vector:
    """Instruction memory and descriptors as the payloads so far have set them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory: dict[int, int] = {}
        self._descriptors: list[Descriptor | None] = [None] * place.machine.vector_core.descriptors

    def step(self, payload: Imem | Desc | Run) -> None:
        payload.words()
        match payload:
            case Imem():
                self._memory[payload.addr] = payload.word
            case Desc():
                before = self._descriptors[payload.ad] or Descriptor()
                self._descriptors[payload.ad] = before.changed(payload)
            case Run():
                check_run(Code(self._memory), payload.pc, self._descriptors, self._place)

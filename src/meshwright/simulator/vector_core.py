"""A vector core in software: it takes payloads one after the other and answers each as the core would.

Exact to the bit where the silicon is (RTL vectors in tests/golden/ktpu_vector_words.json); where it isn't, or where
nobody can say what it does, the answer is a `Defect` and never a number.
"""

from __future__ import annotations

from msgspec import Struct

from meshwright.machine.figures import VectorCoreSpec
from meshwright.simulator.faults import Kind, Trouble
from meshwright.simulator.vector_core_block import LaneChoice
from meshwright.simulator.vector_core_memory import PeerDrain, VectorPort, Words
from meshwright.simulator.vector_core_run import Code, Execution
from meshwright.simulator.vector_core_state import Defect, DefectError, Fault, FaultError, State
from meshwright.targets.ktpu.isa.cluster import OPCODE
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Run, decode_payload

__all__ = ["Answer", "Defect", "Fault", "PeerDrain", "VectorCore", "VectorPort"]

_OPCODES = (1, 2, 3)


class Answer(Struct, frozen=True):
    """The one completion of a payload.

    fault: the argument of a fault signal, None for an ordinary completion. defect: what makes the result unsayable;
    the core's registers and memory then hold what nobody knows. instructions: how many a run executed.
    """

    fault: Fault | None = None
    defect: Defect | None = None
    instructions: int = 0


class VectorCore:
    """One core; registers, L1, descriptors, code and modes stay from run to run."""

    def __init__(self, spec: VectorCoreSpec, port: VectorPort) -> None:
        self.state = State(spec)
        self.port = port
        self._late_fault = False
        self._code, self._code_version = Code(), 0
        self._lanes = LaneChoice(self.state)

    def execute(self, payload: int) -> Answer:
        """Takes a 256-bit payload; one with an unknown opcode is retired and does nothing."""
        if OPCODE.extract(payload) not in _OPCODES:
            return Answer()
        try:
            decoded = decode_payload(payload)
        except InstructionError as error:
            return Answer(defect=Defect(Kind.UNDEFINED, str(error)))
        match decoded:
            case Imem(addr=address, word=word):
                self.state.write_imem(address, word)
            case Desc(ad=number, fld=0, value=base):
                self.state.write_descriptor(number, 0, base)
            case Desc(ad=number, fld=field):
                self.state.write_descriptor(number, field, decoded.stride_and_bound)
            case Run(pc=pc):
                return self._run(pc)
        return Answer()

    def _run(self, pc: int) -> Answer:
        if self._code_version != self.state.imem_version:
            self._code, self._code_version = Code(), self.state.imem_version
        execution = Execution(self.state, self.port, self._code, self._lanes.now())
        try:
            execution.run(pc)
        except FaultError as error:
            return Answer(fault=error.fault, instructions=execution.executed)
        except DefectError as error:
            return Answer(defect=error.defect, instructions=execution.executed)
        except Trouble as trouble:  # Of memory or of a receiver, through the port.
            return Answer(defect=Defect(trouble.kind, trouble.problem, execution.pc), instructions=execution.executed)
        return Answer(instructions=execution.executed)

    def receive(self, buffer: int, granule: int, words: Words, interrupted: bool = False) -> bool:
        """A burst from another unit: `words` into L1 from word `granule` on.

        interrupted: whether a second sender came in between. False where the burst is dropped: then nothing is
        acknowledged, and the core has a fault to tell.
        """
        if buffer != 0 or granule + len(words) > self.state.spec.l1_words or interrupted:
            self._late_fault = True
            return False
        self.state.l1[granule : granule + len(words)] = words
        self.state.l1_taint[granule : granule + len(words)] = 0
        return True

    def take_fault(self) -> Fault | None:
        """The fault of a dropped burst, which the core tells at its next instruction boundary, once."""
        fault = Fault.CUDATA if self._late_fault else None
        self._late_fault = False
        return fault

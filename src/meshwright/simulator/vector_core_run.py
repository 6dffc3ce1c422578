"""One run of a vector core: its code, word by word, from a RUN to VHALT, a fault, or a defect.

A fault is what the core reports; a defect is what it gets wrong without a word. What is in flight is followed:
predicates that were compared a moment ago, fills that no barrier has waited for. Rules: RTL vectors in
tests/golden/ktpu_vector_isa.json and tests/golden/ktpu_vector_words.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshwright.numerics import lane
from meshwright.numerics.lane_program import execute
from meshwright.simulator.faults import Kind
from meshwright.simulator.vector_core_alu import (
    SETTLED,
    Operation,
    Pending,
    Stretch,
    compile_stretch,
    depth,
    operations_of,
    predicate_gap,
    reads,
)
from meshwright.simulator.vector_core_block import Lanes, Made, compile_block
from meshwright.simulator.vector_core_memory import Traffic, VectorPort, require_dtype
from meshwright.simulator.vector_core_state import KNOWN, Defect, DefectError, Fault, FaultError, State, Taints
from meshwright.targets.ktpu.isa import vector as isa
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.vector_formats import DType, Mode, Reduction, Source

REDUCTIONS: Final[dict[int, lane.ReduceKind]] = {
    Reduction.SUM: "sum",
    Reduction.MAX: "max",
    Reduction.MIN: "min",
    Reduction.SUMSQ: "sumsq",
    Reduction.DOT: "dot",
    Reduction.EXPSUM: "expsum",
}


class Code:
    """What has been made of instruction memory so far; it holds until a word of that changes.

    decoded: by word, the instruction and the word after it. stretches and blocks: by the word they begin at and what
    else they depend on.
    """

    def __init__(self) -> None:
        self.decoded: dict[int, tuple[isa.VectorInstruction, int]] = {}
        self.stretches: dict[tuple[int, int | None, int, int, Pending], Stretch] = {}
        self.blocks: dict[tuple[int, int | None, int, int, Pending], Made] = {}


class _Loop(Struct):
    start: int
    end: int
    left: int


class Execution:
    """One run over `state`. `port` is where fills and drains go; `lanes` runs blocks, if it is there."""

    def __init__(self, state: State, port: VectorPort, code: Code, lanes: Lanes | None = None) -> None:
        self.state = state
        self.pc = 0
        self.executed = 0
        self.traffic = Traffic(state, port)
        self._code = code
        self._lanes = lanes
        self._loop: _Loop | None = None
        self._pending: Pending = SETTLED
        self._last_predicate: int | None = None
        self._straight = 0

    def run(self, pc: int) -> None:
        """Runs from `pc` to VHALT; raises `FaultError` or `DefectError`."""
        self.pc = pc
        while True:
            instruction, following = self._fetch(self.pc)
            if isinstance(instruction, _OF_BLOCKS) and self._block():
                pass
            elif isinstance(instruction, isa.Alu):
                self.pc = self._alu()
            elif isinstance(instruction, isa.Halt):
                self.executed += 1
                self.traffic.land()
                self.traffic.check_footprint()
                return
            else:
                _METHODS[type(instruction)](self, instruction)
                self.executed += 1
                self.pc = following
            self._turn()

    def _defect(self, kind: Kind, what: str, pc: int | None = None) -> Defect:
        return Defect(kind, what, self.pc if pc is None else pc)

    def _taint(self, kind: Kind, what: str, pc: int | None = None) -> int:
        return self.state.taint(self._defect(kind, what, pc))

    # Fetching.

    def _fetch(self, pc: int) -> tuple[isa.VectorInstruction, int]:
        if pc not in self._code.decoded:
            imem = self.state.imem
            first, second = imem[pc], imem[(pc + 1) % len(imem)]
            if first is None:
                raise DefectError(self._defect(Kind.UNDEFINED, "a word of code that nothing has written is run", pc))
            words = [first] if second is None else [first, second]
            try:
                instruction, size = isa.decode_at(words, 0)
            except InstructionError as error:
                raise DefectError(self._defect(Kind.UNDEFINED, str(error), pc)) from None
            self._code.decoded[pc] = instruction, (pc + size) % len(imem)
        return self._code.decoded[pc]

    def _turn(self) -> None:
        """Back to the start of the loop, or out of it; and a stop where no VHALT can ever come."""
        loop = self._loop
        if loop is None:
            self._straight += 1
            if self._straight > 2 * len(self.state.imem):
                raise DefectError(self._defect(Kind.DEADLOCK, "the code has no VHALT: the core never comes back"))
        elif self.pc == loop.end:
            loop.left -= 1
            if loop.left:
                self.pc = loop.start
            else:
                self._loop = None

    def loop(self, instruction: isa.Loop) -> None:
        """VLOOP."""
        if self._loop is not None:
            raise FaultError(Fault.LOOP)
        state = self.state
        state.require_known(state.s_taint[instruction.va_sreg])
        if not instruction.body:
            return
        size = len(state.imem)
        start, end = (self.pc + 1) % size, (self.pc + 1 + instruction.body) % size
        at, inside = start, 0
        while inside < instruction.body:
            _, following = self._fetch(at)
            inside += (following - at) % size
            at = following
        if at != end:
            raise DefectError(self._defect(Kind.UNDEFINED, f"a loop of {instruction.body} words ends inside a VSETI"))
        self._loop = _Loop(start, end, max(int(state.s[instruction.va_sreg]), 1))

    # Blocks.

    def _block(self) -> bool:
        """Runs the block that begins here, if there is one and all that it needs is known; whether it did."""
        if self._lanes is None:
            return False
        state, end = self.state, self._loop.end if self._loop is not None else None
        key = self.pc, end, state.mode, state.length, self._pending
        made = self._code.blocks.get(key)
        if made is None or not made.holds(state):
            made = compile_block(state, self._lanes, self._peek, self.pc, end, self._pending)
            self._code.blocks[key] = made
        block = made.block
        # Code that goes on for ever is stopped at the same word with and without blocks.
        if block is None or self._straight + block.words > len(state.imem) or not block.ready(state, self.traffic):
            return False
        block.run(state, self.traffic, self._lanes)
        self._pending = block.pending
        if block.last_predicate is not None:
            self._last_predicate = block.last_predicate
        self.executed += block.words
        self._straight += block.words - 1
        self.pc = block.after
        return True

    def _peek(self, pc: int) -> tuple[isa.VectorInstruction, int] | None:
        """What `_fetch` gives, or None where nothing was written."""
        return None if self.state.imem[pc] is None else self._fetch(pc)

    # The lanes.

    def _alu(self) -> int:
        """Runs the ALU words from here on that go in one pass; gives where the code goes on."""
        end = self._loop.end if self._loop is not None else None
        gap = predicate_gap(self.state.length)
        key = self.pc, end, self.state.mode, gap, self._pending
        stretch = self._code.stretches.get(key)
        if stretch is None:
            stretch = compile_stretch(self._operations(end), gap, self._pending)
            self._code.stretches[key] = stretch
        self._run_stretch(stretch)
        final = stretch.operations[-1]
        self._pending = stretch.pending
        self._last_predicate = final.last.pr
        self.executed += sum(len(o.words) for o in stretch.operations)
        self._straight += len(stretch.operations) - 1
        return (final.pc + len(final.words)) % len(self.state.imem)

    def _operations(self, end: int | None) -> tuple[Operation, ...]:
        """The operations from here on up to another word, the end of the loop, or one that the decoder refuses."""
        words: list[tuple[int, isa.Alu]] = []
        pc = self.pc
        while not words or (pc not in (end, 0) and self.state.imem[pc] is not None):
            instruction, following = self._fetch(pc)
            if not isinstance(instruction, isa.Alu):
                break
            words.append((pc, instruction))
            pc = following
        operations = operations_of(words, depth(self.state.mode))
        if not operations:
            what = f"a chain of {depth(self.state.mode)} ALU words is cut short after {len(words)}"
            raise DefectError(self._defect(Kind.UNDEFINED, what))
        sound = next((at for at, o in enumerate(operations) if self._refused(o)), len(operations))
        if not sound:
            self._refuse(operations[0])
        return operations[:sound]

    @staticmethod
    def _refused(operation: Operation) -> bool:
        inner = any(word.op in ("VCMPLT", "VCMPGT", "VCMPEQ") for word in operation.words[:-1])
        return operation.chain_fault() is not None or inner

    def _refuse(self, operation: Operation) -> None:
        fault = operation.chain_fault()
        if fault is not None:
            raise FaultError(fault)
        raise DefectError(self._defect(Kind.UNDEFINED, "a compare inside a chain gives the next link nothing known"))

    def _run_stretch(self, stretch: Stretch) -> None:
        state, n = self.state, self.state.length
        inputs: list[NDArray[np.uint32]] = []
        clean = not stretch.stale and state.mode != Mode.TREE
        for kind, number in stretch.inputs:
            match kind:
                case "V":
                    inputs.append(state.v[number, :n])
                    clean = clean and not state.v_taint[number, :n].any()
                case "S":
                    inputs.append(state.s[number : number + 1])
                    clean = clean and not state.s_taint[number]
                case "K":
                    inputs.append(state.k[number : number + 1])
                case "P":
                    inputs.append(state.p[number, :n] * np.uint32(lane.ONE))
                    clean = clean and not state.p_taint[number, :n].any()
                case "L1":
                    raise AssertionError("a stretch loads nothing")
        results = execute(stretch.program, tuple(inputs))
        for number, made in zip(stretch.predicates, results[len(stretch.vectors) :], strict=True):
            state.p[number, :n] = made
        merge = stretch.merge
        kept: NDArray[np.bool_] | None = None
        if merge is not None:
            kept = state.p[merge.predicate, :n] != merge.when
            clean = clean and not state.p_taint[merge.predicate, :n].any()
        for number, made in zip(stretch.vectors, results, strict=False):
            if kept is not None and merge is not None and number == merge.register:
                state.v[number, :n] = np.where(kept, state.v[number, :n], made)
            else:
                state.v[number, :n] = made
        if clean:
            self._clear(stretch, kept)
        else:
            self._spread(stretch, kept)

    def _clear(self, stretch: Stretch, kept: NDArray[np.bool_] | None) -> None:
        state, n = self.state, self.state.length
        for number in stretch.predicates:
            state.p_taint[number, :n] = KNOWN
        for number in stretch.vectors:
            if kept is not None and stretch.merge is not None and number == stretch.merge.register:
                state.v_taint[number, :n][~kept] = KNOWN
            else:
                state.v_taint[number, :n] = KNOWN

    def _spread(self, stretch: Stretch, kept: NDArray[np.bool_] | None) -> None:
        """Taints, operation by operation."""
        state, n = self.state, self.state.length
        for at, operation in enumerate(stretch.operations):
            made = self._taint_of(operation)
            last = operation.last
            if operation.is_compare:
                state.p_taint[last.pr, :n] = made
                continue
            old = state.v_taint[last.vd, :n]
            if operation.masked:
                final = at == len(stretch.operations) - 1
                merged = np.where(kept, old, made) if final and kept is not None else np.maximum(made, old)
                made = np.maximum(merged, state.p_taint[last.pr, :n])
            if at in stretch.stale:
                what = f"predicate {last.pr} is read before the compare that wrote it has finished"
                made = np.full(n, self._taint(Kind.UNPREDICTABLE, what, operation.pc), np.uint16)
            state.v_taint[last.vd, :n] = made

    def _taint_of(self, operation: Operation) -> Taints:
        state, n = self.state, self.state.length
        made: Taints = np.zeros(n, np.uint16)
        if state.mode == Mode.TREE:
            what = "an elementwise operation in TREE mode: what it gives is stated nowhere"
            made[:] = self._taint(Kind.UNDEFINED, what, operation.pc)
        for word in operation.words:
            for selector, number in reads(word):
                if selector == Source.V:
                    made = np.maximum(made, state.v_taint[number, :n])
                elif selector == Source.S:
                    made = np.maximum(made, state.s_taint[number])
        return made

    def _drain_pipe(self) -> None:
        self._pending = SETTLED

    # Registers.

    def convert(self, instruction: isa.Convert) -> None:
        """VCVT."""
        require_dtype(instruction.dtype)
        self._drain_pipe()
        state, n = self.state, self.state.chunks * self.state.spec.lanes
        state.v[instruction.vd, :n] = state.v[instruction.va, :n]
        state.v_taint[instruction.vd, :n] = state.v_taint[instruction.va, :n]
        if instruction.dtype == DType.FP16:
            what = "VCVT to FP16 writes each chunk the conversion of the chunk before it"
            state.v_taint[instruction.vd, :n] = self._taint(Kind.UNPREDICTABLE, what)
        elif n > state.length:
            what = "whether VCVT writes the elements past the vector length is stated nowhere"
            state.v_taint[instruction.vd, state.length : n] = self._taint(Kind.UNDEFINED, what)

    def broadcast(self, instruction: isa.Broadcast) -> None:
        """VBCAST."""
        self._drain_pipe()
        state, n = self.state, self.state.chunks * self.state.spec.lanes
        if instruction.sa == Source.S:
            state.v[instruction.vd, :n] = state.s[instruction.va_sreg]
            state.v_taint[instruction.vd, :n] = state.s_taint[instruction.va_sreg]
        else:
            state.s[instruction.vd] = state.v[instruction.va_sreg, 0]
            state.s_taint[instruction.vd] = state.v_taint[instruction.va_sreg, 0]

    def shuffle(self, instruction: isa.Shuffle) -> None:
        """VSHUF."""
        self._drain_pipe()
        state, lanes = self.state, self.state.spec.lanes
        n = state.chunks * lanes
        state.require_known(state.s_taint[instruction.vb_sreg])
        turn = -(int(state.s[instruction.vb_sreg]) & 15)
        for array in (state.v, state.v_taint):
            chunks = array[instruction.va, :n].reshape(-1, lanes)
            array[instruction.vd, :n] = np.roll(chunks, turn, axis=1).reshape(-1)

    def set_length(self, instruction: isa.SetLength) -> None:
        """VSETVL."""
        state = self.state
        state.require_known(state.s_taint[instruction.va_sreg])
        length = int(state.s[instruction.va_sreg])
        if not 1 <= length <= state.spec.vector_length:
            raise FaultError(Fault.VL)
        state.length = length

    def set_mode(self, instruction: isa.SetMode) -> None:
        """VSETMODE."""
        self._drain_pipe()
        self.state.mode = instruction.mode

    def set_immediate(self, instruction: isa.SetImmediate) -> None:
        """VSETI."""
        if instruction.sa == Source.K:
            self.state.k[3] = instruction.imm
        else:
            self.state.s[instruction.vd_sreg] = instruction.imm
            self.state.s_taint[instruction.vd_sreg] = KNOWN

    def reduce(self, instruction: isa.Reduce) -> None:
        """VRED."""
        state, n = self.state, self.state.length
        if instruction.kind in (Reduction.ANY, Reduction.ALL):
            self._reduce_predicate(instruction)
        elif state.mode != Mode.TREE:
            raise FaultError(Fault.OPCODE)
        elif n % state.spec.lanes:
            raise FaultError(Fault.REDVL)
        else:
            self._reduce_vector(instruction)
        self._last_predicate = instruction.pr

    def _reduce_predicate(self, instruction: isa.Reduce) -> None:
        state, n = self.state, self.state.length
        bits = state.p[instruction.pr, :n]
        found = bits.any() if instruction.kind == Reduction.ANY else bits.all()
        taint = int(np.max(state.p_taint[instruction.pr, :n]))
        if self._last_predicate != instruction.pr:
            what = f"VRED ANY or ALL reads the predicate that the word before it names, not its own, {instruction.pr}"
            taint = self._taint(Kind.UNPREDICTABLE, what)
        elif self._pending[instruction.pr]:
            what = f"predicate {instruction.pr} is read before the compare that wrote it has finished"
            taint = self._taint(Kind.UNPREDICTABLE, what)
        state.s[instruction.vd_sreg] = lane.ONE if found else 0
        state.s_taint[instruction.vd_sreg] = taint

    def _reduce_vector(self, instruction: isa.Reduce) -> None:
        state, n = self.state, self.state.length
        kind = REDUCTIONS[instruction.kind]
        x, taint = state.v[instruction.va, :n], int(np.max(state.v_taint[instruction.va, :n]))
        if kind == "expsum":
            state.s[instruction.vd_sreg], leaves = lane.expsum(x)
            state.v[instruction.vb, :n] = leaves
            state.v_taint[instruction.vb, :n] = state.v_taint[instruction.va, :n]
        elif kind == "dot":
            state.s[instruction.vd_sreg] = lane.reduce(kind, x, state.v[instruction.vb, :n])
            taint = max(taint, int(np.max(state.v_taint[instruction.vb, :n])))
        else:
            state.s[instruction.vd_sreg] = lane.reduce(kind, x)
            if kind == "sumsq" and instruction.vb != instruction.va:
                taint = self._taint(Kind.UNDEFINED, "VRED SUMSQ of two different registers")
        state.s_taint[instruction.vd_sreg] = taint

    # Memory.

    def load(self, instruction: isa.Load) -> None:
        """VLD."""
        self._drain_pipe()
        self.traffic.load(instruction)

    def store(self, instruction: isa.Store) -> None:
        """VST."""
        self._drain_pipe()
        self.traffic.store(instruction, self.pc)

    def barrier(self, _: isa.Barrier) -> None:
        """VBAR."""
        self.traffic.land()

    def fill(self, instruction: isa.VectorFill) -> None:
        """VFILL."""
        self.traffic.fill(instruction, self.pc)

    def drain(self, instruction: isa.VectorDrain) -> None:
        """VDRAIN."""
        self.traffic.drain(instruction, self.pc)


_OF_BLOCKS: Final = (isa.Alu, isa.Load, isa.Store)
_METHODS: Final[dict[type[Any], Callable[[Execution, Any], None]]] = {
    isa.Convert: Execution.convert,
    isa.Broadcast: Execution.broadcast,
    isa.Shuffle: Execution.shuffle,
    isa.SetLength: Execution.set_length,
    isa.SetMode: Execution.set_mode,
    isa.SetImmediate: Execution.set_immediate,
    isa.Reduce: Execution.reduce,
    isa.Load: Execution.load,
    isa.Store: Execution.store,
    isa.Loop: Execution.loop,
    isa.Barrier: Execution.barrier,
    isa.VectorFill: Execution.fill,
    isa.VectorDrain: Execution.drain,
}

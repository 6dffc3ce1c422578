"""What a vector core would do wrong: one run of its code, followed word by word before anything runs.

Faults stop a run; the rest happens silently. Sources: RTL and its simulation. What depends on numbers that only a run
has (a length that a reduction computed), and whether a fill has arrived when its words are loaded, is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from meshwright.targets.ktpu.isa import vector as v
from meshwright.targets.ktpu.isa.chain import Chains
from meshwright.targets.ktpu.isa.descriptors import Descriptor
from meshwright.targets.ktpu.isa.fields import InstructionError
from meshwright.targets.ktpu.isa.span import Peer, Place, check_peer, check_span
from meshwright.targets.ktpu.isa.vector_formats import PEER_RECORD, DType, Mode, Reduction

_FROM_K3: Final = 3
_SAME_OPERAND: Final = frozenset({Reduction.SUMSQ})
_PREDICATED: Final = frozenset({Reduction.ANY, Reduction.ALL})


class Code:
    """Instructions by the word that each starts at.

    words: instruction memory, by word. Raises `InstructionError` for a word that is no instruction, when it is reached.
    """

    def __init__(self, words: Mapping[int, int]) -> None:
        self._words = words

    def at(self, word: int) -> tuple[v.VectorInstruction, int]:
        """The instruction at a word, and the word after it."""
        if word not in self._words:
            raise InstructionError(
                f"word {word} of instruction memory: the run gets here, and the program writes nothing there; a run "
                "ends with VHALT"
            )
        following = [self._words[w] for w in (word, word + 1) if w in self._words]
        try:
            instruction, used = v.decode_at(following, 0)
        except InstructionError as error:
            raise InstructionError(str(error).replace("vector word 0", f"vector word {word}", 1)) from None
        return instruction, word + used


def check_run(code: Code, pc: int, descriptors: Sequence[Descriptor | None], place: Place) -> None:
    """`InstructionError`, with the word of instruction memory, for what goes wrong in the run that starts at `pc`.

    descriptors: as the program set them; None where it set none, and what they walk isn't known. The run is taken to
    start in FLAT mode, and has to leave that way.
    """
    run = _Run(place, descriptors)
    at: int | None = pc
    while at is not None:
        instruction, following = code.at(at)
        try:
            if isinstance(instruction, v.Loop):
                at = run.loop(code, instruction, following)
                continue
            run.step(instruction)
        except InstructionError as error:
            raise InstructionError(f"vector word {at}, {instruction.mnemonic}: {error}") from None
        at = None if isinstance(instruction, v.Halt) else following


class _Run:
    """What is known of the core after the instructions so far."""

    def __init__(self, place: Place, descriptors: Sequence[Descriptor | None]) -> None:
        self._place, self._descriptors = place, descriptors
        self._core = place.machine.vector_core
        self._scalars: dict[int, int] = {}
        self._length: int | None = None
        self._chains = Chains()

    def loop(self, code: Code, loop: v.Loop, start: int) -> int:
        """The body twice, since the second time starts from what the first left; where the loop ends."""
        if loop.body < 1:
            raise InstructionError(f"body = {loop.body}: 1 to {self._core.loop_words} words")
        self._chains.interrupted()
        for _ in range(2):
            at = start
            while at < start + loop.body:
                instruction, following = code.at(at)
                if isinstance(instruction, v.Loop):
                    raise InstructionError(f"word {at} in its body is a VLOOP; there is one level of loops (F_LOOP)")
                if following > start + loop.body:
                    raise InstructionError(
                        f"body = {loop.body} ends between the words of {instruction.mnemonic} at word {at}; count its "
                        "two words"
                    )
                try:
                    self.step(instruction)
                except InstructionError as error:
                    raise InstructionError(f"word {at}, {instruction.mnemonic}: {error}") from None
                at = following
        return start + loop.body

    def step(self, instruction: v.VectorInstruction) -> None:
        """Checks one instruction, and takes in what it changes."""
        match instruction:
            case v.Alu():
                self._chains.alu(instruction, self._length)
                return
            case v.Reduce():
                self._reduce(instruction)
                return
            case _:
                self._chains.interrupted()
        match instruction:
            case v.SetImmediate() if instruction.sa != _FROM_K3:
                self._scalars[instruction.vd_sreg] = instruction.imm
            case v.SetLength():
                self._set_length(instruction)
            case v.SetMode():
                self._chains.set_mode(Mode(instruction.mode))
            case v.Load() | v.Store() | v.Convert():
                self._chains.drained()
                self._moved(instruction)
            case v.Broadcast():
                self._chains.drained()
                if instruction.sa != 1:
                    self._scalars.pop(instruction.vd, None)
            case v.Shuffle():
                self._chains.drained()
            case v.VectorFill() | v.VectorDrain():
                self._transfer(instruction)
            case v.Halt():
                self._chains.halted()
            case _:
                pass

    def _set_length(self, instruction: v.SetLength) -> None:
        length = self._scalars.get(instruction.va_sreg)
        most = self._core.vector_length
        if length is not None and not 1 <= length <= most:
            raise InstructionError(f"S{instruction.va_sreg} = {length}: a vector has 1 to {most} elements (F_VL)")
        self._length = length

    def _reduce(self, instruction: v.Reduce) -> None:
        kind = Reduction(instruction.kind)
        self._chains.interrupted()
        if kind in _PREDICATED:
            self._chains.read_by_reduction(instruction.pr, self._length)
        else:
            if self._chains.mode is not Mode.TREE:
                raise InstructionError(
                    f"{kind.name} in {self._chains.mode.name} mode (F_OPCODE); put VSETMODE mode=TREE before it"
                )
            lanes = self._core.lanes
            if self._length is not None and self._length % lanes:
                raise InstructionError(
                    f"{kind.name} of {self._length} elements: a reduction takes multiples of {lanes} (F_REDVL); fill "
                    "up with the identity"
                )
            if kind in _SAME_OPERAND and instruction.vb != instruction.va:
                raise InstructionError(
                    f"{kind.name} of va = {instruction.va} with vb = {instruction.vb}: it multiplies the two; set vb "
                    f"to {instruction.va}, or use DOT"
                )
        self._scalars.pop(instruction.vd_sreg, None)
        self._chains.reduced(instruction.pr)

    def _moved(self, instruction: v.Load | v.Store | v.Convert) -> None:
        if instruction.dtype not in (DType.FP16, DType.FP32):
            raise InstructionError(f"dtype = {instruction.dtype}: there are 1 FP16 and 2 FP32 (F_DTYPE)")
        if isinstance(instruction, v.Convert):
            if instruction.dtype == DType.FP16:
                raise InstructionError(
                    "through FP16 a chunk receives the conversion of the chunk before it; store as FP16 and load again"
                )
            return
        if isinstance(instruction, v.Store) and instruction.dtype == DType.FP32:
            raise InstructionError("an FP32 store never writes every second word; store FP16")
        self._walked(instruction)

    def _walked(self, instruction: v.Load | v.Store) -> None:
        descriptor = self._descriptors[instruction.ad]
        if descriptor is None or self._length is None:
            return
        chunks = -(-self._length // self._core.lanes)
        steps = chunks * (2 if instruction.dtype == DType.FP32 else 1)
        if steps > descriptor.count:
            raise InstructionError(
                f"{self._length} elements are {steps} words of L1, and descriptor {instruction.ad} walks "
                f"{descriptor.count}: the last would be used again and again"
            )
        addresses = [address + instruction.offset for address in descriptor.walk(steps)]
        self._within_l1(min(addresses), max(addresses), f"descriptor {instruction.ad} with offset {instruction.offset}")

    def _within_l1(self, first: int, last: int, what: str) -> None:
        words = self._core.l1_words
        if first < 0 or last >= words:
            raise InstructionError(
                f"{what} reaches words {first} to {last} of L1, which has {words} and wraps past them"
            )

    def _transfer(self, instruction: v.VectorFill | v.VectorDrain) -> None:
        descriptor = self._descriptors[instruction.ad]
        if descriptor is None:
            return
        count, most = descriptor.count, self._core.walk_words
        if count > most:
            raise InstructionError(
                f"descriptor {instruction.ad} walks {count} words, as {descriptor.bounds} makes; {most} are the most "
                "(F_LEN)"
            )
        self._within_l1(
            instruction.l1off, instruction.l1off + count - 1, f"l1off = {instruction.l1off}, {count} words,"
        )
        if isinstance(instruction, v.VectorDrain) and instruction.to_node:
            self._to_unit(instruction, descriptor)
            return
        addresses = descriptor.walk(count)
        word = self._core.word_bytes
        first, last = min(addresses), max(addresses)
        check_span(self._place, f"descriptor {instruction.ad}", first, last - first + word, word)

    def _to_unit(self, drain: v.VectorDrain, descriptor: Descriptor) -> None:
        record = PEER_RECORD.unpack(descriptor.base)
        check_peer(
            self._place,
            f"descriptor {drain.ad}",
            Peer(
                dst=(drain.dst_x, drain.dst_y),
                buffer=drain.buf_id,
                granule=record["granule"],
                count=descriptor.count,
                mesh=record["mesh"],
                fin=(record["fin"] & 15, record["fin"] >> 4),
                ack=(record["ack_x"], record["ack_y"]),
            ),
        )

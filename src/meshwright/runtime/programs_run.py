"""One run of a compiled graph: where its images are, its jobs, and what becomes of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from meshwright.evaluate.arithmetic import Arithmetic, Array
from meshwright.evaluate.walk import evaluate
from meshwright.ir.ids import TensorId
from meshwright.machine import Coord
from meshwright.runtime.arena import Span
from meshwright.runtime.device import Device, Tensor
from meshwright.runtime.held import CardMemory, Held, memory_of
from meshwright.runtime.jobs import HostJob, Job, UnitJob
from meshwright.runtime.transport import Bytes
from meshwright.targets.ktpu.compiled import Carry, Compiled, Fetch, Piece, Place, UnitWork, Work

_Writes = Sequence[tuple[int, Bytes]]


class _Spanned(Struct, frozen=True):
    """Where an image is; fresh: since this run, so that what it holds is still to come."""

    span: Span
    fresh: bool


class ProgramsRun:
    """A compiled graph on values that devices hold, once: `place`, `jobs`, `results`, `finish`; or `fail`."""

    def __init__(
        self,
        compiled: Compiled,
        devices: Mapping[int, Device],
        inputs: Mapping[str, Sequence[Tensor]],
        arithmetic: Arithmetic,
    ) -> None:
        self._compiled = compiled
        self._arithmetic = arithmetic
        self._devices = devices
        self._stored = dict(compiled.stored)
        self._given: dict[Piece, Tensor] = {}
        self._made: dict[Piece, Held] = {}
        self._spans: dict[int, _Spanned] = {}
        self._kept: set[Piece] = set()
        self._adopted: list[tuple[Tensor, Held]] = []
        graph = compiled.graph
        self._written = frozenset(graph.stored())
        for name, pieces in inputs.items():
            self._given.update(((graph.tensor_id(name), rank), piece) for rank, piece in enumerate(pieces))

    def _device(self, piece: Piece) -> Device:
        return self._devices[self._compiled.graph.tensors[piece[0]].chips[piece[1]]]

    def _memory(self, piece: Piece) -> CardMemory:
        return memory_of(self._device(piece))

    def _input(self, piece: Piece) -> Tensor | None:
        """The value that is given for a piece; None for one that is stored, with or without a content before."""
        return None if piece[0] in self._written else self._given[piece]

    def _held(self, piece: Piece) -> Held:
        tensor = self._input(piece)
        return self._made.setdefault(piece, Held()) if tensor is None else self._memory(piece).of(tensor)

    def place(self) -> None:
        """Finds a span for every image that programs refer to; `DeviceError` where there is no room."""
        images = self._compiled.images
        # What a unit stores comes first: a value is read back from the first of its images.
        for number in sorted(range(len(images)), key=lambda n: self._stored.get(images[n].piece) != n):
            image = images[number]
            held = self._held(image.piece)
            if image.order in held.images:
                self._spans[number] = _Spanned(held.images[image.order], fresh=False)
                continue
            span = self._memory(image.piece).room(image.order, self._input(image.piece))
            self._spans[number] = _Spanned(span, fresh=True)
            held.images[image.order] = span

    # Jobs.

    def jobs(self) -> list[Job]:
        """The works of the graph, with addresses."""
        where = {
            number: self._memory(self._compiled.images[number].piece).address(spanned.span)
            for number, spanned in self._spans.items()
        }
        return [self._job(work, where) for work in self._compiled.works]

    def _job(self, work: Work, where: Mapping[int, int]) -> Job:
        match work:
            case UnitWork(site=site, code=code, what=what, after=after, arrivals=arrivals):
                return UnitJob(site, code.at(where), what, after, arrivals)
            case Fetch(piece=piece, after=after):
                return self._fetch(piece, after)
            case Place(image=image, after=after):
                return self._place(image, after)
            case Carry(after=after):
                what = self._named("copies of", *(piece for _, piece in work.takes))
                return HostJob(what, (), lambda _: self._carry(work), after)

    def _named(self, what: str, *pieces: Piece) -> str:
        """A job of the host for messages."""
        return f"{what} {', '.join(self._compiled.graph.tensors[tensor].name for tensor, _ in pieces)}"

    def _fetch(self, piece: Piece, after: tuple[int, ...]) -> HostJob:
        what = self._named("readout of", piece)
        # The image that is stored, or was there before this run: those that are still to be written come after it.
        reading = self._memory(piece).reading_of(self._held(piece))

        def keep(found: Sequence[bytes]) -> _Writes:
            reading.take(found)
            return ()

        return HostJob(what, reading.spans, keep, after)

    def _place(self, number: int, after: tuple[int, ...]) -> HostJob:
        image, spanned = self._compiled.images[number], self._spans[number]
        what = self._named("relayout of", image.piece)
        if not spanned.fresh:
            return HostJob(what, (), lambda _: (), after)
        held, memory = self._held(image.piece), self._memory(image.piece)

        def write(_: Sequence[bytes]) -> _Writes:
            assert held.elements is not None
            if next(iter(held.images)) != image.order:
                memory.count(relaid=image.order.nbytes)
            return memory.writes(spanned.span, image.order.pack(held.elements))

        return HostJob(what, (), write, after)

    def _carry(self, work: Carry) -> _Writes:
        inputs = {name: (self._elements(piece),) for name, piece in work.takes}
        for name, piece in work.gives:
            if piece in self._given:
                inputs[name] = (self._memory(piece).elements(self._given[piece]),)
        names = [name for name, _ in work.gives]
        found = evaluate(work.graph, inputs, self._arithmetic, names)
        for name, piece in work.gives:
            (elements,) = found[name]
            elements.flags.writeable = False
            self._held(piece).elements = elements
            self._memory(piece).count(carried=elements.nbytes)
        return ()

    def _elements(self, piece: Piece) -> Array:
        elements = self._held(piece).elements
        assert elements is not None
        return elements

    # Afterwards.

    def count(self) -> None:
        """Counts what was sent."""
        for work in self._compiled.programs:
            memory_of(self._devices[work.site.chip]).count(programs=1, words=len(work.code.program))

    def results(self, names: Sequence[str]) -> dict[str, tuple[Tensor, ...]]:
        """The pieces of stored tensors as values of their devices; `DeviceError` where there is no room."""
        made = {name: self._result(self._compiled.graph.tensor_id(name)) for name in names}
        for value, held in self._adopted:
            memory_of(value.device).of(value).images.update(held.images)
        return made

    def _result(self, tensor: TensorId) -> tuple[Tensor, ...]:
        record = self._compiled.graph.tensors[tensor]
        return tuple(self._value((tensor, rank)) for rank in range(len(record.chips)))

    def _value(self, piece: Piece) -> Tensor:
        record = self._compiled.graph.tensors[piece[0]]
        held, device = self._made[piece], self._device(piece)
        self._kept.add(piece)
        if piece in self._stored:
            value = Tensor(device, self._spans[self._stored[piece]].span, record.local, record.format)
            self._memory(piece).adopt(value, held)
            return value
        assert held.elements is not None
        value = device.adopt(held.elements, record.format)
        self._adopted.append((value, held))
        return value

    def finish(self) -> None:
        """Frees the images that nobody has a handle to."""
        for number, spanned in self._spans.items():
            piece = self._compiled.images[number].piece
            if spanned.fresh and piece not in self._kept and self._input(piece) is None:
                self._device(piece).arena.release(spanned.span)

    def fail(self, wedged: Sequence[tuple[int, Coord | None]]) -> None:
        """Frees what this run has taken; images may not hold what they should.

        wedged: (mesh, coordinate) of units that hang. What their programs refer to stays taken until the device is
        reset: a unit that wakes up would write over whatever is put there.
        """
        for value, _ in self._adopted:
            value.device.free(value)
        done = {number for _, held in self._adopted for number in self._numbers(held)}
        reached = self._reached(wedged)
        for number, spanned in self._spans.items():
            if not spanned.fresh or number in done:
                continue
            image = self._compiled.images[number]
            tensor = self._input(image.piece)
            self._held(image.piece).images.pop(image.order, None)
            if number not in reached and (tensor is None or spanned.span != tensor.span):
                self._device(image.piece).arena.release(spanned.span)

    def _numbers(self, held: Held) -> Iterator[int]:
        for number, image in enumerate(self._compiled.images):
            if self._made.get(image.piece) is held:
                yield number

    def _reached(self, wedged: Sequence[tuple[int, Coord | None]]) -> set[int]:
        units = {(mesh, at) for mesh, at in wedged}
        return {
            reference.image
            for work in self._compiled.programs
            for reference in work.code.references
            if not units.isdisjoint({(work.site.chip, (work.site.x, work.site.y)), (work.site.chip, None)})
        }

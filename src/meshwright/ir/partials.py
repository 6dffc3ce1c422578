"""A walk over a graph that tells, for every buffer and piece of memory, what its value still lacks.

Tensors whose pieces are on several chips are what their `Spec` says: loads take it at its word, and stores have to
keep it. A tensor on one chip that is stored and loaded again only passes on what is in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from meshwright.ir.contributions import Along, Content, Held, SumError, applied, contracted, doubtful, folded, lacking
from meshwright.ir.expression import Binary, BinaryOp, Expr, Operand, substitute
from meshwright.ir.flow import stage_order
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, GroupId, StageId, TensorId
from meshwright.ir.operation import ComputeOp, Generic, Matmul, Permute, Reduce
from meshwright.ir.pattern import AccessPattern, Affine, Gather, affine_of
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Compute, Load, Recv, Scalar, Stage, Store, Tensor
from meshwright.ir.regions import RegionError, region_of, uncovered

Piece = tuple[TensorId, int]
_MIXED = "lack different things"


class Finding(Struct, frozen=True):
    """A stage that treats a partial as whole, or the store of a value that isn't what is promised."""

    obligation: str
    stage: StageId
    message: str
    change: str
    positions: tuple[int, ...] = ()


class Contents(Struct, frozen=True):
    """What every buffer held last, and what each store put into which piece; what is wrong, and what isn't known."""

    buffers: tuple[Content, ...]
    stores: tuple[tuple[StageId, Content], ...]
    findings: tuple[Finding, ...]
    doubts: tuple[tuple[StageId, str], ...]


def contents(graph: Graph) -> Contents:
    """The contents of a well-formed graph whose blocks balance."""
    walk = _Walk(graph)
    for stage in stage_order(graph):
        walk.run(stage)
    for tensor, stores in walk.promised.items():
        walk.keep(tensor, stores)
    return Contents(
        tuple(walk.buffers.get(BufferId(i), Content()) for i in range(len(graph.buffers))),
        tuple(walk.stored.items()),
        tuple(walk.findings),
        tuple(walk.doubts),
    )


def _mixed(content: Content) -> bool:
    """Whether a stream is of parts that lack different things; some of its elements lack `held`, if it has one."""
    return content.doubt.endswith(f"parts that {_MIXED}")


def coordinates(tensor: Tensor, rank: int) -> tuple[int, ...]:
    """The place of a rank in the rank grid."""
    place: list[int] = []
    for extent in reversed(tensor.ranks):
        rank, at = divmod(rank, extent)
        place.insert(0, at)
    return tuple(place)


def _within(tensor: Tensor, place: Sequence[int], axes: Sequence[int]) -> tuple[int, int]:
    """Position and number of positions in the part of the grid that some of its axes make."""
    index = 0
    for axis in axes:
        index = index * tensor.ranks[axis] + place[axis]
    return index, math.prod(tensor.ranks[a] for a in axes)


def _named(tensor: Tensor, place: Sequence[int], axes: Sequence[int]) -> str:
    """The tensor's name, with the slices along other grid axes that it is one of."""
    others = [str(place[g]) for g, s in enumerate(tensor.specs) if s.axis is not None and g not in axes]
    return tensor.name + (f" slice {','.join(others)}" if any(tensor.ranks[g] > 1 for g in axes) and others else "")


def promised(tensor: Tensor, rank: int) -> Content:
    """What the specs of a tensor say about one piece; axes are those of the tensor."""
    place = coordinates(tensor, rank)
    along: list[Along] = []
    for axis in range(len(tensor.shape)):
        cut = [g for g, s in enumerate(tensor.specs) if s.axis == axis and tensor.ranks[g] > 1]
        if cut:
            index, count = _within(tensor, place, cut)
            along.append(Along(_named(tensor, place, cut), index, count, axis))
    partial = partial_axes(tensor)
    pools = {tensor.specs[g].partial for g in partial}
    if not partial:
        return Content(tuple(along))
    pool = tensor.specs[partial[0]].partial
    assert pool is not None
    index, count = _within(tensor, place, partial)
    held = Held(_named(tensor, place, partial), pool, count, ((index, 1),))
    return Content(tuple(along), held, f"{tensor.name!r} is partial in several pools" if len(pools) > 1 else "")


def partial_axes(tensor: Tensor) -> list[int]:
    """The axes of the rank grid along which pieces are contributions."""
    return [g for g, s in enumerate(tensor.specs) if s.partial is not None and tensor.ranks[g] > 1]


class _Walk:
    """What is known so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.buffers: dict[BufferId, Content] = {}
        self.sent: dict[GroupId, Content] = {}
        self.stored: dict[StageId, Content] = {}
        self.promised: dict[TensorId, list[StageId]] = defaultdict(list)
        self.passing: dict[Piece, list[StageId]] = defaultdict(list)
        self.findings: list[Finding] = []
        self.doubts: list[tuple[StageId, str]] = []
        self._loaded = graph.loaded()

    def passes_on(self, tensor: TensorId) -> bool:
        """Whether a tensor only passes on what is in it."""
        return len(self.graph.tensors[tensor].chips) == 1 and tensor in self._loaded

    def run(self, stage_id: StageId) -> None:
        """Notes what one stage makes."""
        stage = self.graph.stages[stage_id]
        ins = [self.buffers.get(b, Content()) for b in stage.ins]
        try:
            made = self._made(stage_id, stage, ins)
        except SumError as fault:
            found = Finding(fault.obligation, stage_id, str(fault), fault.change, fault.positions)
            self.findings.append(found)
            made = [Content(doubt=f"it follows from stage s{stage_id}, which is at fault")] * len(stage.outs)
        for content in made:
            if content.doubt and not any(i.doubt for i in ins):
                self.doubts.append((stage_id, content.doubt))
        self.buffers.update(zip(stage.outs, made, strict=True))

    def _made(self, stage_id: StageId, stage: Stage, ins: list[Content]) -> list[Content]:
        match stage.kind:
            case Load() as load:
                content = self._load(stage, load)
                if load.multicast is not None:
                    self.sent[load.multicast] = content
                return [content] * len(stage.outs)
            case Recv(group):
                return [self.sent.get(group, Content())]
            case Store() as store:
                self._store(stage_id, stage, store, ins[0])
                return []
            case AllReduce(pool, _, combine):
                return _reduced(pool, combine, ins, len(stage.outs))
            case Compute(op):
                return self._computed(stage, op, ins)
            case Scalar():
                if (held := next((i.held for i in ins if lacking(i.held)), None)) is not None:
                    raise SumError("UnreducedShard", f"a scalar program reads {held}", "reduce it before this stage")
                return [Content(doubt=doubtful(ins))] * len(stage.outs)

    # Memory

    def _piece(self, tensor: TensorId, rank: int, load: Load) -> Content:
        if not self.passes_on(tensor) or (tensor, rank) not in self.passing:
            return promised(self.graph.tensors[tensor], rank)
        stores = self.passing[tensor, rank]
        found = list(dict.fromkeys(self.stored[s] for s in stores))
        if len({(c.held, c.doubt) for c in found}) > 1:
            found = list(dict.fromkeys(self.stored[s] for s in stores if self._meet(s, load))) or found
        if len({None if c.held is None else (c.held.pool, c.held.count, c.held.times) for c in found}) > 1:
            # Some elements lack this; so does a result that is made of the stream as if all were alike.
            held = next((c.held for c in found if lacking(c.held) is not None and not c.doubt), None)
            text = f"it loads from {self.graph.tensors[tensor].name!r} parts that {_MIXED}"
            return Content(held=held, doubt=text)
        along = found[0].along if len(found) == 1 else ()
        held = found[0].held
        if _mixed(found[0]) and not all(self._reads_all(s, load) for s in stores if self._meet(s, load)):
            held = None
        return Content(along, held, doubtful(found))

    def _reads_all(self, store: StageId, load: Load) -> bool:
        """Whether a load is known to read every element that a store puts."""
        kind = self.graph.stages[store].kind
        shape = self.graph.tensors[load.tensor].local
        if not isinstance(kind, Store) or isinstance(kind.pattern, Gather) or isinstance(load.pattern, Gather):
            return False
        try:
            reads = region_of(load.pattern, shape, load.num_blocks)
            return uncovered(region_of(kind.pattern, shape).products, reads.products) is None
        except RegionError:
            return False

    def _meet(self, store: StageId, load: Load) -> bool:
        kind = self.graph.stages[store].kind
        shape = self.graph.tensors[load.tensor].local
        if not isinstance(kind, Store) or isinstance(kind.pattern, Gather) or isinstance(load.pattern, Gather):
            return True
        try:
            reads = region_of(load.pattern, shape, load.num_blocks)
            return region_of(kind.pattern, shape).meets(reads) is not None
        except RegionError:
            return True

    def _load(self, stage: Stage, load: Load) -> Content:
        rank = self.graph.rank_of(stage)
        piece = self._piece(load.tensor, rank, load)
        pattern = affine_of(load.pattern)
        block = self.graph.buffers[stage.outs[0]].block if stage.outs else tuple(s for s in pattern.box if s != 1)
        local = self.graph.tensors[load.tensor].local
        held, doubt = piece.held, piece.doubt
        along: list[Along] = []
        for cut in piece.along:
            assert cut.axis is not None
            if isinstance(load.pattern, Gather) and load.pattern.axis == cut.axis:
                held, doubt = _looked_up(load.pattern, cut, held, doubt)
            else:
                along.append(_seen(cut, pattern, block, local))
        return Content(tuple(along), held, doubt)

    def _store(self, stage_id: StageId, stage: Stage, store: Store, content: Content) -> None:
        pattern = affine_of(store.pattern)
        block = self.graph.buffers[stage.ins[0]].block
        axis_of = {b: t for t, b in block_axes(pattern.box, block).items()}
        along: list[Along] = []
        for cut in content.along:
            # Where a block has one position only, no axis of the tensor can be told from another.
            axis = axis_of.get(cut.axis) if cut.axis is not None else _moving(pattern, cut.from_blocks)
            if axis is not None:
                along.append(replace(cut, axis=axis, from_blocks=1, within=min(cut.within, 1)))
        self.stored[stage_id] = replace(content, along=tuple(along), held=lacking(content.held))
        if self.passes_on(store.tensor):
            self.passing[store.tensor, self.graph.rank_of(stage)].append(stage_id)
        else:
            self.promised[store.tensor].append(stage_id)

    def keep(self, tensor_id: TensorId, stores: Sequence[StageId]) -> None:
        """Whether what is stored to a tensor is what its specs say."""
        tensor = self.graph.tensors[tensor_id]
        partial = partial_axes(tensor)
        fibres: dict[tuple[tuple[int, ...], str | None], dict[int, StageId]] = defaultdict(dict)
        places: dict[tuple[tuple[int, ...], str | None], dict[int, set[AccessPattern]]] = defaultdict(dict)
        for store in stores:
            kind = self.graph.stages[store].kind
            rank = self.graph.rank_of(self.graph.stages[store])
            content = self.stored[store]
            if _mixed(content) and content.held is not None and not partial:
                self._lacking(store, tensor, content.held)
            if content.doubt or not isinstance(kind, Store):
                continue
            place = coordinates(tensor, rank)
            if partial:
                outer = tuple(p for g, p in enumerate(place) if g not in partial)
                position = _within(tensor, place, partial)[0]
                # Contributions to different values may lie side by side in a piece, if they do so in the same places
                # of all of them.
                named = outer, None if content.held is None else content.held.value
                first = fibres[named].setdefault(position, store)
                places[named].setdefault(position, set()).add(kind.pattern)
                if self.stored[first].held != content.held:
                    self.doubts.append((store, "it stores parts of one piece that lack different things"))
            elif content.held is not None:
                self._lacking(store, tensor, content.held)
        self._side_by_side(tensor, places)
        for fibre in fibres.values():
            self._keep_partial(tensor, fibre)

    def _side_by_side(
        self, tensor: Tensor, places: Mapping[tuple[tuple[int, ...], str | None], Mapping[int, set[AccessPattern]]]
    ) -> None:
        """Where pieces hold contributions to several values: whether each value has the same place in all of them."""
        pool = tensor.specs[partial_axes(tensor)[0]].partial if partial_axes(tensor) else None
        # A whole value in every piece is folded in once a rank: by these pools that changes nothing.
        once = pool in (Pool.MAX, Pool.MIN)
        several = {outer for outer, _ in places if sum(o == outer for o, _ in places) > 1}
        for (outer, value), by_rank in places.items():
            if outer not in several:
                continue
            apart = len({frozenset(patterns) for patterns in by_rank.values()}) > 1
            if apart or (value is None and not once):
                what = "whole values beside contributions" if value is None else f"contributions to {value} elsewhere"
                last = max(stage for stage in self.promised[self.graph.tensor_id(tensor.name)])
                self.doubts.append((last, f"the pieces of {tensor.name!r} hold {what} in some ranks"))

    def _keep_partial(self, tensor: Tensor, fibre: Mapping[int, StageId]) -> None:
        """The pieces of all ranks fold into the whole: each contribution is in one of them, once."""
        pool = tensor.specs[partial_axes(tensor)[0]].partial
        parts = [self.stored[s].held for s in fibre.values()]
        last = list(fibre.values())[-1]
        if pool is None or not any(parts):
            return
        if not all(parts) or len({(p.value, p.count) for p in parts if p}) > 1:
            self.doubts.append((last, f"the pieces of {tensor.name!r} are contributions to different values"))
            return
        try:
            held, doubt = folded(pool, parts)
        except SumError as fault:
            found = Finding("EachSummandOnce", last, f"stores to {tensor.name!r}, a partial {pool.value}, and {fault}",
                            fault.change)  # fmt: skip
            self.findings.append(found)
            return
        if lacking(held) is not None and held is not None:
            self._lacking(last, tensor, held, together=True)
        elif doubt:
            self.doubts.append((last, doubt))

    def _lacking(self, store: StageId, tensor: Tensor, held: Held, together: bool = False) -> None:
        into = f"{tensor.name!r}, {' x '.join(map(str, tensor.specs))},"
        if len(held.times) == 1 and not together:
            which = held.times[0][0]
            message = f"stores to {into} the contribution of rank {which} alone: {held}"
            change = (
                f"fold it with the other {held.count - 1} first, or give the tensor a partial {held.pool.value} spec"
            )
            self.findings.append(Finding("UnreducedShard", store, message, change, (which,)))
        elif held.missing:
            ranks = ", ".join(map(str, held.missing))
            message = f"stores to {into} a {held.pool.value} of {held.value} without the contribution of rank {ranks}"
            change = f"fold in rank {ranks}, once"
            self.findings.append(Finding("EachSummandOnce", store, message, change, held.missing))
        elif held.repeated:
            which, often = held.repeated[0]
            message = f"stores to {into} a {held.pool.value} of {held.value} with the contribution of rank {which} in "
            message += f"it {often} times"
            change = f"fold in rank {which} once"
            found = Finding("EachSummandOnce", store, message, change, tuple(w for w, _ in held.repeated))
            self.findings.append(found)
        else:
            often = held.times[0][1]
            self.doubts.append((store, f"every contribution to {held.value} is in it {often} times"))

    # Arithmetic

    def _computed(self, stage: Stage, op: ComputeOp, ins: list[Content]) -> list[Content]:
        match op:
            case Matmul():
                return [self._product(op, ins)]
            case Generic():
                results = applied(op.exprs, [i.held for i in ins])
                along = _laid_out(op, ins)
                return [Content(along, held, doubt or doubtful(ins)) for held, doubt in results]
            case Reduce():
                return [_reduce(op, ins[0])] * len(stage.outs)
            case Permute():
                return [_permuted(self.graph, stage, op, ins[0])]

    def _product(self, op: Matmul, ins: list[Content]) -> Content:
        a, b = ins[:2]
        bias = self.buffers.get(op.bias) if op.bias is not None else None
        doubts = [doubtful([*ins, *([bias] if bias else [])])]
        held, doubt = contracted([(a, 1), (b, 1 if op.b_transposed else 0)], op.contraction_blocks, Pool.SUM)
        doubts.append(doubt)
        factors = [lacking(a.held), lacking(b.held)]
        if factors[0] is not None and factors[1] is not None:
            raise SumError("UnreducedShard", f"multiplies {a.held} by {b.held}", "reduce one of them first")
        factor = factors[0] or factors[1]
        if factor is not None:
            if factor.pool is not Pool.SUM:
                raise SumError("UnreducedShard", f"multiplies {factor}", "reduce it before this stage")
            doubts.append("a product is partial in its contraction and in an operand" if held is not None else "")
            held = replace(factor, value=f"product of {factor.value}"[:96])
        operands: list[Held | None] = [held]
        total: Expr = Operand(0)
        if bias is not None:
            operands.append(bias.held)
            total = Binary(BinaryOp.ADD, Operand(0), Operand(1))
        expr = total if op.epilogue is None else substitute(op.epilogue, lambda _: total)
        if expr != Operand(0):
            ((held, doubt),) = applied([expr], operands)
            doubts.append(doubt)
        if len(ins) == 3:
            held, doubt = folded(Pool.SUM, [ins[2].held, held])
            doubts.append(doubt)
        rows = [replace(c, axis=0) for c in a.along if c.axis == 0]
        columns = [replace(c, axis=1) for c in b.along if c.axis == (0 if op.b_transposed else 1)]
        left = tuple(_fewer(c, op.contraction_blocks) for c in (*rows, *columns))
        return Content(left, held, next(filter(None, doubts), ""))


def block_axes(box: Sequence[int], block: Sequence[int]) -> dict[int, int]:
    """The block axis that each tensor axis of a box is, where it is longer than 1 or nothing is squeezed."""
    if tuple(box) == tuple(block):
        return {axis: axis for axis in range(len(box))}
    return dict(zip((i for i, n in enumerate(box) if n != 1), (i for i, n in enumerate(block) if n != 1), strict=False))


def _moving(pattern: Affine, blocks: int) -> int | None:
    """The tensor axis along which a pattern moves first after so many blocks."""
    inner = 1
    for loop in reversed(pattern.loops):
        if inner >= blocks and loop.extent > 1 and any(loop.stride):
            return next(axis for axis, stride in enumerate(loop.stride) if stride)
        inner *= loop.extent
    return None


def _seen(cut: Along, pattern: Affine, block: Sequence[int], local: Sequence[int]) -> Along:
    """A cut axis of a piece as the blocks of a load have it."""
    axis = cut.axis
    assert axis is not None
    moving = [i for i, x in enumerate(pattern.loops) if x.stride[axis] and x.extent > 1]
    inside = pattern.loops[moving[0] :] if moving else ()
    within = math.prod(x.extent for x in inside)
    after = math.prod(x.extent for x in pattern.loops[moving[-1] + 1 :]) if moving else math.prod(
        x.extent for x in pattern.loops
    )  # fmt: skip
    one = Affine(
        (pattern.offset[axis],),
        (pattern.box[axis],),
        tuple(replace(x, stride=(x.stride[axis],)) for x in inside if x.stride[axis]),
        (pattern.steps[axis],),
        0.0,
    )
    try:
        full = cut.within == 1 and region_of(one, (local[axis],)).size >= local[axis]
    except RegionError:
        full = False
    place = block_axes(pattern.box, block).get(axis)
    return replace(cut, axis=place, from_blocks=max(after, 1), within=within if full else 0)


def _looked_up(gather: Gather, cut: Along, held: Held | None, doubt: str) -> tuple[Held | None, str]:
    """Rows looked up in a slice of a table: zeros for those that other ranks have are a contribution to a sum."""
    if gather.base.pad is None:
        return held, doubt
    if held is not None or gather.base.pad != 0.0:
        return held, doubt or f"rows of {cut.of} that aren't held read {gather.base.pad:g}"
    return Held(f"rows of {cut.of}", Pool.SUM, cut.count, ((cut.index, 1),)), doubt


def _reduced(pool: Pool, combine: Generic, ins: Sequence[Content], outs: int) -> list[Content]:
    parts = pool.components
    made: list[Content] = []
    for component in range(parts):
        held, doubt = folded(pool, [c.held for c in ins[component::parts]])
        made.append(Content(ins[component].along, held, doubt or doubtful(ins)))
    return [made[i % parts] for i in range(outs)]


def _laid_out(op: Generic, ins: Sequence[Content]) -> tuple[Along, ...]:
    found: dict[tuple[int | None, int], Along] = {}
    for axes, content in zip(op.maps, ins, strict=True):
        for cut in content.along:
            axis = None if cut.axis is None else axes[cut.axis]
            found.setdefault((axis, cut.from_blocks if axis is None else 0), replace(cut, axis=axis))
    return tuple(found.values())


def _fewer(cut: Along, blocks: int) -> Along:
    """A cut axis after so many blocks have been made one."""
    return replace(cut, from_blocks=max(1, cut.from_blocks // blocks), within=-(-cut.within // blocks))


def _reduce(op: Reduce, content: Content) -> Content:
    held, doubt = None, ""
    for axis in op.axes:
        held_along, doubt_along = contracted([(content, axis)], op.blocks, op.pool)
        if held is not None and held_along is not None:
            doubt = doubt or "a fold runs over several axes that are cut over ranks"
        held, doubt = held or held_along, doubt or doubt_along
    if (there := lacking(content.held)) is not None:
        if there.pool is not op.pool:
            raise SumError("UnreducedShard", f"takes the {op.pool.value} of {there}", "reduce it before this stage")
        doubt = doubt or ("a fold of a partial runs over an axis that is cut over ranks" if held is not None else "")
        held = there
    left = [c for c in content.along if c.axis not in op.axes and not (op.blocks > 1 and c.from_blocks < op.blocks)]
    return Content(tuple(_fewer(c, op.blocks) for c in left), held, content.doubt or doubt)


def _permuted(graph: Graph, stage: Stage, op: Permute, content: Content) -> Content:
    same = op.blocks_in == 1 and graph.buffers[stage.ins[0]].elements == graph.buffers[stage.outs[0]].elements
    along: Iterator[Along] = (
        replace(c, axis=None if c.axis is None else op.axes.index(c.axis), within=c.within if same else 0)
        for c in content.along
    )
    return replace(content, along=tuple(along))

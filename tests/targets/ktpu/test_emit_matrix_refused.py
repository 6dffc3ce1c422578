"""What can't become instructions of a cluster, and what is said about it."""

from __future__ import annotations

import msgspec
import pytest
from tests.targets.ktpu.matrix_rig import CARD, Clusters, chain_of, halves, product_of

from meshwright.errors import PlacementError
from meshwright.ir.expression import Binary, BinaryOp, Constant, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Generic, Matmul
from meshwright.ir.records import AllReduce, Compute, Load, Precedence, Site, Store
from meshwright.machine import load
from meshwright.targets.ktpu.emit_matrix import ResultImage, emit_matrix, images_at

AT = Site(0, 1, 1)
HERE = Site(1, 1, 1)
replace = msgspec.structs.replace


def product():
    return product_of(halves(24, 96), halves(40, 96, seed=1), (8, 8, 32))[0]


def chain():
    return chain_of(halves(16, 128), halves(16, 128), (0, 1), (16, 16, 64))[0]


def where_of(graph):
    """An address for every image, 64 KiB apart; both clusters' meshes."""
    found = {}
    for site in (AT, HERE):
        if any(graph.buffers[b].site == site for s in graph.stages for b in (*s.ins, *s.outs)):
            for number, image in enumerate(images_at(graph, site, CARD)):
                found[image] = CARD.global_addr(site.chip, number << 16)
    return found


def first(graph: Graph, kind, site=AT) -> int:
    """The first stage of a kind, or with an operation of a kind, at a site."""
    for number, stage in enumerate(graph.stages):
        what = stage.kind.op if isinstance(stage.kind, Compute) else stage.kind
        if isinstance(what, kind) and graph.site(stage) == site:
            return number
    raise AssertionError


def changed(graph: Graph, number: int, **fields) -> Graph:
    """The graph with fields of a stage's kind, or of its operation, replaced."""
    stage = graph.stages[number]
    kind = stage.kind
    made = Compute(replace(kind.op, **fields)) if isinstance(kind, Compute) else replace(kind, **fields)
    return with_stage(graph, number, replace(stage, kind=made))


def with_stage(graph: Graph, number: int, stage) -> Graph:
    return replace(graph, stages=(*graph.stages[:number], stage, *graph.stages[number + 1 :]))


def refused(graph: Graph, match: str, site: Site = AT, machine=CARD) -> None:
    with pytest.raises(PlacementError, match=match):
        images_at(graph, site, machine)
    with pytest.raises(PlacementError, match=match):
        emit_matrix(graph, site, machine, {})


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Matmul, {"bias": 3}, "s2 can't be emitted for a cluster: it has a bias, a spill, an epilogue or sub-blocks"),
        (Matmul, {"spill": 2}, "it has a bias, a spill, an epilogue or sub-blocks"),
        (Matmul, {"epilogue": Operand(0)}, "it has a bias, a spill, an epilogue or sub-blocks"),
        (Matmul, {"sub_blocks": (4, 4)}, "it has a bias, a spill, an epilogue or sub-blocks"),
        (Matmul, {"b_transposed": False}, r"its b is stored \[K\]\[N\]; a cluster takes \[N\]\[K\] \(b_transposed\)"),
        (Matmul, {"block": (6, 8, 32)}, "its blocks are 6 x 8 x 32; a cluster's are multiples of 4 x 4 x 32"),
        (Matmul, {"block": (8, 8, 48)}, "its blocks are 8 x 8 x 48"),
        (
            Matmul,
            {"block": (64, 256, 32)},
            "its blocks have 16 x 64 sub-tiles; the accumulator of .* holds 512, a bank",
        ),
        (
            Matmul,
            {"block": (4, 1024, 32)},
            "its blocks have 1 x 256 sub-tiles; .* a bank 256 rows of them, and a field",
        ),
        (Matmul, {"block": (4, 1028, 32)}, "its blocks have 1 x 257 sub-tiles"),
        (Store, {"sub_blocks": (4, 4)}, "s3 .* a drained tile is stored, by no looked-up positions and not in sub-bl"),
        (Load, {"multicast": 0}, "s0 .* operands are loaded block after block, not looked up or sent by other sites"),
    ],
)
def test_kinds_of_stages(kind, fields, message):
    graph = product()
    refused(changed(graph, first(graph, kind), **fields), message)


def pattern_changed(kind, **fields):
    graph = product()
    number = first(graph, kind)
    return changed(graph, number, pattern=replace(graph.stages[number].kind.pattern, **fields))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            Load,
            {"step": (2, 1)},
            r"s0 .* boxes are \[8, 32\] by \[2, 1\] of \[24, 96\] for blocks of \[8, 32\]; a block",
        ),
        (Load, {"box": (32, 8)}, r"boxes are \[32, 8\] by \[1, 1\] of \[24, 96\] for blocks of \[8, 32\]"),
        (Load, {"offset": (4, 0)}, r"its blocks of \[8, 32\] don't begin at multiples of their size"),
        (Load, {"offset": (-8, 0)}, r"its blocks of \[8, 32\] don't begin at multiples of their size"),
        (Load, {"offset": (24, 0)}, r"the block at \[\d+, 64\] is wholly outside \[24, 96\]"),
        (Load, {"pad": 1.0}, "s0 .* it reads 1.0 outside its tensor; images are padded with zeros"),
        (Store, {"offset": (4, 0)}, r"s3 .* its blocks of \[8, 8\] don't begin at multiples of their size"),
    ],
)
def test_patterns(kind, fields, message):
    refused(pattern_changed(kind, **fields), message)


def with_tensor(graph: Graph, number: int, **fields) -> Graph:
    tensors = graph.tensors
    return replace(graph, tensors=(*tensors[:number], replace(tensors[number], **fields), *tensors[number + 1 :]))


def test_tensors():
    graph = product()
    refused(with_tensor(graph, 0, format=ElementType.F32), "s0 .* operand 0 is f32; a cluster reads and drains f16")
    refused(with_tensor(graph, 0, chips=(1,)), "s0 .* the piece is on mesh 1, whose memory a cluster doesn't reach")
    refused(with_tensor(graph, 1, shape=(40, 128)), "s2 .* its operands have 96 and 128 elements along K")


def test_stores_of_one_piece_in_blocks_of_two_shapes():
    graph = product()
    number = first(graph, Store, Site(0, 1, 2))
    pattern = replace(graph.stages[number].kind.pattern, box=(4, 16))
    refused(
        changed(graph, number, pattern=pattern), rf"s3 .* s{number} stores the same piece in blocks of another shape"
    )


def test_a_site_without_a_cluster():
    refused(product(), r"no cluster stands at 0:\(1,0\) of ktpu-v13p; they stand at \(1, 1\), \(1, 2\)", Site(0, 1, 0))


def test_stages_that_are_no_matrix_work():
    graph = product()
    refused(
        with_stage(graph, 2, replace(graph.stages[2], kind=Compute(Generic.elementwise(Operand(0), 2, 2)))),
        "s0 .* stages s0, s1, s2, s3 have 0 Matmuls that open a sum, and a cluster's work is one",
    )


def test_sums_that_are_kept_otherwise():
    graph = product()
    number = graph.stages[2].outs[0]
    buffers = [replace(b, format=ElementType.E8M15) if at == number else b for at, b in enumerate(graph.buffers)]
    refused(replace(graph, buffers=tuple(buffers)), f"s2 .* it puts e8m15 into b{number}; a FIFO gets f16, drained")
    graph = chain()
    number = first(graph, Matmul, HERE)
    stage = graph.stages[number]
    refused(
        with_stage(graph, number, replace(stage, ins=(*stage.ins, *stage.outs))),
        "have 0 Matmuls that open a sum, and a cluster's work is one",
        HERE,
    )


def test_sums_that_go_elsewhere():
    graph = chain()
    number = first(graph, Generic, HERE)
    doubled = Binary(BinaryOp.MUL, Operand(0), Constant(2.0))
    refused(
        changed(graph, number, exprs=(doubled,)),
        f"s{number} .* it computes with a sum; a cluster rounds it to f16 and drains it, nothing else",
        HERE,
    )
    both = next(number for number, stage in enumerate(graph.stages) if isinstance(stage.kind, AllReduce))
    stage = graph.stages[both]
    one_way = "a cluster adds one tile into one other, which stays: two inputs, the first kept"
    for site in (AT, HERE):
        refused(
            with_stage(graph, both, replace(stage, outs=(*stage.outs, stage.ins[1]))), f"s{both} .* {one_way}", site
        )
    buffers = [replace(b, block=(8, 32)) if at == stage.ins[1] else b for at, b in enumerate(graph.buffers)]
    refused(replace(graph, buffers=tuple(buffers)), r"tiles of \[16, 16\] and \[8, 32\]; sub-tiles have to correspond")
    buffers = [replace(b, site=Site(1, 1, 2)) if b.site == AT else b for b in graph.buffers]
    tensors = [replace(t, chips=(1, 1)) if len(t.chips) == 2 else t for t in graph.tensors]
    refused(
        replace(graph, buffers=tuple(buffers), tensors=tuple(tensors)),
        "no data for units gets from mesh 1 to mesh 1",
        Site(1, 1, 2),
    )


def test_sums_that_nobody_takes_or_opened():
    graph = chain()
    both = next(number for number, stage in enumerate(graph.stages) if isinstance(stage.kind, AllReduce))
    opener = first(graph, Matmul, AT)
    refused(
        replace(graph, stages=graph.stages[:both]),
        f"s{opener} .* its sum stays in the accumulator; nothing sends or drains it",
    )
    # The sum over meshes first, which nothing has opened the tiles for.
    stages = (graph.stages[both], *graph.stages[:both], *graph.stages[both + 1 :])
    refused(replace(graph, stages=stages), "s0 .* it uses an accumulator before the Matmul that opens it")


def test_machines_without_links_or_agents():
    graph = chain_of(halves(16, 128), halves(16, 128), (1, 3), (16, 16, 64))[0]
    mesh = CARD.mesh(3)
    unstated = replace(CARD, meshes=tuple(replace(m, agent=None) if m is mesh else m for m in CARD.meshes))
    refused(graph, "mesh 3 states no agent that could count what arrives", HERE, unstated)
    apart = replace(CARD, links=tuple(link for link in CARD.links if set(link.between) != {1, 3}))
    refused(graph, "no data for units gets from mesh 1 to mesh 3 of ktpu-v13p", HERE, apart)


def test_components_that_wait_for_each_other():
    """Two products, each with a stage that waits for one of the other."""
    graph, other = product(), Site(0, 1, 2)
    mine, theirs = (Precedence(first(graph, Store, a), first(graph, Load, b)) for a, b in ((other, AT), (AT, other)))
    for one in (mine, theirs):
        assert emit_matrix(replace(graph, precedences=(one,)), AT, CARD, where_of(graph))
    late = Precedence(first(graph, Load, AT), first(graph, Load, other))
    early = Precedence(first(graph, Load, other), first(graph, Store, AT))
    refused(replace(graph, precedences=(late, early)), "stages joined by buffers wait for others that wait for them")


def test_addresses():
    graph = product()
    where = where_of(graph)
    assert emit_matrix(graph, AT, CARD, where)
    image = next(image for image in where if isinstance(image, ResultImage))

    def message(changes):
        with pytest.raises(PlacementError) as error:
            emit_matrix(graph, AT, CARD, {key: at for key, at in (where | changes).items() if at is not None})
        return str(error.value)

    assert message({image: None}) == (
        "stage s3 can't be emitted for a cluster: `where` has no address for its image of result, rank 0: "
        "ResultLayout(rows=24, columns=40, grid=(3, 5), tile=(2, 2))"
    )
    for address in (CARD.global_addr(1, 0), 0x10080, CARD.dram.bytes - 256):
        assert f"stage s3 can't be emitted for a cluster: its image of result is 3840 bytes from {address:#x} on" in (
            message({image: address})
        )


def test_nothing_is_refused_of_what_the_placement_chooses():
    """The largest tiles that a machine with a smaller accumulator allows."""
    machine = load("ktpu-v13p")
    small = replace(machine, maybe_cluster=replace(machine.cluster, accumulator_tiles=256))
    graph, inputs = product_of(halves(64, 64), halves(128, 64), (64, 128, 64))
    assert Clusters(graph, inputs).tasks
    refused(graph, "its blocks have 16 x 32 sub-tiles; the accumulator of ktpu-v13p holds 256", machine=small)

"""Pictures of graphs: sound SVG that fetches nothing, with every site, FIFO, sender and link, and nothing outside."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from tests.kernels.multicast_machines import line, one_chip, places, ring
from tests.kernels.multicast_samples import sample_graphs, sample_machines

from meshwright import targets
from meshwright.errors import GraphError, MachineError, UsageError
from meshwright.ir import library
from meshwright.ir.formats import ElementType as E
from meshwright.ir.graph import Graph
from meshwright.ir.ids import ChipId
from meshwright.ir.records import Buffer, Group, Site
from meshwright.ir.serialise import from_json, to_json
from meshwright.kernels.alone import graph_alone
from meshwright.kernels.grid import Route, all_reduce, multicast_matmul, reduce_scatter
from meshwright.kernels.kernel import Shaped
from meshwright.machine import load
from meshwright.report import overview, picture, summarise
from meshwright.report.layout import chip_places
from meshwright.report.movement import chip_bytes, loaded_bytes, stored_bytes
from meshwright.report.summary import Summary
from meshwright.report.words import amount, printable
from meshwright.runtime.traffic import link_bytes

SAMPLES = Path(__file__).parent / "samples"
GRAPHS = sample_graphs()
MACHINES = sample_machines()
SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph, machine=None):
    """The picture, parsed, after what has to hold of every picture."""
    text = picture(summarise(graph, machine), machine)
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert {e.tag for e in root.iter()} <= {
        SVG + t for t in ("svg", "title", "rect", "text", "circle", "line", "polygon")
    }
    names = {name for e in root.iter() for name in e.attrib}
    assert not {n for n in names if "href" in n or n.startswith("on") or n in ("style", "src")}
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for x0, y0, x1, y1 in boxes(root):
        assert 0 <= x0 <= x1 <= width + 0.01
        assert 0 <= y0 <= y1 <= height + 0.01
    return root


def boxes(root, tags=("rect", "text")):
    """Where the elements that aren't turned are: left, top, right, bottom."""
    for element in root.iter():
        if element.tag == f"{SVG}rect" and "rect" in tags:
            x, y, w, h = (float(element.get(k)) for k in ("x", "y", "width", "height"))
            yield x, y, x + w, y + h
        if element.tag == f"{SVG}text" and "text" in tags and element.get("transform") is None:
            yield text_box(element)


def text_box(element):
    size = float(element.get("font-size"))
    x, y, width = float(element.get("x")), float(element.get("y")), len(element.text) * size * 0.602
    left = x - {None: 0, "middle": width / 2, "end": width}[element.get("text-anchor")]
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def texts(root):
    return [e.text for e in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("on_a_machine", [True, False])
def test_every_site_is_drawn_with_what_it_has(name, on_a_machine):
    graph, machine = GRAPHS[name], MACHINES[name]
    summary = summarise(graph, machine if on_a_machine else None)
    found = Counter(texts(drawn(graph, machine if on_a_machine else None)))
    assert summary.title in found
    used = Counter(f"({s.x},{s.y})" for s in {b.site for b in graph.buffers})
    assert all(found[place] >= count for place, count in used.items())
    assert {f"chip {chip}" for chip in summary.chips} <= set(found)
    if on_a_machine:
        units = Counter(f"({x},{y})" for mesh in machine.meshes for x, y in mesh.occupants())
        assert {place: found[place] for place in units} == units
    if any("matmul" in str(work) for site in summary.sites for work in site.work):
        assert any("matmul" in text for text in found)
    assert sum(s.fifos for s in summary.sites) == len(graph.buffers)
    assert sum(w.count for s in summary.sites for w in s.work) == len(graph.stages)


@pytest.mark.parametrize("name", GRAPHS)
def test_texts_do_not_lie_on_each_other(name):
    root = drawn(GRAPHS[name], MACHINES[name])
    placed = list(boxes(root, ("text",)))
    for (a, b, c, d), (e, f, g, h) in combinations(placed, 2):
        assert min(c, g) - max(a, e) <= 0.5 or min(d, h) - max(b, f) <= 0.5


@pytest.mark.parametrize("count", [2, 3, 5, 6, 9])
@pytest.mark.parametrize("closed", [True, False])
def test_texts_of_many_chips_do_not_lie_on_each_other(count, closed):
    machine = line(count, 1, 1, closed and count > 2)
    graph = all_reduce(Route.along(machine), places(machine), (count, 40), E.F32, axis=0)
    for on in (machine, None):
        placed = list(boxes(drawn(graph, on), ("text",)))
        for (a, b, c, d), (e, f, g, h) in combinations(placed, 2):
            assert min(c, g) - max(a, e) <= 0.5 or min(d, h) - max(b, f) <= 0.5


def test_one_outline_and_one_sender_a_multicast():
    graph = GRAPHS["matmul-bias-gelu"]
    root = drawn(graph)
    # Along columns b and the bias go the same way; the legend has one of each.
    assert len(summarise(graph).multicasts) == 2 + 3
    outlines = [e for e in root.iter(f"{SVG}rect") if e.get("fill") == "none"]
    assert (len(outlines), len(list(root.iter(f"{SVG}circle")))) == (5 + 1, 5 + 1)
    assert Counter(texts(root))["operand 1, operand 2"] == 3
    assert Counter(texts(root))["operand 0"] == 2
    cells = {e.get("x"): None for e in root.iter(f"{SVG}rect") if e.get("stroke") == "#52606d"}
    assert len(cells) == 3
    for outline in outlines[1:]:
        x0, x1 = float(outline.get("x")), float(outline.get("x")) + float(outline.get("width"))
        inside = [x for x in cells if x0 < float(x) < x1]
        assert len(inside) in (1, 3)


def test_a_sender_outside_its_rectangle():
    graph = GRAPHS["matmul-one-site"]
    far = msgspec.structs.replace(graph, groups=(Group(Site(ChipId(0), 3, 2), (0, 0), (1, 1)),))
    root = drawn(far)
    (joined,) = (e for e in root.iter(f"{SVG}line"))
    assert joined.get("stroke-dasharray")


def test_the_depth_of_a_fifo_is_that_many_cells():
    for name, depth in (("matmul-shallow", 1), ("matmul", 2)):
        root = drawn(GRAPHS[name])
        cells = [e for e in root.iter(f"{SVG}rect") if e.get("fill") == "#f5d76e"]
        kinds = sum(len(site.held) for site in summarise(GRAPHS[name]).sites)
        assert len(cells) == depth * kinds + 2  # Two in the legend.


@pytest.mark.parametrize("name", [n for n in GRAPHS if "all-" in n or "scatter" in n])
def test_arrows_carry_the_bytes_of_the_links(name):
    graph, machine = GRAPHS[name], MACHINES[name]
    moved = link_bytes(graph, machine)
    root = drawn(graph, machine)
    labels = Counter(e.text for e in root.iter(f"{SVG}text") if e.get("fill") == "#b8336a")
    assert labels == Counter(amount(count) for count in moved.values())
    assert len(list(root.iter(f"{SVG}polygon"))) == len(moved)
    # These move between neighbours only, so what the graph states is what the links carry.
    assert chip_bytes(graph) == moved


def test_links_that_carry_nothing_are_drawn_thin():
    machine = ring(4, 1, 1)
    graph = reduce_scatter(Route.along(machine, [0, 1]), places(machine), (4, 4), E.F32)
    root = drawn(graph, machine)
    assert len([e for e in root.iter(f"{SVG}line") if e.get("stroke") == "#c3ccd5"]) == 3
    assert {"chip 2", "chip 3"} <= set(texts(root))
    assert "chip 2" not in texts(drawn(graph))


@pytest.mark.parametrize("count", [3, 4, 7, 12, 24, 64])
@pytest.mark.parametrize("closed", [True, False])
def test_chips_that_are_joined_stand_side_by_side(count, closed):
    machine = line(count, 1, 1, closed)
    order = range(count)
    summary = Summary("", (), (), tuple(order), (), (), tuple(link.between for link in machine.links), {}, None, {}, {})
    at = chip_places(summary, machine, 1.3)
    assert len(set(at.values())) == count
    apart = [sum(abs(p - q) for p, q in zip(at[a], at[b], strict=True)) for a, b in summary.links]
    # A ring of an odd number has one link across a corner.
    assert sorted(apart)[:-1] == [1] * (len(apart) - 1)
    assert apart[-1] <= (2 if closed and count % 2 else 1)


def test_a_grid_of_chips_stands_as_it_is():
    four = ring(4, 1, 1)
    meshes = tuple(
        msgspec.structs.replace(m, at=at) for m, at in zip(four.meshes, ((0, 0), (1, 0), (1, 1), (0, 1)), strict=True)
    )
    machine = msgspec.structs.replace(four, topology="grid2d", meshes=meshes)
    graph = reduce_scatter(Route.along(machine, closed=True), places(machine), (4, 4), E.F32)
    assert chip_places(summarise(graph, machine), machine, 1.0) == {0: (0, 0), 1: (1, 0), 2: (1, 1), 3: (0, 1)}
    drawn(graph, machine)


def test_hundreds_of_sites_are_counted_and_thousands_refused():
    graph = GRAPHS["matmul-one-site"]

    def over(columns, rows):
        more = tuple(
            Buffer(Site(ChipId(0), x, y), (32, 32), E.BF16, 2) for x in range(columns) for y in range(rows) if x or y
        )
        return msgspec.structs.replace(graph, buffers=graph.buffers + more)

    root = drawn(over(30, 20))
    assert Counter(texts(root))["1 FIFO"] == 599
    assert "4 stages" in texts(root)
    with pytest.raises(
        UsageError,
        match=re.escape(
            "a picture of 4200 places on 1 chips can't be read; up to 4096 are drawn. The text without --svg has "
            "them all"
        ),
    ):
        picture(summarise(over(60, 70)))


def test_coordinates_far_apart_are_drawn_close():
    graph = GRAPHS["matmul-one-site"]
    far = tuple(Buffer(Site(ChipId(0), at, -at), (4,), E.BF16, 1) for at in (10**15, -(10**15)))
    root = drawn(msgspec.structs.replace(graph, buffers=graph.buffers + far))
    assert "(1000000000000000,-1000000000000000)" in texts(root)
    assert float(root.get("width")) < 2000


def test_more_kinds_than_a_box_has_lines_are_counted():
    root = drawn(GRAPHS["experts"], MACHINES["experts"])
    assert any(re.fullmatch(r"\+ \d+ more", text) for text in texts(root))
    # What computes is shown before what only moves.
    assert sum("matmul" in text for text in texts(root)) >= 6


def test_an_empty_graph():
    root = drawn(Graph((), (), (), ()))
    assert "0 stages at 0 sites of 0 chips; 0 buffers, 0 multicast groups, 0 tensors" in texts(root)
    assert overview(summarise(Graph((), (), (), ()))).count("\n") == 1


def test_a_graph_that_does_not_balance_is_shown_with_the_reason():
    graph = GRAPHS["all-reduce-max-pair"]
    stages = tuple(s for s in graph.stages if "AllReduce" not in type(s.kind).__name__)
    torn = msgspec.structs.replace(graph, stages=stages, precedences=())
    buffers = {b for s in stages for b in s.outs}
    torn = msgspec.structs.replace(torn, stages=tuple(s for s in stages if set(s.takes()) <= buffers))
    summary = summarise(torn, MACHINES["all-reduce-max-pair"])
    assert summary.moved is None
    assert summary.problem.startswith("BlockBalance: ")
    assert any(text.startswith("bytes over links are not known: BlockBalance") for text in texts(drawn(torn)))
    assert "bytes over links are not known: BlockBalance" in overview(summary)


def test_a_malformed_graph_and_a_machine_without_the_chip_are_refused():
    graph = GRAPHS["all-reduce-ring"]
    with pytest.raises(GraphError, match="Remapped"):
        summarise(msgspec.structs.replace(graph, buffers=()))
    with pytest.raises(MachineError, match="has no mesh 1"):
        summarise(graph, one_chip(2, 2))


def test_bytes_loaded_and_stored():
    graph = GRAPHS["matmul"]
    # 16 blocks of a and as many of b, once a row or column; a result of 16 blocks.
    assert loaded_bytes(graph) == {0: 2 * 16 * 32 * 32 * 2}
    assert stored_bytes(graph) == {0: 16 * 32 * 32 * 2}
    assert "chip 0: loads 64 KiB, stores 32 KiB" in overview(summarise(graph))


def test_a_multicast_whose_sender_keeps_nothing_is_counted_once():
    graph = GRAPHS["matmul-bias-gelu"]
    rectangle = graph.groups[0]
    outside = msgspec.structs.replace(rectangle, sender=Site(ChipId(0), 5, 5))
    stages = []
    for stage in graph.stages:
        if getattr(stage.kind, "multicast", None) == 0:
            kept = stage.outs
            stages.append(msgspec.structs.replace(stage, outs=()))
            stages.append(msgspec.structs.replace(graph.stages[1], outs=kept))
        else:
            stages.append(stage)
    moved = msgspec.structs.replace(graph, groups=(outside, *graph.groups[1:]), stages=tuple(stages))
    assert loaded_bytes(moved) == loaded_bytes(graph)
    drawn(moved)


def test_the_picture_in_the_documentation():
    place = targets.placement(load("grid-8x8"), 0)
    kernel = multicast_matmul((32, 32, 32), 2, 3, epilogue=library.gelu)
    graph = graph_alone(kernel, place, [Shaped(shape, E.BF16) for shape in ((64, 64), (96, 64), (96,))])
    stored = Path(__file__).parents[2] / "docs" / "images" / "multicast.svg"
    assert stored.read_text("utf-8") == picture(summarise(graph))


OVERVIEW = """\
16 stages at 4 sites of 1 chip; 12 buffers, 4 multicast groups, 3 tensors
input   operand 0 bf16[64, 96] copied on 0
input   operand 1 bf16[64, 96] copied on 0
output  result bf16[64, 64] copied on 0

chip 0: loads 24 KiB, stores 8 KiB
  (0,0)  load, send operand 0; load, send operand 1; matmul 32x32x32; store result | 3 × bf16 32x32, 1 deep
  (1,0)  receive; load, send operand 1; matmul 32x32x32; store result | 3 × bf16 32x32, 1 deep
  (0,1)  load, send operand 0; receive; matmul 32x32x32; store result | 3 × bf16 32x32, 1 deep
  (1,1)  2 × receive; matmul 32x32x32; store result | 3 × bf16 32x32, 1 deep

multicast
  0:(0,0) to (0,0)..(1,0): operand 0
  0:(0,1) to (0,1)..(1,1): operand 0
  0:(0,0) to (0,0)..(0,1): operand 1
  0:(1,0) to (1,0)..(1,1): operand 1
"""


def test_the_overview():
    assert overview(summarise(GRAPHS["matmul-shallow"])) == OVERVIEW
    lines = overview(summarise(GRAPHS["matmul"])).splitlines()
    assert "  (1,1) (2,1) (3,1) (1,2) (2,2) and 4 more  2 × receive; matmul 32x32x32; store result | " in "\n".join(
        lines
    )
    ring_lines = overview(summarise(GRAPHS["reduce-scatter-ring"], MACHINES["reduce-scatter-ring"])).splitlines()
    assert ring_lines[-4:] == ["links", "  0 -> 1  64 B", "  1 -> 2  64 B", "  2 -> 0  64 B"]


def test_words():
    assert [amount(n) for n in (0, 1023, 1024, 1536, 5 << 20, 1 << 40)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "5 MiB",
        "1 TiB",
    ]
    assert printable("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\n\\u202eb"
    assert printable("x" * 50) == "x" * 39 + "…"


def test_stored_samples_are_what_the_builders_make():
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(GRAPHS)
    for name, graph in GRAPHS.items():
        stored = (SAMPLES / f"{name}.json").read_bytes()
        assert stored == to_json(graph) + b"\n", f"{name}: python -m tests.kernels.multicast_samples writes them anew"
        assert from_json(stored) == graph

"""A walk: what it tells is what was sent, read and computed, and it says so where things don't agree."""

import msgspec
import numpy as np
import pytest

from meshwright.errors import MachineError, MeshwrightError, TransportError, UsageError
from meshwright.machine import load
from meshwright.numerics import fp22
from meshwright.report.document import Heading, Listing, Rows, Text, markdown
from meshwright.report.walk import MOST, MOST_ELEMENTS, product, walk
from meshwright.report.walk_cluster import Drained, Filled, Swept, Watch
from meshwright.report.walk_exchange import completion
from meshwright.report.walk_numbers import compared, quantised, sub_tile
from meshwright.report.walk_story import story
from meshwright.report.walk_story_text import aligned, lines_or_some, wide_hex
from meshwright.report.walk_story_words import fields_of
from meshwright.report.walk_transport import Block, Collect, Poll, Recording, Submit, Traffic
from meshwright.runtime.cards import over
from meshwright.runtime.transport import InProcess
from meshwright.sharding import MeshGroup
from meshwright.simulator import Card, registers
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.layout import OperandLayout, ResultLayout
from meshwright.targets.ktpu.placement import KtpuPlacement

SIZES = [(1, 1, 1), (5, 33, 7), (32, 128, 32), (12, 2500, 20), (100, 64, 300)]
CASES = [(sizes, "ktpu-v13p", None) for sizes in SIZES] + [((9, 70, 11), "ktpu-v13p", 1), ((9, 70, 11), "ktpu-1", 0)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {case[1]} mesh {case[2]}")
def walked(request):
    sizes, machine, mesh = request.param
    return walk(product(machine, *sizes, mesh=mesh, seed=3))


@pytest.fixture(scope="module")
def small():
    return walk(product("ktpu-v13p", 8, 64, 8))


def layout_of(picture):
    kind = OperandLayout if picture.order.startswith("OperandLayout") else ResultLayout
    return eval(picture.order, {"OperandLayout": OperandLayout, "ResultLayout": ResultLayout}), kind


def test_the_result_has_the_evaluators_bits_and_the_errors_of_the_format(walked):
    found = walked.comparison
    assert (found.different, found.count) == (0, walked.product.m * walked.product.n)
    assert found.share < 0.03
    assert found.median <= found.tenth
    assert {one.verdict for one in walked.obligations} == {"held"}


def test_the_programs_are_those_that_were_staged(walked):
    sent = [word for program in walked.programs for word in program.words]
    assert len(sent) == walked.stats.words
    assert len(walked.programs) == walked.stats.programs
    for program in walked.programs:
        assert Program.decode("MG", program.words).encode() == program.words
    kicks = walked.exchanges.kicks
    assert sum(len(kick.words) for kick in kicks) == len(sent)
    assert [kick.flits[-1].txn for kick in kicks] == list(range(1, len(kicks) + 1))
    for kick in kicks:
        assert [flit.last for flit in kick.flits] == [0] * (len(kick.flits) - 1) + [1]
        assert {flit.type for flit in kick.flits} == {5}


def test_elements_are_where_the_pictures_say(walked):
    a, b = walked.product.operands()
    for picture in walked.pictures:
        layout, kind = layout_of(picture)
        assert layout.shape == picture.shape
        matrix = {"a": a, "b": b}.get(picture.name)
        pitch = -(-layout.instance_bytes // 256) * 256 if kind is ResultLayout else 0
        lines = {line.byte: line for line in picture.lines}
        assert lines[0].elements[0] == (0, 0)
        for line in picture.lines:
            for at, place in enumerate(line.elements):
                if place is None:
                    continue
                byte = layout.bit(*place) // 8
                if kind is ResultLayout:
                    # Each instance begins at a burst.
                    tile, inside = divmod(byte, layout.instance_bytes)
                    byte = tile * pitch + inside
                assert byte == line.byte + 2 * at
                if matrix is not None:
                    assert np.frombuffer(line.data, np.float16)[at] == matrix[place]
        for row, found in picture.map:
            for column, byte in zip(picture.columns, found, strict=True):
                dense = layout.bit(row, column) // 8
                if kind is ResultLayout:
                    dense = dense // layout.instance_bytes * pitch + dense % layout.instance_bytes
                assert byte == dense


def test_bytes_of_the_result_are_the_result(walked):
    (picture,) = (picture for picture in walked.pictures if picture.name == "c")
    bits = {(row, column): half for row, column, half, _ in walked.comparison.elements}
    for line in picture.lines:
        for at, place in enumerate(line.elements):
            if place in bits:
                assert int(np.frombuffer(line.data, np.uint16)[at]) == bits[place]
    assert walked.sub_tile.halves[0] == bits[0, 0]


def test_a_sub_tile_is_summed_over_all_of_k(walked):
    steps = walked.sub_tile.steps
    blocks = -(-walked.product.k // 32)
    # What is padding along K alone may be swept or left out.
    assert len(steps) >= blocks
    assert [step.block for step in steps] == list(range(len(steps)))
    code = fp22.open_tile(np.array([steps[0].value], np.uint32))
    for step in steps[1:]:
        code = fp22.add(code, np.array([step.value], np.uint32))
        assert int(code[0]) == step.codes[0]
    assert fp22.drain(code).view(np.uint16)[0] == walked.sub_tile.halves[0]


def test_several_sweeps_continue_one_tile():
    walked = walk(product("ktpu-v13p", 64, 4096, 64))
    assert walked.sub_tile.steps[-1].sweep > 2
    assert walked.tilings.taken.chunks == walked.sub_tile.steps[-1].sweep + 1
    assert "... " in markdown(story(walked))


def test_a_program_that_takes_several_rounds():
    walked = walk(product("ktpu-v13p", 16, 131072, 16))
    program, *_ = walked.programs
    assert len(program.words) > walked.product.machine.dispatch.staged_words
    assert walked.exchanges.rounds > 1
    assert sum(kick.at == program.at for kick in walked.exchanges.kicks) > 1
    assert walked.comparison.different == 0
    assert f"The count went up by {len(program.words)}," in markdown(story(walked)).replace("\n", " ")


def test_the_tiling_is_the_kernels(walked):
    asked = walked.product
    placed = KtpuPlacement(asked.machine, asked.mesh).matmul_tile(asked.m, asked.n, asked.k)
    assert walked.tilings.taken.tile == placed
    assert walked.tilings.taken.at_work == len(walked.programs)


def test_a_block_as_it_was_quantised(walked):
    a, _ = walked.product.operands()
    entry = walked.entries[0]
    assert entry.side == "A"
    row = np.zeros(32, np.float16)
    row[: min(32, walked.product.k)] = a[0, :32]
    assert entry.values == tuple(row.astype(float))
    assert max(map(abs, entry.elements)) <= 63
    off = np.array(entry.elements) * entry.scale_value - np.array(entry.values)
    # The reciprocal has 12 bits, so half an element is not quite the bound.
    assert np.abs(off).max() <= 0.52 * entry.scale_value
    assert [len(word) for word in entry.words] == [32] * 4
    assert {word[:4] for word in entry.words} == {bytes(reversed(entry.scales))}


def test_calls_and_bytes_add_up(walked):
    calls = walked.exchanges.calls
    assert len(calls) == walked.run.calls + walked.back.calls
    assert [call.number for call in calls] == list(range(walked.discovery.calls, walked.discovery.calls + len(calls)))
    written = sum(len(block.data) for call in calls if call.kind == "submit" for block in call.blocks)
    assert written == walked.run.written
    assert walked.exchanges.rounds == sum("a round begins" in b.says for call in calls for b in call.blocks)


def test_the_same_walk_twice(small):
    assert markdown(story(walk(product("ktpu-v13p", 8, 64, 8)))) == markdown(story(small))
    other = markdown(story(walk(product("ktpu-v13p", 8, 64, 8, seed=1))))
    assert other != markdown(story(small))
    assert "default_rng(1)" in other


def test_all_words_are_shown_with_all_fields():
    walked = walk(product("ktpu-v13p", 64, 2048, 64))
    some, every = (markdown(story(walked, which)) for which in ("some", "all"))
    assert "words more" in some
    assert "like these" in some
    assert "words more" not in every
    assert "like these" not in every
    for program in walked.programs:
        for word in program.words:
            assert wide_hex(word, 256) in every
    assert every.count(" nk[183:176]=") == sum(
        word.mnemonic == "GEMM" for program in walked.programs for word in program.program.words
    )


def test_fields_make_up_the_word(small):
    for word, bits in zip(small.programs[0].program.words, small.programs[0].words, strict=True):
        fields = {name: value for name, _, value, _ in fields_of(word, bits)}
        assert fields.pop("op").endswith(word.mnemonic)
        values = {name: int(value.split()[0], 0) for name, value in fields.items()}
        assert type(word)(**values).words() == (bits,)


# Where things don't agree.


def test_a_wrong_l1_is_found(small):
    seen = small.entries[0]
    memory = np.zeros((4, 32), np.float16)
    memory[0] = seen.values
    program = small.programs[0].program.words
    q, scale = np.zeros((4, 32), np.int8), np.zeros(4, np.uint8)
    with pytest.raises(MeshwrightError, match=r"the entry filled from 0x\w+: L1 of the simulated card and mxfp7"):
        quantised(Filled(program[0], q, scale), memory.tobytes())


@pytest.fixture(scope="module")
def seen():
    asked = product("ktpu-v13p", 8, 64, 8)
    watch = Watch(KtpuPlacement(asked.machine, 0).matrix_sites()[0])
    group = MeshGroup.open(over(InProcess(Card(asked.machine, units={"MG": watch.units})), asked.machine), meshes=[0])
    group.matmul(*map(group.copy, asked.operands()))
    return watch.seen


def test_a_wrong_accumulator_is_found(seen):
    assert sub_tile(seen).steps
    at = next(i for i, one in enumerate(seen) if isinstance(one, Swept))
    wrong = [*seen]
    wrong[at] = msgspec.structs.replace(seen[at], codes=seen[at].codes ^ 1)
    with pytest.raises(MeshwrightError, match="sub-tile 0 after GEMM 0 of 1: the accumulator of the simulated card"):
        sub_tile(wrong)


def test_a_wrong_drain_is_found(seen):
    assert isinstance(seen[-1], Drained)
    wrong = [*seen[:-1], msgspec.structs.replace(seen[-1], halves=seen[-1].halves ^ 1)]
    with pytest.raises(MeshwrightError, match="sub-tile 0 as it was drained: the cluster of the simulated card"):
        sub_tile(wrong)


def test_different_bits_are_counted():
    a = np.ones((1, 1), np.float16)
    assert compared(a, a, a, a).different == 0
    assert compared(np.nextafter(a, np.float16(2)), a, a, a).different == 1
    zero = np.zeros((1, 1), np.float16)
    assert compared(zero, zero, zero, zero).share == 0


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ktpu-v13p", 0, 1, 1), "walk 0 1 1: M, K and N are 1 at least, for C[M, N] = A[M, K] @ B[N, K].T"),
        (("ktpu-v13p", 1, 1, -4), "walk 1 1 -4: M, K and N are 1 at least, for C[M, N] = A[M, K] @ B[N, K].T"),
        (("ktpu-v13p", 1, 1, 1, 0, -1), "walk 1 1 1: --seed -1: a seed is 0 or more"),
        (
            ("grid-8x8", 4, 4, 4),
            'walk 4 4 4: grid-8x8 has numerics = "grid", and instruction words are of the "ktpu" family; take '
            "--machine ktpu-v13p, or look at a graph for this machine with `meshwright show`",
        ),
        (
            ("ktpu-v13p", 3000, 3000, 3000),
            "walk 3000 3000 3000: 27,000,000,000 multiply-adds, and 9,000,000 elements in its largest matrix; products "
            f"of up to {MOST:,} and {MOST_ELEMENTS:,} are walked through, and larger ones are run: "
            'MeshGroup.open(machine, backend="simulator")',
        ),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(UsageError) as caught:
        product(*arguments)
    assert str(caught.value) == message


def without_clusters(meshes):
    machine = load("ktpu-v13p")
    for mesh in meshes:
        for at in machine.coords(mesh, "MG"):
            machine = machine.without_unit(mesh, at)
    return msgspec.structs.replace(machine, name="ktpu-v13p")


@pytest.mark.parametrize(
    ("meshes", "asked", "message"),
    [
        ([1], 1, "walk 4 4 4: mesh 1 of ktpu-v13p has no cluster; meshes 0, 3, 2 have"),
        ([0, 1, 2, 3], None, "walk 4 4 4: no mesh of ktpu-v13p has a cluster"),
        ([0, 1, 2, 3], 3, "walk 4 4 4: mesh 3 of ktpu-v13p has no cluster"),
    ],
)
def test_a_mesh_without_clusters(monkeypatch, meshes, asked, message):
    monkeypatch.setattr("meshwright.report.walk.load", lambda _: without_clusters(meshes))
    with pytest.raises(UsageError) as caught:
        product("ktpu-v13p", 4, 4, 4, asked)
    assert str(caught.value) == message


def test_the_first_mesh_that_has_clusters(monkeypatch):
    monkeypatch.setattr("meshwright.report.walk.load", lambda _: without_clusters([0]))
    assert product("ktpu-v13p", 4, 4, 4).mesh == 1


def test_a_mesh_that_is_not_there():
    with pytest.raises(MachineError, match=r"^ktpu-v13p has no mesh 7; its meshes are 0, 1, 3, 2$"):
        product("ktpu-v13p", 4, 4, 4, 7)


# The recording transport.


def test_what_passes_is_written_down_and_nothing_else():
    machine = load("ktpu-1")
    plain, recording = InProcess(Card(machine)), Recording(InProcess(Card(machine)))
    dram, caps = machine.host_addr(0, 0), recording.agents.register(0, registers.CAPS)
    assert recording.agents == plain.agents
    recording.submit([])
    assert recording.poll([]) == ()
    assert recording.collect([]) == ()
    assert recording.calls == []
    recording.write64(dram, 7)
    recording.write_block(dram + 8, np.arange(8, dtype=np.uint8))
    assert recording.read64(dram) == 7
    assert recording.read_block(dram + 8, 8) == bytes(range(8))
    found = recording.poll([caps])
    assert found == plain.poll([caps])
    word, block = Block(dram, (7).to_bytes(8, "little")), Block(dram + 8, bytes(range(8)))
    assert recording.calls == [
        Submit((word,)),
        Submit((block,)),
        Poll((word,)),
        Collect((block,)),
        Poll((Block(caps, found[0].to_bytes(8, "little")),)),
    ]
    assert Traffic.of(recording.calls) == Traffic(2, 2, 1, 16, 24)
    with pytest.raises(TransportError):
        recording.submit([(dram, b"short")])
    with pytest.raises(MachineError):
        recording.read64(8)
    assert len(recording.calls) == 5
    recording.close()
    with pytest.raises(TransportError, match="closed"):
        recording.read64(dram)


# Text.


def test_words_of_the_mirror():
    assert completion(0) == "nothing counted yet"
    assert completion(0x0100000002000401) == "code 1 BATCH_COMPLETE, arg 2, count 4, valid 1"
    assert completion(0x0400000007FFFF01) == "code 4 FAULT, arg 7, count 65535, valid 1"
    assert completion(0x4200000000000101) == "code 66 unknown, arg 0, count 1, valid 1"


def test_parts_as_markdown():
    page = [
        Heading("A", 1),
        Text("word " * 30),
        Listing("x = 1\n", "python"),
        Rows(("a", "b"), (("1|2", "3"),), numbers=("b",)),
    ]
    assert markdown(page) == (
        f"# A\n\n{('word ' * 23).rstrip()}\n{('word ' * 7).rstrip()}\n\n```python\nx = 1\n```\n\n"
        "| a | b |\n| --- | ---: |\n| 1\\|2 | 3 |\n"
    )


def test_aligned_and_cut():
    assert aligned([("a", "bb"), ("ccc", "d", "e")], indent=" ") == " a    bb\n ccc  d   e"
    rows = [(str(at), "", "") for at in range(20)]
    assert lines_or_some(rows, True) == rows
    assert lines_or_some(rows, False) == [*rows[:10], ("... and 9 more", "", ""), rows[-1]]

"""The comparison can fail: one thing wrong in a program or in what the host writes, and it says so."""

import msgspec
import numpy as np
import pytest

from meshwright import kernels
from meshwright.errors import MeshwrightError
from meshwright.evaluate.walk import evaluate
from meshwright.sharding import MeshGroup
from meshwright.simulator import MachineFault
from meshwright.simulator.arithmetic import ENTRY_BYTES
from meshwright.targets.ktpu.compiled import UnitWork
from meshwright.targets.ktpu.isa import Desc, Drain, Fill, Gemm, Imem
from meshwright.targets.ktpu.isa.vector import SetImmediate, decode_at
from meshwright.targets.ktpu.orders import Operand
from programs.cases import KTPU, graph_and_inputs, halves
from programs.compare import MACHINE, BitsDifferError, Comparison
from programs.mutants import (
    compiled_of,
    mutating,
    positions,
    with_offset,
    with_order,
    with_word,
    without_place,
)


def product():
    """An instance on every cluster, each of two blocks along K."""
    return graph_and_inputs(kernels.MatrixProduct((8, 8, 32)), [halves(1, 22, 64), halves(2, 14, 64)])


def chain():
    group = MeshGroup.open(MACHINE, 2)
    a, b = halves(1, 12, 128), halves(2, 20, 128)
    plan = group.plan_chain_reduce(group.split(a, 1), group.split(b, 1))
    graph = plan.graph()
    names = [graph.tensors[t].name for t in graph.inputs()]
    return graph, {name: tuple(np.split(x, 2, 1)) for name, x in zip(names, (a, b), strict=True)}


def rows():
    return graph_and_inputs(kernels.softmax(scale=0.3), [halves(1, 5, 40)])


def elements():
    return graph_and_inputs(kernels.gelu, [halves(1, 3, 50)])


def outcome(case, change):
    """What the comparison says of a graph whose programs are changed; None where it sees nothing."""
    graph, inputs = case
    comparison = Comparison(mutating(change))
    try:
        assert comparison.compare(graph, inputs, evaluate(graph, inputs, KTPU))
    except BitsDifferError:
        return "bits"
    except MachineFault:
        return "fault"
    except MeshwrightError as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("case", [product, chain, rows, elements])
def test_what_is_not_changed_is_the_same(case):
    assert outcome(case(), lambda compiled: compiled) is None


def found(case, kind):
    compiled = compiled_of(case[0], MACHINE)
    return [(number, at, word) for number, at, word in positions(compiled) if isinstance(word, kind)]


def test_every_fill_that_begins_an_entry_late_is_seen():
    case = product()
    seen = [
        outcome(case, lambda c, n=number, a=at: with_offset(c, n, a, ENTRY_BYTES))
        for number, at, _ in found(case, Fill)
    ]
    assert len(seen) >= 12
    assert set(seen) <= {"bits", "fault"}
    assert seen.count("bits") > len(seen) / 2, "at the end of an image it is memory that nobody wrote"


@pytest.mark.parametrize("field", ["eoff", "fbank", "sel"])
def test_every_fill_to_another_place_is_seen(field):
    case = product()
    for number, at, word in found(case, Fill):
        change = {field: getattr(word, field) ^ 1}
        assert outcome(case, lambda c, n=number, a=at, f=change: with_word(c, n, a, **f)), (number, at, word)


@pytest.mark.parametrize("field", ["aoff", "boff", "abank", "bbank", "acc", "gm", "gn", "nk"])
def test_every_product_of_something_else_is_seen(field):
    case = product()
    for number, at, word in found(case, Gemm):
        change = {field: getattr(word, field) ^ 1}
        assert outcome(case, lambda c, n=number, a=at, f=change: with_word(c, n, a, **f)), (number, at, word)


def test_every_drain_to_the_next_place_is_seen():
    case = product()
    for number, at, word in found(case, Drain):
        for change in (
            lambda c, n=number, a=at: with_offset(c, n, a, 32),
            lambda c, n=number, a=at, w=word: with_word(c, n, a, n=w.n - 1),
        ):
            assert outcome(case, change) in ("bits", "fault"), (number, at, word)


@pytest.mark.parametrize("field", ["addr", "n", "dbuf", "dst_x", "dst_y", "dmesh", "dfin", "dflags", "dack_x"])
def test_every_field_of_a_remote_drain_matters(field):
    case = chain()
    remote = [(number, at, word) for number, at, word in found(case, Drain) if word.dfin]
    assert remote
    for number, at, word in remote:
        change = {field: getattr(word, field) ^ 1}
        assert outcome(case, lambda c, n=number, a=at, f=change: with_word(c, n, a, **f)), (number, at, word)


def constants(case):
    """Where the second words of VSETI are: the constants of the code."""
    code = found(case, Imem)
    words = [word.word for _, _, word in code]
    at, places = 0, []
    while at < len(words):
        instruction, after = decode_at(words, at)
        if isinstance(instruction, SetImmediate):
            places.append(code[at + 1])
        at = after
    return places


def flipped(case, places, bit):
    """What is said of each word of code with one bit turned over."""
    return [
        outcome(case, lambda c, n=number, a=at, w=word: with_word(c, n, a, word=w.word ^ 1 << bit))
        for number, at, word in places
    ]


def test_one_bit_of_a_constant():
    """Of a polynomial, and counters of loops: bit 19 is in the exponent of a number."""
    case = elements()
    seen = flipped(case, constants(case)[::2], 19)
    assert len(seen) >= 10
    assert seen.count("bits") > len(seen) / 2
    assert seen.count(None) < len(seen) / 4


@pytest.mark.parametrize("case", [rows, elements])
def test_one_bit_of_the_code(case):
    """Bit 27 is in the opcode, or high in a constant."""
    case = case()
    seen = flipped(case, found(case, Imem)[::4], 27)
    assert seen.count("bits") > 3
    assert seen.count(None) < len(seen) / 6


@pytest.mark.parametrize("case", [rows, elements])
def test_every_walk_of_a_core_that_begins_a_word_late_is_seen(case):
    case = case()
    compiled = compiled_of(case[0], MACHINE)
    places = [
        (number, reference.word)
        for number, work in enumerate(compiled.works)
        if isinstance(work, UnitWork)
        for reference in work.code.references
    ]
    assert all(isinstance(compiled.works[number].code.program.words[at], Desc) for number, at in places)
    for number, at in places:
        assert outcome(case, lambda c, n=number, a=at: with_offset(c, n, a, 32)) in ("bits", "fault"), (number, at)


def test_an_operand_that_is_not_written_is_seen():
    case = product()
    compiled = compiled_of(case[0], MACHINE)
    for image, one in enumerate(compiled.images):
        if isinstance(one.order, Operand):
            assert outcome(case, lambda c, i=image: without_place(c, i)) == "fault"


def test_a_value_in_another_order_is_seen():
    """As many bytes, written for other instructions than those that read them."""
    case = graph_and_inputs(kernels.MatrixProduct((8, 8, 32)), [halves(1, 64, 64), halves(2, 64, 64)])
    compiled = compiled_of(case[0], MACHINE)
    operands = [(at, one.order) for at, one in enumerate(compiled.images) if isinstance(one.order, Operand)]
    at, order = operands[0]
    other = Operand(order.leading, msgspec.structs.replace(order.layout, groups=2 * order.layout.groups))
    assert other.nbytes == order.nbytes
    assert outcome(case, lambda c: with_order(c, at, other)) == "bits"


def test_a_result_that_is_compared_with_one_bit_changed():
    graph, inputs = product()
    wanted = evaluate(graph, inputs, KTPU)
    wanted["result"][0].flags.writeable = True
    wanted["result"][0].view(np.uint16)[3, 5] ^= 1
    with pytest.raises(BitsDifferError, match=r"1 of 308 elements differ; the first, \(3, 5\), is "):
        Comparison().compare(graph, inputs, wanted)

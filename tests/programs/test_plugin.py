"""`--programs`: what it meets, what it counts, and that a difference fails the session."""

from types import SimpleNamespace

import numpy as np
import pytest

from meshwright import kernels, targets
from meshwright.errors import PlacementError
from meshwright.evaluate.real import RealArithmetic
from meshwright.kernels import alone
from meshwright.runtime.cards import simulated
from meshwright.sharding import MeshGroup
from meshwright.targets.ktpu.isa import Gemm
from programs.cases import KTPU, halves
from programs.compare import MACHINE, BitsDifferError, Comparison, RefusedError
from programs.mutants import mutating, positions, with_word
from programs.plugin import Programs
from programs.test_mutations import rows

A, B = halves(1, 9, 64), halves(2, 7, 64)


@pytest.fixture
def plugin():
    programs = Programs()
    programs.start()
    yield programs
    programs.stop()


def product(arithmetic=KTPU):
    return alone.run_alone(kernels.MatrixProduct(), targets.placement(MACHINE, 0), arithmetic, [A, B])


def test_what_a_kernel_test_evaluates(plugin):
    product()
    product(RealArithmetic())
    assert plugin.comparison.tally.graphs == 1


def test_what_a_group_runs_in_either_arithmetic(plugin):
    for arithmetic in (None, RealArithmetic()):
        group = MeshGroup.open(MACHINE, 2, arithmetic)
        value = group.matmul(group.split(A, 1), group.split(B, 1))
        assert isinstance(value.parts[0].numpy(), np.ndarray)
        group.all_reduce(value)
    tally = plugin.comparison.tally
    assert tally.graphs == 4
    assert (tally.programs, tally.words) > (8, 20)
    assert tally.elements == 2 * (2 + 2) * 63
    assert tally.images > 4


def test_what_runs_as_programs_already_and_other_machines(plugin):
    group = MeshGroup.open(simulated(MACHINE), 1)
    group.each(kernels.transpose(), group.copy(A))
    MeshGroup.open("grid-2x4x4", 1).copy(A)
    grid = MeshGroup.open("grid-2x4x4", 1)
    grid.each(kernels.gelu, grid.copy(A))
    assert plugin.comparison.tally.graphs == 0


def test_a_difference_fails_the_test_and_the_session(plugin):
    def change(compiled):
        number, at, word = next(place for place in positions(compiled) if isinstance(place[2], Gemm))
        return with_word(compiled, number, at, nk=word.nk - 1)

    plugin.comparison = Comparison(mutating(change))
    with pytest.raises(BitsDifferError, match="'result', piece 0 on mesh 0: "):
        product()
    ((problem, tests),) = plugin.problems.items()
    assert problem.startswith("BitsDifferError: 'result', piece 0 on mesh 0: ")
    assert len(tests) == 1
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    # The card that met it is not used again, and the next one is another.
    plugin.comparison = Comparison()
    product()
    assert plugin.comparison.tally.graphs == 1


def test_a_refusal_without_a_reason_is_a_failure():
    graph, inputs = rows()
    comparison = Comparison()
    card = comparison.card()

    def refuse(_graph, _given=frozenset()):
        raise PlacementError("stage s1 can't be emitted for a vector core: it is Tuesday")

    card.card.backend.compiled = refuse
    with pytest.raises(RefusedError, match=r"has no reason for it: stage s1 .* Tuesday"):
        comparison.compare(graph, inputs, {"result": inputs["operand 0"]})


def test_the_switch_gives_everything_back():
    before = alone.evaluate
    programs = Programs()
    programs.start()
    assert alone.evaluate is not before
    programs.stop()
    assert alone.evaluate is before


def test_the_summary(plugin):
    product()
    lines = []
    plugin.pytest_terminal_summary(SimpleNamespace(section=lines.append, line=lambda text, **_: lines.append(text)))
    assert lines[:3] == ["programs", "1 graphs, 63 elements of results compared", lines[2]]
    assert lines[2].endswith("instruction words")
    assert lines[-1] == "0 graphs refused"

"""What crosses in a fold of pairs: the value and its index, both, and only from where the result isn't."""

import pytest

from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.formats import ElementType
from meshwright.ir.ids import ChipId
from meshwright.ir.moves import moves, reduced
from meshwright.ir.operation import Unit, combine
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import Spec
from meshwright.report.movement import chip_bytes

F32, I32 = ElementType.F32, ElementType.I32


def pair_fold(root):
    """An argmax of two chips' values and indices [4], f32 and i32, with its result on chip `root`."""
    build = GraphBuilder()
    specs = Spec(partial=Pool.ARGMAX)
    tensors = [build.tensor(n, (4,), f, (0, 1), specs) for n, f in (("values", F32), ("indices", I32))]
    ins = []
    for chip in (0, 1):
        for tensor, element in zip(tensors, (F32, I32), strict=True):
            ins.append(build.fifo(Site(ChipId(chip), 0, 0), (4,), element))
            build.load(tensor, whole((4,)), ins[-1])
    outs = [build.fifo(Site(ChipId(root), 0, 0), (4,), element) for element in (F32, I32)]
    build.stage(AllReduce(Pool.ARGMAX, tensors[0], combine(2, 1, Pool.ARGMAX, Unit.VECTOR)), ins, outs)
    for name, element, out in zip(("largest", "where"), (F32, I32), outs, strict=True):
        build.store(build.tensor(name, (4,), element, (root,)), whole((4,)), out)
    return build.graph()


@pytest.mark.parametrize("root", [0, 1])
def test_both_components_of_a_pair_cross_once(root):
    graph = pair_fold(root)
    assert chip_bytes(graph) == {(1 - root, root): 4 * 4 + 4 * 4}
    assert [(a, b) for _, a, b in moves(graph)] == [(1 - root, root)]


def test_only_a_reduce_folds():
    graph = pair_fold(0)
    with pytest.raises(TypeError, match="a Load folds nothing"):
        list(reduced(graph, graph.stages[0]))

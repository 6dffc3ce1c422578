"""Every rule of form: one malformed graph each, with all that is said about it."""

from __future__ import annotations

import pytest

from ir.malformed import MALFORMED, at
from ir.samples import SAMPLES
from meshwright.errors import GraphError
from meshwright.ir.form import faults, require_well_formed

SAID: dict[str, tuple[str, ...]] = {
    "dangling input": ("Remapped: stage s4: names buffer b9, and there are 5",),
    "dangling output": ("Remapped: stage s0: names buffer b-1, and there are 5",),
    "dangling bias": ("Remapped: stage s3: names buffer b5, and there are 5",),
    "dangling spill": ("Remapped: stage s3: names buffer b-2, and there are 5",),
    "dangling index": ("Remapped: stage s1: names buffer b99, and there are 12",),
    "dangling tensor of a load": ("Remapped: stage s0: names tensor t4, and there are 4",),
    "dangling tensor of a store": ("Remapped: stage s4: names tensor t-1, and there are 4",),
    "dangling tensor of an all-reduce": ("Remapped: stage s6: names tensor t4, and there are 4",),
    "dangling group of a load": ("Remapped: stage s0: names group g1, and there are 1",),
    "dangling group of a recv": ("Remapped: stage s1: names group g-1, and there are 1",),
    "dangling precedence": ("Remapped: a precedence names stage s5, and there are 5",),
    "two tensors of a name": ("Shapes: 2 tensors are called 'x'; a name is not empty and names one",),
    "tensor without a name": ("Shapes: 1 tensors are called ''; a name is not empty and names one",),
    "negative size": ("Shapes: tensor t0 'x': shape (8, -6) has a negative size",),
    "internal format in memory": ("Shapes: tensor t0 'x': fp22 is internal to a unit; DRAM can't hold it",),
    "tensor nowhere": ("Shapes: tensor t0 'x': chips () must name at least one chip, each once",),
    "tensor twice on a chip": ("Shapes: tensor t0 'x': chips (0, 0) must name at least one chip, each once",),
    "grid of another size": ("Shapes: tensor t0 'x': 1 specs over a rank grid (2,) don't go with 1 chips",),
    "spec missing": ("Shapes: tensor t0 'x': 1 specs over a rank grid (2, 1) don't go with 2 chips",),
    "uneven split": (
        "Shapes: tensor t0 'x': split of (4, 9) on axis 1 over 2 ranks: 9 is not a multiple of 2, and pieces "
        "must be equal. Pad axis 1 to 10 first, or copy the value.",
    ),
    "split on an axis that isn't there": (
        "Shapes: tensor t0 'x': split on axis 2 of a value of shape (4, 8): it has axes 0 to 1 only.",
    ),
    "block of nothing": (
        "Shapes: buffer b0: block shape (4, 0) must have axes, sizes of at least 1 and at most 2147483648 elements",
    ),
    "block without axes": (
        "Shapes: buffer b0: block shape () must have axes, sizes of at least 1 and at most 2147483648 elements",
    ),
    "block too large": (
        "Shapes: buffer b0: block shape (65536, 65536) must have axes, sizes of at least 1 and at most "
        "2147483648 elements",
    ),
    "depth of nothing": ("Shapes: buffer b0: depth 0 must be at least 1",),
    "rectangle inside out": ("GroupIsRectangle: group g0: (0, 0) to (-1, 0) is not a rectangle",),
    "rectangle too large": ("GroupIsRectangle: group g0: reaches (1099511627776, 0), past coordinate 1023",),
    "two consumers": ("Ports: buffer b3 is a FIFO with 1 producers and 2 consumers; one each",),
    "two producers": (
        "Ports: buffer b0 is a FIFO with 2 producers and 1 consumers; one each",
        "Ports: buffer b1 is taken from, but no stage puts blocks into it",
    ),
    "index that is a port as well": ("Ports: buffer b2 is a FIFO with 1 producers and 2 consumers; one each",),
    "no producer": ("Ports: buffer b2 is taken from, but no stage puts blocks into it",),
    "spill that is an input as well": ("Ports: buffer b0 is a FIFO with 2 producers and 2 consumers; one each",),
    "inputs at two sites": ("Ports: stage s3: its inputs are at 0:(0,0), 0:(1,0); a stage runs at one site",),
    "bias elsewhere": ("Ports: stage s3: the bias is at 0:(1,0), the stage at 0:(0,0)",),
    "index elsewhere": ("Ports: stage s1: index buffer b0 is at 0:(1,0), the stage at 0:(0,0)",),
    "output elsewhere": (
        "Ports: stage s3: it runs at 0:(0,0) and puts blocks at 0:(0,1); only a multicast or an AllReduce "
        "moves blocks between sites",
    ),
    "output on another chip": (
        "Ports: stage s7: it runs at 0:(0,0) and puts blocks at 1:(0,0); only a multicast or an AllReduce "
        "moves blocks between sites",
        "Ports: stage s8: chip 1 holds no piece of 'y' (chips (0,) do); name a rank to reach one",
    ),
    "load of a tensor that isn't on the chip": (
        "Ports: stage s0: chip 0 holds no piece of 'x' (chips (1,) do); name a rank to reach one",
    ),
    "load of a rank that isn't there": ("Ports: stage s0: rank 1 of 'x': it has ranks 0 to 0",),
    "load with an input": ("Ports: stage s0: a Load has no inputs",),
    "load without an output": ("Ports: stage s0: a Load has one output, not 0",),
    "load with two outputs": ("Ports: stage s0: a Load has one output, not 2",),
    "sender inside without a buffer": (
        "Ports: stage s0: the sender of g0 at 0:(0,0) is in it: a Load has 1 outputs there, not 0",
    ),
    "sender outside with a buffer": (
        "Ports: stage s0: the sender of g0 at 0:(0,0) is outside it: a Load has 0 outputs there, not 1",
    ),
    "sender's buffer elsewhere": ("Ports: stage s0: its output is at 0:(0,0), and the sender of g0 is 0:(1,0)",),
    "nobody receives": ("Ports: stage s0: nobody receives from g0",),
    "receivers of different blocks": (
        "Shapes: stage s0: the receivers of g0 take blocks of different shapes or formats",
        "Shapes: stage s9: operand 0: a block of (3, 2) along axes (0, 1) doesn't broadcast to (2, 3)",
    ),
    "receiver outside": (
        "Ports: stage s1: a Recv has no inputs and one output, at a site of g0's rectangle",
        "Ports: stage s9: it runs at 0:(0,1) and puts blocks at 0:(1,0); only a multicast or an AllReduce "
        "moves blocks between sites",
    ),
    "receiver with an input": (
        "Ports: stage s1: a Recv has no inputs and one output, at a site of g0's rectangle",
        "Shapes: stage s8: a Scalar stage without outputs does nothing",
    ),
    "more blocks than the pattern has": ("Shapes: stage s0: num_blocks is 7, and the pattern makes 6",),
    "load that casts": (
        "Shapes: stage s0: moves f16 'x' through a buffer of f32; moving does no arithmetic: cast in a Compute stage",
    ),
    "pattern of other axes": (
        "Shapes: stage s0: pattern over 'x': offset, box, step and every stride need 2 numbers, one an axis",
    ),
    "loop of other axes": (
        "Shapes: stage s0: pattern over 'x': offset, box, step and every stride need 2 numbers, one an axis",
    ),
    "empty box": (
        "Shapes: stage s0: pattern over 'x': box (4, 0) and steps (1, 1) must be at least 1",
        "Shapes: stage s0: pattern over 'x': box (4, 0) doesn't fill a block of (4, 2)",
    ),
    "step of nothing": ("Shapes: stage s0: pattern over 'x': box (4, 2) and steps (0, 1) must be at least 1",),
    "negative extent": (
        "Shapes: stage s0: pattern over 'x': loop extents [-1, -6] must not be negative or make over 2147483648 blocks",
    ),
    "too many blocks": (
        "Shapes: stage s0: pattern over 'x': loop extents [1048576, 1048576] must not be negative or make "
        "over 2147483648 blocks",
    ),
    "box that isn't the block": ("Shapes: stage s0: pattern over 'x': box (2, 4) doesn't fill a block of (4, 2)",),
    "gather along no axis": ("Shapes: stage s1: gathers along axis 2 of 'table', which has 2 axes",),
    "gather whose box has too few axes": (
        "Shapes: stage s1: pattern over 'table': offset, box, step and every stride need 2 numbers, one an axis",
    ),
    "gather with too few indices": ("Shapes: stage s1: index blocks of b0 hold 2, the box takes 4",),
    "gather by floats": (
        "Shapes: stage s1: index buffer b0 holds f32; indices are whole numbers (i32)",
        "Shapes: stage s4: index buffer b4 holds f32; indices are whole numbers (i32)",
    ),
    "store with an output": ("Ports: stage s4: a Store has one input and no outputs, not 1 and 1",),
    "sub-blocks that don't tile": ("Shapes: stage s4: sub-blocks (3, 4) don't tile a block of (4, 4)",),
    "sub-blocks of a matmul that don't tile": ("Shapes: stage s3: sub-blocks (0, 4) don't tile a block of (4, 4)",),
    "matmul of one operand": (
        "Ports: stage s3: a Matmul has inputs a, b and maybe its accumulator, and one output; not 1 and 1",
    ),
    "matmul of nothing": ("Shapes: stage s3: block (4, 4, 2) and contraction_blocks 0 must be at least 1",),
    "matmul of another block": (
        "Shapes: stage s3: a has blocks of (4, 2); block (4, 4, 3) needs (4, 3)",
        "Shapes: stage s3: b has blocks of (4, 2); block (4, 4, 3) needs (4, 3)",
    ),
    "matmul of indices": ("Shapes: stage s3: a holds i32; a Matmul multiplies floats",),
    "matmul out of an accumulator": ("Ports: stage s2: a and b come from FIFOs, not from a resident accumulator",),
    "matmul continues another accumulator": (
        "Ports: stage s2: its third input is the resident accumulator that it continues, which has to be its "
        "output too",
    ),
    "matmul continues a FIFO": (
        "Shapes: stage s2: pattern over 'bias': box (1, 4) doesn't fill a block of (4, 4)",
        "Ports: stage s3: its third input is the resident accumulator that it continues, which has to be its "
        "output too",
    ),
    "epilogue into an accumulator": (
        "Ports: stage s2: a resident accumulator holds bare sums: bias and epilogue belong to the stage that "
        "takes them out",
    ),
    "bias of another shape": ("Shapes: stage s3: bias blocks are (4, 1); (1, 4) or (4, 4) can be added",),
    "spill that is resident": (
        "Shapes: stage s3: spill buffer b4 must be a FIFO of (4, 4) float blocks at the stage's site",
    ),
    "spill of another shape": (
        "Shapes: stage s3: spill buffer b4 must be a FIFO of (4, 4) float blocks at the stage's site",
    ),
    "epilogue of two operands": ("Ports: stage s3: an expression reads operand 1, and there are 1",),
    "generic of too few maps": ("Ports: stage s7: 1 expressions over 0 operands don't go with 1 inputs and 1 outputs",),
    "generic outputs of two shapes": ("Shapes: stage s7: outputs have different blocks: [(4, 2), (2, 4)]",),
    "generic map that names an axis twice": (
        "Shapes: stage s7: operand 0: map (0, 0) can't place a block of (4, 2) in an output block of (4, 2)",
    ),
    "generic map that doesn't broadcast": (
        "Shapes: stage s7: operand 0: a block of (4, 2) along axes (1, 0) doesn't broadcast to (4, 2)",
    ),
    "generic of an operand that isn't there": ("Ports: stage s7: an expression reads operand -1, and there are 1",),
    "predicate as a value's part": (
        "Shapes: stage s7: (($0 < 0) + $0) takes a number where it is given a predicate: ($0 < 0)",
    ),
    "number as a predicate": ("Shapes: stage s7: select($0, $0, $0) takes a predicate where it is given a number: $0",),
    "number negated as a predicate": ("Shapes: stage s7: not($0) takes a predicate where it is given a number: $0",),
    "predicate as a value": (
        "Shapes: stage s7: ($0 < 0) is a predicate, and elements are numbers: select one of two by it",
    ),
    "predicate as an epilogue": (
        "Shapes: stage s3: ($0 < 0) is a predicate, and elements are numbers: select one of two by it",
    ),
    "accumulator that multiplies": (
        "Shapes: stage s7: an accumulator can only add; other arithmetic needs Unit.VECTOR",
        "Shapes: stage s8: moves f32 'y' through a buffer of fp22; moving does no arithmetic: cast in a Compute stage",
    ),
    "accumulator of floats": ("Shapes: stage s7: an accumulator adds accumulator words (fp22) only",),
    "reduce into two outputs": ("Ports: stage s7: a sum Reduce has one input and 1 outputs, not 1, 2",),
    "reduce along no axis": ("Shapes: stage s7: axes () of a block of (1, 2, 3)",),
    "reduce along an axis twice": ("Shapes: stage s7: axes (2, 2) of a block of (1, 2, 3)",),
    "reduce of no blocks": ("Shapes: stage s7: blocks=0 must be at least 1",),
    "reduce into another shape": (
        "Shapes: stage s7: outputs have blocks of [(1, 2, 1)]; reducing axes (1,) of (1, 2, 3) gives (1, 1, 3)",
    ),
    "argmax along two axes": ("Shapes: stage s2: an argmax runs along one axis, not (0, 1)",),
    "argmax position that is a float": (
        "Shapes: stage s2: the second output of an argmax holds positions (i32), not f32",
    ),
    "permute of two inputs": (
        "Ports: stage s7: a Permute has one input and one output, not 2 and 1",
        "Shapes: stage s8: reads input port 0, which isn't there",
    ),
    "permute of a grid of other axes": ("Shapes: stage s7: grid (3,) and axes (0, 1) don't go with blocks of (2, 1)",),
    "permute of no permutation": ("Shapes: stage s7: grid (1, 3) and axes (0, 0) don't go with blocks of (2, 1)",),
    "permute cut unevenly": ("Shapes: stage s7: an array of (2, 2) is not cut evenly by output blocks of (2, 3)",),
    "permute that casts": ("Shapes: stage s7: moves f32 into f16; a Permute does no arithmetic",),
    "all-reduce of nothing": (
        "Ports: stage s6: inputs on chips []: one contribution a chip (1 buffers each) is needed",
    ),
    "all-reduce twice on a chip": (
        "Ports: stage s6: inputs on chips [0, 0]: one contribution a chip (1 buffers each) is needed",
    ),
    "all-reduce of half a pair": (
        "Ports: stage s6: inputs on chips [0, 1]: one contribution a chip (2 buffers each) is needed",
    ),
    "combine of another pool": (
        "CombineMatchesPool: stage s6: its combine is not the max fold of 2 operands in port order",
    ),
    "combine of too few": (
        "CombineMatchesPool: stage s6: its combine is not the sum fold of 2 operands in port order",
        "Ports: stage s6: 1 expressions over 1 operands don't go with 2 inputs and 1 outputs",
    ),
    "combine in another order": (
        "CombineMatchesPool: stage s6: its combine is not the sum fold of 2 operands in port order",
    ),
    "all-reduce into nothing": (
        "Ports: stage s6: it has outputs on chips []: one (rooted) or one on every chip taking part",
    ),
    "all-reduce into a chip that takes no part": (
        "Ports: stage s6: outputs on chips [2] that don't take part ([0, 1])",
    ),
    "all-reduce of a torn pair": (
        "Ports: stage s6: inputs on chips [0, 1]: one contribution a chip (2 buffers each) is needed",
    ),
    "all-reduce into a torn pair": (
        "Ports: stage s6: the 2 components of one of its results are on different chips",
        "Shapes: stage s8: reads input port 0, which isn't there",
    ),
    "all-reduce of different blocks": (
        "Shapes: stage s5: the output has blocks of (2, 2); block (4, 2, 4) needs (4, 2)",
        "Shapes: stage s6: operand 1: a block of (2, 2) along axes (0, 1) doesn't broadcast to (4, 2)",
    ),
    "program without outputs": (
        "Shapes: stage s8: a Scalar stage without outputs does nothing",
        "Shapes: stage s8: writes output port 0, and there are 0",
    ),
    "program of too many registers": ("Shapes: stage s8: 257 registers; 0 to 256 are possible",),
    "program of a register that isn't there": (
        "Shapes: stage s8: names register 2, and there are 2",
        "Shapes: stage s8: names register 9, and there are 2",
    ),
    "program of a port that isn't there": ("Shapes: stage s8: reads input port 1, which isn't there",),
    "program of an output that isn't there": ("Shapes: stage s8: reads output port -1, which isn't there",),
    "program that writes an output that isn't there": ("Shapes: stage s8: writes output port 1, and there are 1",),
    "program that repeats less than never": ("Shapes: stage s8: repeats -1 times",),
    "program that repeats too often": (
        "Shapes: stage s8: takes more than 1048576 steps a firing, which is the most that is possible",
    ),
    "program of a number too large": ("Shapes: stage s8: names a number that doesn't fit 64 bits",),
}


def test_every_malformed_graph_is_told_about() -> None:
    assert sorted(SAID) == sorted(MALFORMED)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_have_no_faults(name: str) -> None:
    assert faults(SAMPLES[name]()) == ()
    require_well_formed(SAMPLES[name]())


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_graphs_are_refused_with_stage_and_reason(name: str) -> None:
    sample, change = MALFORMED[name]
    graph = change(SAMPLES[sample]())
    assert tuple(map(str, faults(graph))) == SAID[name]
    with pytest.raises(GraphError) as error:
        require_well_formed(graph)
    assert str(error.value) == "this graph is not well formed:\n  " + "\n  ".join(SAID[name])
    for fault in faults(graph):
        assert (fault.stage is None) == (": stage s" not in str(fault))


def test_only_the_first_faults_are_shown() -> None:
    graph = SAMPLES["multicast_rows"]()
    for index in range(7):
        graph = at("buffers", index, depth=0)(graph)
    with pytest.raises(GraphError) as error:
        require_well_formed(graph)
    lines = [f"  Shapes: buffer b{i}: depth 0 must be at least 1" for i in range(5)]
    assert str(error.value).splitlines() == ["this graph is not well formed:", *lines, "  and 2 more"]

"""One decoder layer of a language model as a stage graph: whole on one mesh, or tensor-parallel over several.

RMS norm, attention with rotary positions and a mask, RMS norm, gated feed-forward; weights are stored [N][K]. Over n
meshes the heads and the hidden columns of the feed-forward are split, and the two products that contract over them are
summed over the meshes in their accumulators. Blocks are whole matrices: capacities are no part of what is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.ir import library
from meshwright.ir.build import GraphBuilder, whole
from meshwright.ir.expression import Expr, Operand
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, StageId, TensorId
from meshwright.ir.operation import Generic, Matmul, Reduce, Unit, combine
from meshwright.ir.pattern import Affine, Loop
from meshwright.ir.pool import Pool
from meshwright.ir.records import AllReduce, Site
from meshwright.ir.spec import COPIED, Spec

F32 = ElementType.F32


@dataclass(frozen=True)
class Sizes:
    """Of one layer; `hidden` is heads times the size of a head."""

    tokens: int
    heads: int
    head: int
    feed_forward: int

    @property
    def hidden(self) -> int:
        return self.heads * self.head

    @property
    def multiply_adds(self) -> int:
        """Of all products, weights and attention."""
        weights = self.hidden * (4 * self.hidden + 3 * self.feed_forward)
        return self.tokens * (weights + 2 * self.tokens * self.hidden)


LLAMA_2_7B = Sizes(tokens=16, heads=32, head=128, feed_forward=11008)


@dataclass(frozen=True)
class Value:
    """A [rows, columns] or [heads, rows, columns] value in DRAM, and the stages that store one chip's piece of it."""

    tensor: TensorId
    shape: tuple[int, ...]
    stores: dict[int, StageId]


def decoder_layer(sizes: Sizes, meshes: int = 1, drop: int | None = None) -> Graph:
    """The layer over `meshes` meshes. drop: a mesh whose summand of the last reduction is left out, to be found."""
    return _Layer(sizes, meshes, drop).graph()


class _Layer:
    def __init__(self, sizes: Sizes, meshes: int, drop: int | None) -> None:
        self.sizes, self.meshes, self.drop = sizes, meshes, drop
        self.builder = GraphBuilder()
        self.chips = tuple(range(meshes))

    def graph(self) -> Graph:
        s, rows, columns = self.sizes, Spec.on(0), Spec.on(1)
        hidden, wide = s.hidden, s.feed_forward
        x = self.given("x", (s.tokens, hidden))
        n = self.norm(x, self.given("attention_norm", (1, hidden)))
        q, k, v = (self.linear(n, self.given(w, (hidden, hidden), rows), w) for w in ("wq", "wk", "wv"))
        context = self.attention(self.rotated(q, "q"), self.rotated(k, "k"), v)
        h = self.summed(context, self.given("wo", (hidden, hidden), columns), x, "h", None)
        n = self.norm(h, self.given("feed_forward_norm", (1, hidden)))
        gate, up = (self.linear(n, self.given(w, (wide, hidden), rows), w) for w in ("w_gate", "w_up"))
        gated = self.each(library.silu(Operand(0)) * Operand(1), [gate, up], "gated")
        self.summed(gated, self.given("w_down", (hidden, wide), columns), h, "y", self.drop)
        return self.builder.graph()

    def given(self, name: str, shape: tuple[int, ...], spec: Spec = COPIED) -> Value:
        tensor = self.builder.tensor(name, shape, F32, self.chips, spec)
        return Value(tensor, spec.local(shape, self.meshes), {})

    def made(self, name: str, shape: tuple[int, ...], spec: Spec) -> Value:
        """A value whose pieces have `shape`, to be stored."""
        logical = tuple(n * self.meshes if spec.axis == axis else n for axis, n in enumerate(shape))
        return Value(self.builder.tensor(name, logical, F32, self.chips, spec), shape, {})

    def site(self, chip: int) -> Site:
        return Site(ChipId(chip), 0, 0)

    def load(self, value: Value, chip: int, pattern: Affine | None = None, block: Sequence[int] = ()) -> BufferId:
        pattern = pattern or whole(value.shape)
        out = self.builder.fifo(self.site(chip), block or pattern.box, F32)
        self.builder.load(value.tensor, pattern, out, after=[value.stores[chip]] if value.stores else ())
        return out

    def store(self, value: Value, chip: int, source: BufferId, pattern: Affine | None = None) -> None:
        value.stores[chip] = self.builder.store(value.tensor, pattern or whole(value.shape), source)

    def generic(
        self, chip: int, expr: Expr, ins: Sequence[BufferId], block: Sequence[int], after: BufferId | None = None
    ) -> BufferId:
        out = self.builder.fifo(self.site(chip), block, F32)
        self.builder.compute(Generic.elementwise(expr, len(ins), len(block)), ins, (out,))
        return out

    def reduced(self, chip: int, pool: Pool, source: BufferId) -> BufferId:
        block = self.builder.block(source)
        out = self.builder.fifo(self.site(chip), (*block[:-1], 1), F32)
        self.builder.compute(Reduce(pool, (len(block) - 1,)), (source,), (out,))
        return out

    def each(self, expr: Expr, operands: Sequence[Value], name: str) -> Value:
        made = self.made(name, operands[0].shape, Spec.on(1))
        for chip in self.chips:
            self.store(made, chip, self.generic(chip, expr, [self.load(o, chip) for o in operands], made.shape))
        return made

    def norm(self, x: Value, gain: Value) -> Value:
        made = self.made(f"norm of {x.tensor}", x.shape, COPIED)
        for chip in self.chips:
            squares = self.generic(chip, Operand(0) * Operand(0), [self.load(x, chip)], x.shape)
            total = self.reduced(chip, Pool.SUM, squares)
            mean = Operand(0) * (1.0 / x.shape[1]) + 1e-5
            root = self.generic(chip, library.rsqrt(mean), [total], self.builder.block(total))
            operands = [self.load(x, chip), root, self.load(gain, chip)]
            self.store(made, chip, self.generic(chip, Operand(0) * Operand(1) * Operand(2), operands, x.shape))
        return made

    def linear(self, x: Value, weight: Value, name: str) -> Value:
        (rows, depth), columns = x.shape, weight.shape[0]
        made = self.made(f"{name} x", (rows, columns), Spec.on(1))
        for chip in self.chips:
            out = self.builder.fifo(self.site(chip), made.shape, F32)
            op = Matmul((rows, columns, depth), 1, b_transposed=True)
            self.builder.compute(op, (self.load(x, chip), self.load(weight, chip)), (out,))
            self.store(made, chip, out)
        return made

    def heads(self, value: Value, start: int, size: int) -> Affine:
        """Columns `start` to `start + size` of every head, a block a head."""
        count = value.shape[1] // self.sizes.head
        return Affine((0, start), (value.shape[0], size), (Loop(count, (0, self.sizes.head)),))

    def rotated(self, x: Value, name: str) -> Value:
        # By head, so that each product with another head's runs over all that its piece has along its contraction.
        half = self.sizes.head // 2
        shape = (x.shape[1] // self.sizes.head, x.shape[0], self.sizes.head)
        made = self.made(f"{name} rotated", shape, Spec.on(0))
        angles = [self.angles(f"{which} of {name}", half) for which in ("cos", "sin")]
        count = x.shape[1] // self.sizes.head
        for chip in self.chips:
            for start, other, sign in ((0, half, -1.0), (half, 0, 1.0)):
                again = Affine((0, 0), (x.shape[0], half), (Loop(count, (0, 0)),))
                operands = [self.load(x, chip, self.heads(x, at, half)) for at in (start, other)]
                operands += [self.load(angle, chip, again) for angle in angles]
                turned = Operand(0) * Operand(2) + Operand(1) * Operand(3) * sign
                out = self.generic(chip, turned, operands, (x.shape[0], half))
                place = Affine((0, 0, start), (1, x.shape[0], half), (Loop(count, (1, 0, 0)),))
                stage = self.builder.store(made.tensor, place, out)
                if start:
                    self.builder.precede(made.stores[chip], stage)
                made.stores[chip] = stage
        return made

    def angles(self, name: str, half: int) -> Value:
        return self.given(name, (self.sizes.tokens, half))

    def attention(self, q: Value, k: Value, v: Value) -> Value:
        count, tokens, head = q.shape
        mask = self.given("mask", (tokens, tokens))
        scores = self.made("scores", (count, tokens, tokens), Spec.on(0))
        exps = self.made("exponentials", scores.shape, Spec.on(0))
        made = self.made("context", v.shape, Spec.on(1))
        block = (tokens, tokens)
        matrices = Affine((0, 0, 0), (1, *block), (Loop(count, (1, 0, 0)),))
        again = Affine((0, 0), block, (Loop(count, (0, 0)),))
        for chip in self.chips:
            each = Affine((0, 0, 0), (1, tokens, head), (Loop(count, (1, 0, 0)),))
            operands = [self.load(x, chip, each, (tokens, head)) for x in (q, k)]
            product = self.builder.fifo(self.site(chip), block, F32)
            scale = Operand(0) * head**-0.5
            op = Matmul((tokens, tokens, head), 1, b_transposed=True, epilogue=scale)
            self.builder.compute(op, operands, (product,))
            masked = self.generic(chip, Operand(0) + Operand(1), [product, self.load(mask, chip, again)], block)
            self.store(scores, chip, masked, matrices)
            highest = self.reduced(chip, Pool.MAX, self.load(scores, chip, matrices, block))
            rows = self.load(scores, chip, matrices, block)
            exponentials = self.generic(chip, library.exp(Operand(0) - Operand(1)), [rows, highest], block)
            self.store(exps, chip, exponentials, matrices)
            total = self.reduced(chip, Pool.SUM, self.load(exps, chip, matrices, block))
            again_exps = self.load(exps, chip, matrices, block)
            weights = self.generic(chip, library.divide(Operand(0), Operand(1)), [again_exps, total], block)
            values = self.load(v, chip, self.heads(v, 0, head))
            out = self.builder.fifo(self.site(chip), (tokens, head), F32)
            self.builder.compute(Matmul((tokens, head, tokens), 1), (weights, values), (out,))
            self.store(made, chip, out, self.heads(made, 0, head))
        return made

    def summed(self, x: Value, weight: Value, residual: Value, name: str, drop: int | None) -> Value:
        """The product with a weight whose contraction is split, summed over the meshes, plus the residual."""
        (rows, depth), columns = x.shape, weight.shape[0]
        made = self.made(name, (rows, columns), COPIED)
        op = Matmul((rows, columns, depth), 1, b_transposed=True)
        sums = [self.builder.accumulator(self.site(chip), (rows, columns)) for chip in self.chips]
        for chip, into in zip(self.chips, sums, strict=True):
            self.builder.compute(op, (self.load(x, chip), self.load(weight, chip)), (into,))
        adding = [b for chip, b in zip(self.chips, sums, strict=True) if chip != drop]
        if len(adding) > 1:
            fold = combine(len(adding), 2, Pool.SUM, Unit.ACCUMULATOR)
            self.builder.stage(AllReduce(Pool.SUM, made.tensor, fold), adding, adding)
        for chip, total in zip(self.chips, sums, strict=True):
            operands = [total, self.load(residual, chip)]
            self.store(made, chip, self.generic(chip, Operand(0) + Operand(1), operands, (rows, columns)))
        return made

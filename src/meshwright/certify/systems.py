"""Random inputs for two graphs that are to be compared, in residues or in real numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from meshwright.certify.pieces import contribution_count, pool_of, split_logical
from meshwright.errors import EvaluationError
from meshwright.evaluate import field_numbers as field
from meshwright.evaluate.arithmetic import Arithmetic, Array, Typed
from meshwright.evaluate.field import FieldArithmetic, Hashed
from meshwright.evaluate.real import RealArithmetic
from meshwright.ir.expression import Binary, BinaryOp, Operand, Unary, UnaryOp
from meshwright.ir.formats import ElementType
from meshwright.ir.graph import Graph
from meshwright.ir.operation import Unit
from meshwright.ir.pool import Pool
from meshwright.ir.records import Tensor


class System(Protocol):
    """A number system to draw inputs in."""

    @property
    def seed(self) -> int:
        """What the draw depends on."""
        ...

    @property
    def arithmetic(self) -> Arithmetic:
        """What graphs are evaluated in."""
        ...

    def draw(self, name: str, shape: Sequence[int], reuse: Array | None = None) -> Array:
        """Random elements, the same ones for the same name and shape; `reuse` may be overwritten with them."""
        ...


class FieldSystem(Struct, frozen=True, eq=False):
    """Residues, all equally likely."""

    seed: int
    constants: tuple[float, ...] = ()
    hashed: Hashed | None = None

    @property
    def arithmetic(self) -> FieldArithmetic:
        """Of this seed."""
        return FieldArithmetic(self.seed, self.constants, self.hashed)

    def draw(self, name: str, shape: Sequence[int], reuse: Array | None = None) -> Array:
        """Residues, from a counter-based generator."""
        return field.generate(shape, field.keys_of(self.seed, "input", name), reuse)


class RealSystem(Struct, frozen=True, eq=False):
    """float64: normally distributed, scaled so that products keep their size; or all positive."""

    seed: int
    positive: bool = False

    @property
    def arithmetic(self) -> RealArithmetic:
        """float64."""
        return RealArithmetic()

    def draw(self, name: str, shape: Sequence[int], reuse: Array | None = None) -> Array:
        """Numbers around zero of variance 1 / (last axis), or in [0.25, 1.25) over the root of that axis."""
        random = np.random.default_rng(field.keys_of(self.seed, "input", name))
        scale = max(shape[-1], 1) ** -0.5 if len(shape) > 1 else 1.0
        if self.positive:
            return (random.random(tuple(shape)) + 0.25) * scale
        return random.standard_normal(tuple(shape)) * scale


class Inputs(Struct, frozen=True, eq=False):
    """The whole value of every input, by the reference's names."""

    values: dict[str, Array]

    def with_value(self, name: str, value: Array) -> Inputs:
        """The same inputs but for one."""
        return Inputs({**self.values, name: value})


def draw_inputs(
    system: System,
    tensors: Mapping[str, Tensor],
    ranges: Mapping[str, tuple[int, int]],
    reuse: Inputs | None = None,
) -> Inputs:
    """Random inputs. ranges: for each input of whole numbers the lowest one and one past the highest.

    reuse: inputs that are no longer needed, whose arrays may be overwritten.
    """
    values: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.format.is_integer:
            # Positions are the same in every number system; what differs between draws is the seed.
            random = np.random.default_rng(field.keys_of(system.seed, "positions", name))
            low, high = ranges[name]
            values[name] = random.integers(low, high, tensor.shape, dtype=np.int64)
        else:
            values[name] = system.draw(name, tensor.shape, None if reuse is None else reuse.values.get(name))
    return Inputs(values)


def split_inputs(
    system: System, graph: Graph, inputs: Inputs, names: Mapping[str, str]
) -> dict[str, tuple[Array, ...]]:
    """The pieces of every input that the graph has, by its own names; `names` gives them where they differ."""
    given: dict[str, tuple[Array, ...]] = {}
    for name, value in inputs.values.items():
        here = names.get(name, name)
        if any(t.name == here for t in graph.tensors):  # A graph that reads an input less shows it in its results.
            tensor = tensor_named(graph, here)
            given[here] = split_logical(tensor, _summands(system, tensor, name, value))
    return given


def _summands(system: System, tensor: Tensor, name: str, value: Array) -> list[Array]:
    """Contributions that fold into `value`: random ones, and one that makes up for them."""
    pool, count = pool_of(tensor), contribution_count(tensor)
    if pool is None or count == 1:
        return [value] * count
    if tensor.format.is_integer:
        raise EvaluationError(f"{name!r} is {tensor.format} and partial; positions are not summed up over ranks")
    others = [system.draw(f"{name} of {number}", tensor.shape) for number in range(count - 1)]
    if pool in (Pool.MAX, Pool.MIN):
        bound = BinaryOp.MIN if pool is Pool.MAX else BinaryOp.MAX
        return [*(_elementwise(system, bound, value, other) for other in others), value]
    op, back = (BinaryOp.ADD, UnaryOp.NEG) if pool is Pool.SUM else (BinaryOp.MUL, UnaryOp.RECIPROCAL)
    rest = value
    for other in others:
        rest = _elementwise(system, op, rest, other, back)
    return [*others, rest]


def _elementwise(system: System, op: BinaryOp, a: Array, b: Array, back: UnaryOp | None = None) -> Array:
    second = Operand(1) if back is None else Unary(back, Operand(1))
    typed = [Typed(x, ElementType.F32) for x in (a, b)]
    return system.arithmetic.elementwise([Binary(op, Operand(0), second)], typed, [ElementType.F32], Unit.VECTOR)[0]


def fold(system: System, format: ElementType, pool: Pool, stacked: Array) -> Array:
    """[..., L] folded along the last axis in the number system."""
    return system.arithmetic.fold(pool, Typed(stacked, format), [format])[0]


def tensor_named(graph: Graph, name: str) -> Tensor:
    """The record of a tensor; `KeyError` where there is none."""
    return graph.tensors[graph.tensor_id(name)]

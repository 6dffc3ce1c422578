"""Every kernel of `meshwright.kernels` with operands to try it on, for `sweep`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright import kernels
from meshwright.ir import library
from meshwright.ir.expression import Operand
from meshwright.ir.formats import ElementType
from meshwright.kernels.elementwise import Elementwise
from meshwright.kernels.kernel import Kernel, Shaped


class Sample(Struct, frozen=True):
    """A kernel with the operands that it is tried on.

    operands: shapes whose axes divide by 2 and 4 and whose slices have at least two elements, so that no slice
    broadcasts by accident; axes that don't belong together differ in size. whole: for operands of whole numbers, the
    bound that they stay below.
    """

    kernel: Kernel
    operands: tuple[Shaped, ...]
    whole: int = 0

    def __str__(self) -> str:
        return f"{self.kernel.name}({', '.join(map(str, self.operands))})"


def catalogue() -> tuple[Sample, ...]:
    """Samples of every kernel that `meshwright.kernels` exports; compositions are made of these."""
    unary = [_sample(k, (8, 16)) for k in _exported_elementwise(1)]
    binary = [_sample(k, (8, 16), (8, 16)) for k in _exported_elementwise(2)]
    return (
        *unary,
        *binary,
        *(_sample(k, (8, 16), (16,)) for k in (kernels.add, kernels.multiply, kernels.maximum)),
        *(_sample(k, (), ()) for k in (kernels.add, kernels.multiply, kernels.minimum)),
        *(_sample(kernel, *(((8, 16),) * kernel.count)) for kernel in _EXPRESSIONS),
        _sample(kernels.scale(2.0), (8, 16)),
        _sample(kernels.scale(-2.0), (8, 16)),
        _sample(kernels.MatrixProduct(), (8, 32), (16, 32)),
        _sample(kernels.MatrixProduct(), (4, 8, 32), (4, 16, 32)),
        _sample(kernels.MatrixProduct(), (4, 8, 32), (16, 32)),
        _sample(kernels.convolution(padding=1), (4, 8, 8, 16), (12, 3, 3, 16)),
        *(_sample(kernels.reduce(fold, axis), (8, 16)) for fold in ("sum", "mean", "max", "min") for axis in (0, 1)),
        _sample(kernels.reduce("sum", 1, keep=True), (8, 16, 4)),
        _sample(kernels.softmax(), (8, 16)),
        _sample(kernels.softmax(0, scale=0.5), (8, 16)),
        _sample(kernels.softmax(), (8, 16), (16,)),
        _sample(kernels.layer_norm(), (8, 16), (16,), (16,)),
        _sample(kernels.layer_norm(), (8, 16), (8, 16), (16,), (16,)),
        _sample(kernels.rms_norm(), (8, 16), (16,)),
        _sample(kernels.rms_norm(), (8, 16), (8, 16), (16,)),
        _sample(kernels.rotary(), (4, 8, 16), (8, 8), (8, 8)),
        _sample(kernels.rotary(interleaved=True), (8, 16), (8, 8), (8, 8)),
        _sample(kernels.transpose(), (8, 16)),
        _sample(kernels.transpose(2, 0, 1), (4, 8, 16)),
        _sample(kernels.split_heads(4), (4, 8, 32)),
        _sample(kernels.split_heads_transposed(4), (4, 8, 32)),
        _sample(kernels.merge_heads(), (4, 8, 12, 16)),
        _sample(kernels.concat(0), (8, 16), (4, 16)),
        _sample(kernels.concat(1), (8, 16), (8, 12)),
        _sample(kernels.slice(1, 2, 10), (8, 16)),
        Sample(kernels.embedding, (_floats((16, 8)), Shaped((4, 12), ElementType.I32)), whole=16),
    )


_X, _Y, _Z = Operand(0), Operand(1), Operand(2)
_EXPRESSIONS = (
    Elementwise("x + 1", _X + 1.0, 1),
    Elementwise("x * y + 1", _X * _Y + 1.0, 2),
    Elementwise("x - y * 0.5", _X - _Y * 0.5, 2),
    Elementwise("x * exp(y)", _X * library.exp(_Y), 2),
    Elementwise("|x|", library.absolute(_X), 1),
    Elementwise("x where z > 0, else y", library.select(_Z > 0.0, _X, _Y), 3),
)


def _exported_elementwise(count: int) -> list[Elementwise]:
    found = [getattr(kernels, name) for name in kernels.__all__]
    return [kernel for kernel in found if isinstance(kernel, Elementwise) and kernel.count == count]


def _sample(kernel: Kernel, *shapes: Sequence[int]) -> Sample:
    return Sample(kernel, tuple(map(_floats, shapes)))


def _floats(shape: Sequence[int]) -> Shaped:
    return Shaped(tuple(shape), ElementType.F16)

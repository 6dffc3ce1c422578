"""What each format of golden vector file claims: our result beside the machine's, array by array.

A check takes a file's arrays and a backend and yields pairs (ours, the machine's) of integers. What the arrays mean
is written in tests/golden/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import NumericsError
from meshwright.numerics import fp22, lane, mxfp7, product

Arrays = Mapping[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]
Check = Callable[[Arrays, str], Iterator[Pair]]
Groups = dict[str, dict[str, NDArray[Any]]]

_ONE_E8M15: Final = 127 << 15
_REDUCTIONS: Final = ("sum", "max", "min", "sumsq", "dot", "expsum")
_LANES: Final = 16
_COMPARISONS: Final[Mapping[str, Literal["lt", "gt", "eq"]]] = {"CMPLT": "lt", "CMPGT": "gt", "CMPEQ": "eq"}


@dataclass(frozen=True)
class Format:
    """A format of vector file, recognised by its arrays: all of `needs`, one of `marks`, nothing beyond `allows`.

    A file of groups has arrays `GROUP_SUFFIX`; then `needs`, `marks` and `allows` are about suffixes, and `needs`
    about every group.
    """

    name: str
    check: Check
    needs: frozenset[str]
    marks: frozenset[str]
    allows: frozenset[str]
    grouped: bool

    def fits(self, names: frozenset[str]) -> bool:
        """Whether a file with arrays of these names has this format."""
        if not self.grouped:
            return self.needs <= names <= self.allows and bool(self.marks & names)
        groups = split_groups(names, self.allows)
        return groups is not None and any(self.marks & set(group) for group in groups.values())


def split_groups(names: frozenset[str], suffixes: frozenset[str]) -> dict[str, dict[str, str]] | None:
    """Array names by group and suffix (the longest that fits), or None when one has no suffix of these."""
    groups: dict[str, dict[str, str]] = {}
    for name in sorted(names):
        ends = [suffix for suffix in suffixes if name.endswith(f"_{suffix}")]
        if not ends:
            return None
        suffix = max(ends, key=len)
        groups.setdefault(name[: -len(suffix) - 1], {})[suffix] = name
    return groups


def _groups(arrays: Arrays, name: str) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    layout = FORMATS[name]
    groups = split_groups(frozenset(arrays), layout.allows)
    for group, members in (groups or {}).items():
        missing = sorted(layout.needs - set(members))
        if missing and not set(members) & _RAW_ADD:
            raise NumericsError(f"group {group!r} lacks {', '.join(f'{group}_{suffix}' for suffix in missing)}")
        yield group, {suffix: arrays[array] for suffix, array in members.items()}


def _codes(array: NDArray[Any]) -> NDArray[np.uint32]:
    """Codes that a file keeps in any integer type."""
    if array.dtype.kind not in "iu" or (array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**32):
        raise NumericsError(f"{mxfp7.described(array)} is not an array of codes")
    return array.astype(np.uint32)


def _bits(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    return values.view(np.uint16)


def _quantise(arrays: Arrays, backend: str) -> Iterator[Pair]:
    blocks = mxfp7.quantise(arrays["x_fp16_bits"], backend=backend)
    yield blocks.q, arrays["q"]
    yield blocks.scale.reshape(-1), arrays["scale_field"].reshape(-1)
    if "packed_words_a" in arrays:
        whole = blocks.q.shape[0] // 4 * 4
        words = mxfp7.pack_words(mxfp7.Blocks(blocks.q[:whole], blocks.scale[:whole]))
        yield words.reshape(-1, 4, 32), arrays["packed_words_a"]


def _matmul(arrays: Arrays, backend: str) -> Iterator[Pair]:
    for _, case in _groups(arrays, "matmul"):
        for variant, pumped in (("", False), ("pumped_", True)):
            if f"{variant}fp22" in case:
                yield product.matmul(case["a"], case["b"], pumped=pumped, backend=backend), case[f"{variant}fp22"]
            if f"{variant}fp16" in case:
                ours = product.matmul_fp16(case["a"], case["b"], pumped=pumped, backend=backend)
                yield _bits(ours), case[f"{variant}fp16"]


def _machine(arrays: Arrays, backend: str) -> Iterator[Pair]:
    for _, case in _groups(arrays, "matmul_machine"):
        yield _bits(product.matmul_fp16(case["a"], case["b"], backend=backend)), case["c"]


def _parts(group: str, operand: NDArray[Any], count: int) -> list[NDArray[Any]]:
    """`operand` cut along K into `count` equal runs of whole blocks."""
    if count < 1 or operand.ndim != 2 or operand.shape[1] % (count * mxfp7.BLOCK):
        raise NumericsError(
            f"group {group!r}: {mxfp7.described(operand)} can't be cut along K into {count} runs of whole blocks"
        )
    return np.split(operand, count, axis=1)


def _partials(group: str, case: Mapping[str, NDArray[Any]], count: int, backend: str) -> list[NDArray[np.uint32]]:
    pairs = zip(_parts(group, case["a"], count), _parts(group, case["b"], count), strict=True)
    return [product.matmul(a, b, backend=backend) for a, b in pairs]


def _crossmesh(arrays: Arrays, backend: str) -> Iterator[Pair]:
    for group, case in _groups(arrays, "crossmesh"):
        yield from (_raw_adds if set(case) & _RAW_ADD else _split_product)(group, case, backend)


def _raw_adds(group: str, case: Mapping[str, NDArray[Any]], backend: str) -> Iterator[Pair]:
    missing = sorted(_RAW_ADD - set(case))
    if missing:
        raise NumericsError(f"group {group!r} lacks {', '.join(f'{group}_{suffix}' for suffix in missing)}")
    tile = fp22.open_tile(_codes(case["tile_fp22"]))
    result = fp22.add(tile, _codes(case["peer_fp22"]), backend=backend)
    yield result, case["result_fp22"]
    yield _bits(fp22.drain(result, backend=backend)), case["result_fp16"]


def _split_product(group: str, case: Mapping[str, NDArray[Any]], backend: str) -> Iterator[Pair]:
    partials = _partials(group, case, int(case["ranks"]), backend)
    chain = partials[0]
    for resident in partials[1:]:
        chain = fp22.add(resident, chain, backend=backend)
    star = partials[-1]
    for peer in partials[:-1]:
        star = fp22.add(star, peer, backend=backend)
    whole = product.matmul(case["a"], case["b"], backend=backend)
    yield np.stack(partials), case["partials_fp22"]
    for name, codes in (("chain", chain), ("star", star), ("onemesh", whole)):
        yield codes, case[f"{name}_fp22"]
        yield _bits(fp22.drain(codes, backend=backend)), case[f"{name}_fp16"]


def _peer_add(arrays: Arrays, backend: str) -> Iterator[Pair]:
    for group, case in _groups(arrays, "peer_add"):
        first, second = _partials(group, case, 2, backend)
        added = fp22.add(first, second, backend=backend)
        yield _bits(fp22.drain(added, backend=backend)), case["c_peer_add"]
        yield _bits(fp22.drain(second, backend=backend)), case["c_second_half"]
        yield _bits(product.matmul_fp16(case["a"], case["b"], backend=backend)), case["c_single"]


class _Accumulator:
    """The tiles that a command log works on, by scenario and address."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.tiles: dict[tuple[int, int], NDArray[np.uint32]] = {}

    def add(self, tile: NDArray[np.uint32] | None, peer: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return fp22.add(_opened(tile), peer, backend=self.backend)

    def emit(self, tile: NDArray[np.uint32] | None) -> NDArray[np.uint16]:
        return _bits(fp22.drain(_opened(tile), backend=self.backend))

    def step(
        self, op: int, place: tuple[int, int], value: NDArray[np.uint32], peer: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32] | None, NDArray[np.uint32] | None, NDArray[np.uint16] | None]:
        """Run one command: the tile after it, what left for a peer, what was emitted."""
        tile = self.tiles.get(place)
        sent: NDArray[np.uint32] | None = None
        match op:
            case 1:
                tile = fp22.open_tile(value)
            case 2 | 7:
                tile = self.add(tile, value)
            case 3:
                tile = self.add(tile, peer)
            case 4:
                sent = _opened(tile)
            case 5:
                _opened(tile)
            case 6:
                # Leaves for a peer without touching the tile.
                sent = fp22.open_tile(value)
            case _:
                raise NumericsError(f"{op} is not a command of the accumulator log")
        if tile is not None:
            self.tiles[place] = tile
        return tile, sent, self.emit(tile) if op in (5, 7) else None


def _opened(tile: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
    if tile is None:
        raise NumericsError("the log reads a tile that no LOAD opened: what it holds is not known")
    return tile


def _log_values(arrays: Arrays) -> NDArray[np.uint32]:
    """The block values of all rows `[rows, 16]`: element 4 i + j is scaled by `sa[i]` and `sb[j]`."""
    dots = arrays["val"].astype(np.int32).reshape(-1, 4, 4)
    values = np.zeros(dots.shape, dtype=np.uint32)
    for anchor in np.unique(arrays["anchor"]):
        rows = arrays["anchor"] == anchor
        scale_a, scale_b = arrays["sa"][rows][:, :, None], arrays["sb"][rows][:, None, :]
        values[rows] = fp22.block_value(dots[rows], scale_a, scale_b, int(anchor))
    return values.reshape(-1, 16)


def _accumulator(arrays: Arrays, backend: str) -> Iterator[Pair]:
    rows = len(arrays["op"])
    if any(len(array) != rows for array in arrays.values()):
        raise NumericsError("the columns of the command log have different lengths")
    values, peers, machine = _log_values(arrays), _codes(arrays["peer_in"]), _Accumulator(backend)
    tile = np.full((rows, 16), -1, dtype=np.int64)
    peer_out, emit = np.zeros((2, rows, 16), dtype=np.int64)
    peer_valid, emit_valid = np.zeros((2, rows), dtype=bool)
    for row in range(rows):
        place = int(arrays["seq"][row]), int(arrays["addr"][row])
        held, sent, emitted = machine.step(int(arrays["op"][row]), place, values[row], peers[row])
        if held is not None:
            tile[row] = held
        if sent is not None:
            peer_out[row], peer_valid[row] = sent, True
        if emitted is not None:
            emit[row], emit_valid[row] = emitted, True
    yield tile, arrays["tile"]
    yield peer_valid, arrays["peer_valid"]
    yield emit_valid, arrays["emit_valid"]
    yield peer_out[peer_valid], arrays["peer_out"][peer_valid]
    yield emit[emit_valid], arrays["emit"][emit_valid]


def _convert(arrays: Arrays, backend: str) -> Iterator[Pair]:
    conversions: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
        "f16_to_e8": ("f16", lambda f16: lane.from_fp16(f16, backend=backend)),
        "e8_to_f16": ("e8", lambda e8: _bits(lane.to_fp16(_codes(e8), backend=backend))),
        "f32_to_e8": ("f32", lambda f32: lane.from_fp32(f32, backend=backend)),
        "e8_to_f32": ("e8", lambda e8: lane.to_fp32(_codes(e8), backend=backend).view(np.uint32)),
        "acc22_to_e8": ("acc22", lambda acc22: lane.from_fp22(_codes(acc22), backend=backend)),
        "acc22_to_f16": ("acc22", lambda acc22: _bits(fp22.drain(_codes(acc22), backend=backend))),
    }
    for result, (source, convert) in conversions.items():
        if result in arrays:
            if source not in arrays:
                raise NumericsError(f"{result} without {source}")
            yield convert(arrays[source]), arrays[result]


def _reduce(arrays: Arrays, backend: str) -> Iterator[Pair]:
    kinds, chunks = arrays["kind"].astype(np.int64), arrays["nchunk"].astype(np.int64)
    unknown = (kinds < 0) | (kinds >= len(_REDUCTIONS)) | (chunks < 1) | (chunks * _LANES > arrays["x"].shape[1])
    if unknown.any():
        row = int(np.argmax(unknown))
        raise NumericsError(f"row {row} reduces kind {kinds[row]} over {chunks[row]} chunks, which is no reduction")
    x, y = _codes(arrays["x"]), _codes(arrays["y"])
    for kind, count in sorted({(int(k), int(n)) for k, n in zip(kinds, chunks, strict=True)}):
        rows, width = (kinds == kind) & (chunks == count), count * _LANES
        second = y[rows, :width] if _REDUCTIONS[kind] == "dot" else None
        yield lane.reduce(_REDUCTIONS[kind], x[rows, :width], second, backend=backend), arrays["result"][rows]


def _alu(arrays: Arrays, backend: str) -> Iterator[Pair]:
    for group, case in _groups(arrays, "vector_alu"):
        a, b, c = (_codes(case[operand]) for operand in ("a", "b", "c"))
        if group in _COMPARISONS:
            holds = lane.compare(_COMPARISONS[group], a, b, backend=backend)
            yield np.where(holds, _ONE_E8M15, 0), case["out"]
        else:
            holds = np.zeros(a.shape, dtype=bool)
            yield lane.apply(group.lower(), a, b, c, backend=backend), case["out"]
        yield holds, case["pred"]


_RAW_ADD: Final = frozenset({"tile_fp22", "peer_fp22", "result_fp22", "result_fp16"})
_SPLIT: Final = frozenset(
    {"a", "b", "ranks", "partials_fp22"}
    | {f"{order}_{kind}" for order in ("chain", "star", "onemesh") for kind in ("fp22", "fp16")}
)
_QUANTISED: Final = frozenset({"x_fp16_bits", "q", "scale_field"})
_PRODUCTS: Final = frozenset({"fp22", "fp16", "pumped_fp22", "pumped_fp16"})
_HALVES: Final = frozenset({"c_peer_add", "c_single", "c_second_half"})
_LOG: Final = frozenset(
    {"seq", "op", "addr", "anchor", "val", "sa", "sb"}
    | {"peer_in", "tile", "peer_out", "emit", "peer_valid", "emit_valid"}
)
_CONVERTED: Final = frozenset({"f16_to_e8", "e8_to_f16", "f32_to_e8", "e8_to_f32", "acc22_to_e8", "acc22_to_f16"})
_REDUCED: Final = frozenset({"kind", "nchunk", "x", "y", "result"})
_ALU: Final = frozenset({"a", "b", "c", "out", "pred"})
_A_B: Final = frozenset({"a", "b"})

FORMATS: Final[Mapping[str, Format]] = {
    layout.name: layout
    for layout in (
        Format("quantise", _quantise, _QUANTISED, _QUANTISED, _QUANTISED | {"packed_words_a", "label"}, False),
        # Before matmul, whose suffixes end those of raw adds.
        Format("crossmesh", _crossmesh, _SPLIT, _RAW_ADD | {"ranks"}, _SPLIT | _RAW_ADD, True),
        Format("matmul", _matmul, _A_B, _PRODUCTS, _A_B | _PRODUCTS, True),
        Format("matmul_machine", _machine, _A_B | {"c"}, frozenset({"c"}), _A_B | {"c"}, True),
        Format("peer_add", _peer_add, _A_B | _HALVES, _HALVES, _A_B | _HALVES, True),
        Format("accumulator", _accumulator, _LOG, _LOG, _LOG, False),
        Format("vector_convert", _convert, frozenset(), _CONVERTED, _CONVERTED | {"f16", "e8", "f32", "acc22"}, False),
        Format("vector_reduce", _reduce, _REDUCED, _REDUCED, _REDUCED, False),
        Format("vector_alu", _alu, _ALU, frozenset({"out"}), _ALU, True),
    )
}
"""Every format, by name."""

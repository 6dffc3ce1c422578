"""What the watched cluster of a walk did, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from meshwright.numerics import fp22
from meshwright.report.document import Heading, Listing, Part, Rows, Text
from meshwright.report.walk import Walk
from meshwright.report.walk_numbers import QuantisedEntry, Step, SubTile
from meshwright.report.walk_story_text import aligned, bytes_of, counted

_MOST_STEPS: Final = 8
_LAST_STEPS: Final = 2
_ROW: Final = 8


def cluster(walked: Walk, whole: bool) -> Iterator[Part]:
    """Entries as they were quantised, a sub-tile block after block, and its drain."""
    site = walked.watched
    yield Heading("9. In the cluster")
    yield Text(
        f"The cluster at ({site.x}, {site.y}) was looked at up to its first DRAIN. Its first FILL takes entry 0 of A: "
        "32 values of each of 4 rows, one MXFP7 block a row. The largest value of a block gives the scale, a power of "
        "two times 8 to 15 eighths; each value becomes a whole number from -63 to 63."
    )
    for entry in walked.entries[:1]:
        yield from _entry(entry)
    for entry in walked.entries[1:]:
        elements = " ".join(map(str, entry.elements[:_ROW]))
        yield Text(
            f"{entry.side} likewise: row 0 of its first entry, filled from `{entry.address:#x}`, has scale field "
            f"{entry.scale} and elements {elements} ..."
        )
    yield from _sub_tile(walked.sub_tile, whole)


def _entry(entry: QuantisedEntry) -> Iterator[Part]:
    es, eighths = (entry.scale >> 3) - 20, (entry.scale & 7) + 8
    yield Text(
        f"Row 0 of the entry, filled from `{entry.address:#x}`: 32 fp16 in, 32 elements out. Scale field "
        f"{entry.scale}, {entry.scale:#04x}: {entry.scale >> 3} - 20 = {es} and 8 + {entry.scale & 7} = {eighths}, so "
        f"a scale of 2^{es} x {eighths}/8 = {entry.scale_value:.6g}."
    )
    rows = [("K", "fp16 in", "elements out")]
    for at in range(0, len(entry.halves), _ROW):
        part = slice(at, at + _ROW)
        halves = " ".join(f"{half:04x}" for half in entry.halves[part])
        elements = " ".join(f"{element:3}" for element in entry.elements[part])
        rows.append((f"{at}..{at + _ROW - 1}", halves, elements))
    yield Listing(aligned(rows))
    pairs = zip(entry.values[:_ROW], entry.elements[:_ROW], strict=True)
    yield Listing(
        aligned(
            [("value in", "element", "element x scale")]
            + [(f"{value:.5g}", str(element), f"{element * entry.scale_value:.5g}") for value, element in pairs]
        )
    )
    scales = " ".join(f"{scale:02x}" for scale in reversed(entry.scales))
    yield Text(
        f"In L1 the entry is 4 words of 32 bytes, 8 columns each: first the scale fields of rows 3 to 0 (`{scales}`), "
        "then 7 bits an element, row 3 first, and in a row the last column first."
    )
    yield Listing("\n".join(f"word {at}  {bytes_of(word)}" for at, word in enumerate(entry.words)))


def _sub_tile(tile: SubTile, whole: bool) -> Iterator[Part]:
    sweeps = tile.steps[-1].sweep + 1
    yield Text(
        f"Sub-tile 0 is rows 0 to 3 and columns 0 to 3 of C. It is summed over {counted(len(tile.steps), 'K block')} "
        f"in {counted(sweeps, 'GEMM')}. For each block and element: the dot product of 32 pairs of elements, an exact "
        "whole number; times both scales, rounded to the 15 significant bits of an FP22 code; added to what is there. "
        "Element (0, 0):"
    )
    shown = _shown(tile.steps, whole)
    headings = ("K block", "GEMM", "dot", "scale A", "scale B", "code added", "its value", "code after", "sum")
    yield Rows(headings, tuple(map(_step, shown)), numbers=headings)
    yield Text("All 16 codes of the sub-tile after each block, row by row:")
    codes = [
        (str(step.block), " ".join(f"{code:06x}" for code in step.codes)) for step in shown if isinstance(step, Step)
    ]
    yield Listing(aligned([("block", "FP22 codes"), *codes]))
    halves = np.array(tile.halves, np.uint16).reshape(4, 4)
    yield Text(
        "The sums between two blocks of one GEMM are added up beside the card, in its order; after each GEMM they "
        "were compared with the accumulator, and are the same. What the DRAIN made of the last codes, in fp16:"
    )
    rows = [("row", "fp16 bits", "values")]
    for row in range(4):
        values = " ".join(f"{value:.5g}" for value in halves[row].view(np.float16))
        rows.append((str(row), " ".join(f"{half:04x}" for half in halves[row]), values))
    yield Listing(aligned(rows))


def _shown(steps: Sequence[Step], whole: bool) -> list[Step | int]:
    """The steps, or the first and last of them with the number of those left out."""
    if whole or len(steps) <= _MOST_STEPS:
        return list(steps)
    first = _MOST_STEPS - _LAST_STEPS
    return [*steps[:first], len(steps) - _MOST_STEPS, *steps[-_LAST_STEPS:]]


def _step(step: Step | int) -> tuple[str, ...]:
    if isinstance(step, int):
        return (f"{step} more", *("..." for _ in range(8)))
    value, total = fp22.decode(np.array([step.value, step.codes[0]], np.uint32))
    return (
        str(step.block),
        str(step.sweep),
        str(step.dot),
        str(step.scale_a),
        str(step.scale_b),
        f"{step.value:06x}",
        f"{value:.6g}",
        f"{step.codes[0]:06x}",
        f"{total:.6g}",
    )


def comparison(walked: Walk) -> Iterator[Part]:
    """The bytes that were read back, against the evaluator and against float64."""
    found = walked.comparison
    yield Heading("10. Back on the host")
    yield Text(
        f"C was read with {counted(walked.back.calls, 'call')}, {walked.back.read:,} bytes; section 6 shows the first "
        f"of them. Unpacked, {_equal(found.count, found.different)}. The evaluator runs the stage graph of section 3 "
        "in the same number formats, and knows no words, no bytes and no card."
    )
    yield Listing(
        aligned(
            [("element", "fp16 bits", "value", "float64")]
            + [
                (
                    f"({row}, {column})",
                    f"{bits:04x}",
                    f"{_half(bits):.5g}",
                    f"{wide:.5g}",
                )
                for row, column, bits, wide in found.elements
            ]
        )
    )
    yield Text(
        f"Against A @ B.T in float64, of standard normal operands with K = {walked.product.k}: relative errors of "
        f"{found.median:.2%} in the median and {found.tenth:.2%} at most in nine of ten elements. The rms of the "
        f"difference is {found.share:.2%} of the result's rms, the largest difference {found.largest:.2%}. A sum that "
        "comes out near zero has a large relative error in any format with blocks. It is the error of the format, of "
        "the 7 bits of an element."
    )


def _equal(count: int, different: int) -> str:
    if different:
        return f"{different:,} of {count:,} elements have NOT the evaluator's bits"
    return f"all {counted(count, 'element')} {'have' if count > 1 else 'has'} the evaluator's bits"


def _half(bits: int) -> float:
    return float(np.array(bits, np.uint16).view(np.float16))

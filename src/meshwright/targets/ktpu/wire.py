"""How many bytes a block takes on a link of the card."""

from __future__ import annotations

import math

from meshwright.ir.formats import ElementType

GRANULE_BYTES = 32
SUB_TILE = 16


def payload_bytes(format: ElementType, elements: int) -> int:
    """Payload bytes of `elements` crossing a link, descriptors not counted.

    Accumulator words go as two granules a sub-tile of 16: 352 bits in 512. Everything else goes in whole granules.
    Source: the card's specification of its links.
    """
    if format is ElementType.FP22:
        return math.ceil(elements / SUB_TILE) * 2 * GRANULE_BYTES
    return math.ceil(elements * format.bits / 8 / GRANULE_BYTES) * GRANULE_BYTES

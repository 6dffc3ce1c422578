"""Where the registers of a mesh's agent are: byte offsets in its window, and the fields in them.

Source: the card's RTL and driver documentation. Only address bits 15:0 are decoded; what is not listed reads 0.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 1 << 16

CTRL: Final = 0x0000
STATUS: Final = 0x0008
CAPS: Final = 0x0010
PROG_DST: Final = 0x0040
PROG_LEN: Final = 0x0048
PROG_KICK: Final = 0x0050
PROG_STAT: Final = 0x0058
PROG_CRED: Final = 0x0060
PROG_BASE: Final = 0x0068
SIG_DONE: Final = 0x0070
AUX_STAT: Final = 0x0078
INTERLINK: Final = range(0x0080, 0x0100)
TX_FLIT: Final = range(0x0100, 0x0128)
TX_KICK: Final = 0x0140
TX_STATUS: Final = 0x0148
RX_FLIT: Final = range(0x0180, 0x01A8)
RX_POP: Final = 0x01C0
RX_STATUS: Final = 0x01C8
MOVER: Final = range(0x0800, 0x0880)
INTERLINK_CONTROL: Final = 0x0880
INTERLINK_MESH: Final = 0x0888
INTERLINK_DOORBELL: Final = 0x0890
NODE_STATUS: Final = range(0x1000, 0x2000)
"""256 nodes of eight bytes; the second half shows the first again."""
STAGE: Final = 0x2000
SLOT_BYTES: Final = 40

RX_DEPTH: Final = 16
RX_EMPTY: Final = 1 << 16
RX_OVERFLOW: Final = 1 << 17
"""Bits of RX_STATUS."""
SHORT: Final = 0xFFFF


def node_index(x: int, y: int) -> int:
    """Number of a node in the completion mirror and in PROG_DST: `y << 4 | x`."""
    return y << 4 | x


def place_of(index: int) -> tuple[int, int]:
    """Coordinate of a node."""
    return index & 15, index >> 4


def node_status(x: int, y: int) -> int:
    """Offset of a node's word in the completion mirror."""
    return NODE_STATUS.start + 8 * node_index(x, y)


def stage_slot(slot: int) -> int:
    """Offset of a staging slot."""
    return STAGE + slot * SLOT_BYTES

"""Ids: integer indices into a graph's tables, one type each, so that one can't stand where another belongs."""

from __future__ import annotations

from typing import NewType

TensorId = NewType("TensorId", int)
BufferId = NewType("BufferId", int)
GroupId = NewType("GroupId", int)
StageId = NewType("StageId", int)
ChipId = NewType("ChipId", int)
"""A chip (mesh) as the machine numbers it."""

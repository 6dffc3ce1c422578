"""Tiles and units of one mesh of the card: at every limit, and one past it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import targets
from meshwright.errors import MachineError, PlacementError
from meshwright.ir.formats import ElementType
from meshwright.machine import load
from meshwright.targets.ktpu.placement import KtpuPlacement

CARD = load("ktpu-v13p")
PLACE = KtpuPlacement(CARD, 0)
SHALLOW = KtpuPlacement(
    msgspec.structs.replace(CARD, maybe_cluster=msgspec.structs.replace(CARD.cluster, accumulator_tiles=256)), 0
)


@pytest.mark.parametrize(
    "tile",
    [
        (64, 128, 256),  # 512 sub-tiles, and B fills a bank: 32 rows of entries by 8 blocks
        (4, 4, 255 * 32),  # the K field
        (4, 1020, 32),  # the field of sub-tiles along N
        (1020, 8, 32),
        (4, 4, 32),
        (128, 64, 256),
    ],
)
def test_tiles_at_a_limit_are_legal(tile) -> None:
    PLACE.check_tile(tile)


@pytest.mark.parametrize(
    ("place", "tile", "message"),
    [
        (
            PLACE,
            (64, 132, 32),
            "it has 528 sub-tiles, and the accumulator holds 512; 64 x 128 x 32 fits",
        ),
        (
            SHALLOW,
            (64, 68, 256),
            "it has 272 sub-tiles, and the accumulator holds 256; 64 x 64 x 256 fits",
        ),
        (
            PLACE,
            (64, 128, 288),
            "its B block takes 288 L1 entries, and a bank holds 256; 64 x 128 x 256 fits",
        ),
        (
            PLACE,
            (128, 64, 288),
            "its A block takes 288 L1 entries, and a bank holds 256; 128 x 64 x 256 fits",
        ),
        (
            PLACE,
            (4, 4, 256 * 32),
            "sub-tiles and K blocks along an axis are 8-bit fields, 255 at most, and wrap past it; 4 x 4 x 8160 fits",
        ),
        (
            PLACE,
            (4, 1024, 32),
            "sub-tiles and K blocks along an axis are 8-bit fields, 255 at most, and wrap past it; 4 x 1020 x 32 fits",
        ),
        (
            PLACE,
            (1024, 4, 32),
            "sub-tiles and K blocks along an axis are 8-bit fields, 255 at most, and wrap past it; 1020 x 4 x 32 fits",
        ),
        (PLACE, (2052, 4, 32), "it has 513 sub-tiles, and the accumulator holds 512; 1020 x 4 x 32 fits"),
        (
            PLACE,
            (66, 130, 40),
            "a cluster works on sub-tiles of 4 x 4 and blocks of 32 along K; the nearest legal tile is 68 x 120 x 64",
        ),
        (
            PLACE,
            (0, -4, 32),
            "a cluster works on sub-tiles of 4 x 4 and blocks of 32 along K; the nearest legal tile is 4 x 4 x 32",
        ),
    ],
)
def test_one_past_a_limit(place, tile, message) -> None:
    asked = " x ".join(map(str, tile))
    with pytest.raises(PlacementError, match=f"^{re.escape(f'matmul tile {asked} on ktpu-v13p: {message}')}$"):
        place.check_tile(tile)


@settings(deadline=None, max_examples=300)
@given(
    st.tuples(st.integers(-3, 3000), st.integers(-3, 3000), st.integers(-3, 10000)), st.sampled_from([PLACE, SHALLOW])
)
def test_what_a_refusal_suggests_is_legal(tile, place) -> None:
    try:
        place.check_tile(tile)
    except PlacementError as error:
        suggested = re.search(r"(\d+) x (\d+) x (\d+)(?: fits)?$", str(error))
        assert suggested is not None
        place.check_tile(tuple(map(int, suggested.groups())))


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 10000), st.sampled_from([PLACE, SHALLOW]))
def test_default_tiles_are_legal_and_cover_k_evenly(m, n, k, place) -> None:
    tile = place.matmul_tile(m, n, k)
    place.check_tile(tile)
    parts = -(-k // tile[2])
    assert parts * tile[2] - k < 32 * parts


def test_default_tiles_give_every_cluster_a_share() -> None:
    # Shallow sweeps, so that all of a row of A stays in L1 while B passes by.
    assert PLACE.matmul_tile(2048, 1536, 384) == (64, 128, 64)
    assert PLACE.matmul_tile(32, 384, 384) == (32, 64, 384)
    assert PLACE.matmul_tile(1, 16, 32) == (4, 16, 32)
    assert SHALLOW.matmul_tile(2048, 1536, 384) == (64, 32, 96)


def test_units_come_from_the_description() -> None:
    assert len(PLACE.matrix_sites()) == 6
    assert [(s.chip, s.x, s.y) for s in PLACE.vector_sites()] == [(0, 1, 0), (0, 1, 4)]
    assert (PLACE.mover_site().x, PLACE.mover_site().y) == (0, 1)
    assert (PLACE.value_format, PLACE.lane_format) == (ElementType.F16, ElementType.E8M15)
    assert PLACE.resident_sums
    assert targets.value_format(CARD) is ElementType.F16


def test_a_mesh_without_vector_cores_says_who_has_them() -> None:
    place = targets.placement(CARD, 1)
    assert not place.has_vector_units
    with pytest.raises(
        PlacementError, match=re.escape("mesh 1 of ktpu-v13p has no VC: it has 6 MG; it is on meshes 0, 3, 2")
    ):
        place.vector_sites()
    with pytest.raises(MachineError, match="ktpu-v13p has no mesh 4; its meshes are 0, 1, 3, 2"):
        targets.placement(CARD, 4)


def test_a_mesh_without_an_agent_moves_at_its_first_port() -> None:
    meshes = tuple(msgspec.structs.replace(mesh, agent=None) for mesh in CARD.meshes)
    place = KtpuPlacement(msgspec.structs.replace(CARD, meshes=meshes), 3)
    assert (place.mover_site().chip, place.mover_site().x, place.mover_site().y) == (3, 0, 1)


def test_vector_blocks_stay_in_the_safe_part_of_l1() -> None:
    assert PLACE.vector_elements(2) == 80 * 16
    for blocks in (1, 2, 3, 5, 50):
        words = PLACE.vector_elements(blocks) // 16
        assert 2 * blocks * words <= CARD.vector_core.l1_safe_words
        assert words <= CARD.vector_core.walk_words
    assert PLACE.vector_elements(1000) == 1


@pytest.mark.parametrize(
    ("format", "elements", "payload"),
    [
        (ElementType.FP22, 16, 64),
        (ElementType.FP22, 17, 128),
        (ElementType.FP22, 64 * 128, 512 * 64),
        (ElementType.F16, 16, 32),
        (ElementType.F16, 17, 64),
        (ElementType.F16, 1, 32),
        (ElementType.I32, 9, 64),
        (ElementType.F32, 0, 0),
    ],
)
def test_payload_of_a_block(format, elements, payload) -> None:
    assert targets.wire_bytes(CARD, format, elements) == payload

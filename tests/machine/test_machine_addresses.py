"""Global and host addresses: no byte of one mesh ever aliases another mesh."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.errors import MachineError
from meshwright.machine import load

CARD = load("ktpu-v13p")
BYTES = CARD.dram.bytes
meshes = st.sampled_from(CARD.mesh_ids)
local_bytes = st.one_of(st.integers(0, BYTES - 1), st.sampled_from([0, 255, 256, BYTES - 1]))


def refusal(call, *args, **kwargs):
    with pytest.raises(MachineError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_addresses_of_the_card():
    assert CARD.global_addr(0, 0x100) == 0x100
    assert CARD.global_addr(3, 0x100) == 0x30_0000_0100
    assert CARD.global_addr(2, 0x40, special=True) == 0xA0_0000_0040
    assert CARD.host_addr(2, 0x100) == 0x300_0000_0100
    assert CARD.addr_mesh(0xA0_0000_0040) == 2


@given(meshes, local_bytes, st.booleans())
def test_split_gives_back_what_was_joined(mesh, local, special):
    addr = CARD.global_addr(mesh, local, special=special)
    assert addr < 1 << 40 and not addr >> 38 & 1
    assert CARD.split_addr(addr) == (mesh, local)
    assert CARD.addr_mesh(addr) == mesh


@given(meshes, local_bytes)
def test_split_host_gives_back_what_was_joined(mesh, local):
    assert CARD.split_host_addr(CARD.host_addr(mesh, local)) == (mesh, local)


@given(meshes, local_bytes, meshes, local_bytes)
def test_different_bytes_have_different_addresses(a, x, b, y):
    assume((a, x) != (b, y))
    assert CARD.global_addr(a, x) != CARD.global_addr(b, y)
    assert CARD.host_addr(a, x) != CARD.host_addr(b, y)


@given(meshes, local_bytes, meshes)
def test_no_byte_of_a_mesh_lies_in_the_range_of_another(a, x, b):
    assume(a != b)
    addr, host = CARD.global_addr(a, x), CARD.host_addr(a, x)
    assert not CARD.global_addr(b, 0) <= addr <= CARD.global_addr(b, BYTES - 1)
    assert not CARD.host_addr(b, 0) <= host <= CARD.host_addr(b, BYTES - 1)


@given(st.integers(-(2**41), 2**41))
def test_an_address_is_split_or_refused_never_rounded(addr):
    fields = addr >> 39 & 1, addr >> 36 & 3, addr & (1 << 36) - 1
    if 0 <= addr < 1 << 40 and not addr >> 38 & 1:
        assert CARD.split_addr(addr) == fields[1:]
    else:
        assert refusal(CARD.split_addr, addr) == (
            f"{addr:#x} is no address of ktpu-v13p: bits are set outside its fields"
        )


def test_refused_addresses():
    assert refusal(CARD.global_addr, 0, BYTES) == (
        "byte 0x100000000 of mesh 0 of ktpu-v13p: its local addresses are 0 to 0xffffffff"
    )
    assert refusal(CARD.global_addr, 1, -1).startswith("byte -0x1 of mesh 1 of ktpu-v13p")
    assert refusal(CARD.global_addr, 4, 0) == "ktpu-v13p has no mesh 4; its meshes are 0, 1, 3, 2"
    assert refusal(CARD.host_addr, 0, BYTES).startswith("byte 0x100000000 of mesh 0")
    assert refusal(CARD.split_host_addr, 0x100) == "0x100 lies below the host windows of ktpu-v13p"
    assert refusal(CARD.split_host_addr, 9 << 40) == "ktpu-v13p has no mesh 8; its meshes are 0, 1, 3, 2"
    broken = CARD.without_mesh(3)
    assert refusal(broken.addr_mesh, CARD.global_addr(3, 0)).endswith("has no mesh 3; its meshes are 0, 1, 2")

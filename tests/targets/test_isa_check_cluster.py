"""Cluster programs against a machine: each rule at its limit and one past it, messages pinned."""

import msgspec
import pytest

from meshwright.errors import MachineError
from meshwright.machine import load
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm, InstructionError, Program, check_program

MACHINE = load("ktpu-v13p")
SMALL = msgspec.structs.replace(MACHINE, maybe_cluster=msgspec.structs.replace(MACHINE.cluster, accumulator_tiles=256))
MESH = 3
TOP = MACHINE.dram.bytes


def addr(local=0, mesh=MESH):
    return MACHINE.global_addr(mesh, local)


def check(instruction, machine=MACHINE, mesh=MESH, at=None):
    check_program(Program("MG", (instruction,)), machine, mesh, at)


def refusal(instruction, machine=MACHINE, mesh=MESH, at=None):
    with pytest.raises(InstructionError) as refused:
        check(instruction, machine, mesh, at)
    text = str(refused.value)
    assert text.startswith("word 0: ")
    return text.removeprefix("word 0: ")


LOCAL = Drain(addr=addr(), n=64)
PEER = Drain(n=64, dnode=1, dst_x=2, dst_y=3, dbuf=2, dflags=1)
FAR = Drain(n=64, dnode=1, dst_x=0, dst_y=1, dbuf=2, dack_x=0, dack_y=1, dmesh=2, dfin=0x12)


def changed(instruction, **fields):
    return msgspec.structs.replace(instruction, **fields)


def test_what_each_instruction_may_say():
    for instruction in (Fill(addr=addr(), n=1), Gemm(gm=1, gn=1), LOCAL, PEER, FAR):
        check(instruction)
        check(instruction, at=(1, 1))


# FILL


def test_fill_counts_1_to_255_entries():
    check(Fill(addr=addr(), n=255, eoff=1))
    assert refusal(Fill(addr=addr(), n=256)) == (
        "FILL: n = 256: 1 to 255 entries; the count is kept in 8 bits, 256 wraps to 0, and the unit waits forever; use "
        "two FILLs"
    )
    assert refusal(Fill(addr=addr(), n=0)).startswith("FILL: n = 0: 1 to 255 entries")


def test_fill_stays_in_its_bank():
    check(Fill(addr=addr(), n=56, eoff=200))
    assert refusal(Fill(addr=addr(), n=57, eoff=200)) == (
        "FILL: 57 entries from eoff = 200 on; a bank of ktpu-v13p holds 256"
    )


@pytest.mark.parametrize(("preq", "size"), [(0, 256), (1, 128)])
def test_fill_reads_memory_that_is_there(preq, size):
    check(Fill(addr=addr(TOP - 4 * size), n=4, preq=preq))
    last = Fill(addr=addr(TOP - 4 * size + 32), n=4, preq=preq)
    assert refusal(last) == (
        f"FILL of 4 entries: {4 * size} bytes from {TOP - 4 * size + 32:#x} on end at 0x100000020; mesh 3 of ktpu-v13p "
        "has bytes up to 0x100000000"
    )


def test_fill_names_its_own_mesh():
    for mesh in MACHINE.mesh_ids:
        check(Fill(addr=addr(mesh=mesh), n=1), mesh=mesh)
    assert refusal(Fill(addr=0x100, n=1)) == (
        "FILL of 1 entries: address 0x100 is in mesh 0, and the unit is on mesh 3, where it would alias to local "
        "memory; byte 0x100 of mesh 3 is 0x3000000100 (machine.global_addr)"
    )
    assert refusal(Fill(addr=addr() | 1 << 38, n=1)) == (
        "FILL of 1 entries: 0x7000000000 is no address of ktpu-v13p: bits are set outside its fields"
    )


def test_fill_reads_whole_words():
    check(Fill(addr=addr(32), n=1))
    assert refusal(Fill(addr=addr(16), n=1)) == ("FILL of 1 entries: address 0x3000000010 is not aligned to 32 bytes")


def test_fill_may_read_special_memory():
    special = MACHINE.global_addr(MESH, (1 << 36) - 256, special=True)
    check(Fill(addr=special, n=1))
    assert "has bytes up to 0x1000000000" in refusal(Fill(addr=special, n=2))


@pytest.mark.parametrize("field", ["npeer", "peers"])
def test_nothing_shares_a_fill_yet(field):
    assert refusal(Fill(addr=addr(), n=1, **{field: 1})).endswith("nothing may set it yet); leave it at 0")


@pytest.mark.parametrize("instruction", [Fill(addr=addr(), n=1), Gemm(gm=1, gn=1), LOCAL], ids=lambda i: i.mnemonic)
def test_fields_without_use_stay_at_their_defaults(instruction):
    unused = [field for name, field in instruction.format.free.items() if name not in instruction.uses]
    assert {"emit", "fuse", "peers", "npeer"} <= {field.name for field in unused}
    for field in unused:
        value = 1 - (field.default or 0) if field.default in (0, 1) else field.default + 1
        assert refusal(changed(instruction, **{field.name: value})) == (
            f"{instruction.mnemonic}: {field.name} = {value}: no {instruction.mnemonic} uses it ({field.text}); leave "
            f"it at {field.default}"
        )


# GEMM


@pytest.mark.parametrize(
    ("machine", "fits", "past"), [(MACHINE, (16, 32), (19, 27)), (SMALL, (16, 16), (2, 129))], ids=["512", "256"]
)
def test_gemm_fits_the_accumulator(machine, fits, past):
    tiles = machine.cluster.accumulator_tiles
    # 257 is prime and past an 8-bit field: no tile has one sub-tile more than 256.
    assert (fits[0] * fits[1], past[0] * past[1]) == (tiles, {512: 513, 256: 258}[tiles])
    check(Gemm(gm=fits[0], gn=fits[1]), machine)
    assert refusal(Gemm(gm=past[0], gn=past[1]), machine) == (
        f"GEMM {past[0]} x {past[1]} sub-tiles over 1 K blocks: {past[0] * past[1]} sub-tiles; the accumulator of "
        f"ktpu-v13p holds {tiles}, and the address of a sub-tile past them wraps"
    )


@pytest.mark.parametrize("field", ["gm", "gn", "nk"])
def test_gemm_has_no_empty_axis(field):
    values = {"gm": 2, "gn": 3, "nk": 4} | {field: 0}
    assert refusal(Gemm(**values)) == (
        f"GEMM {values['gm']} x {values['gn']} sub-tiles over {values['nk']} K blocks: gm, gn and nk are 1 at least"
    )


def test_gemm_reads_within_its_banks():
    check(Gemm(gm=4, gn=8, nk=16, aoff=192, boff=128))
    assert refusal(Gemm(gm=4, gn=8, nk=16, aoff=193, boff=128)) == (
        "GEMM 4 x 8 sub-tiles over 16 K blocks, A: 64 entries from aoff = 193 on; a bank of ktpu-v13p holds 256"
    )
    assert refusal(Gemm(gm=4, gn=8, nk=16, aoff=192, boff=129)) == (
        "GEMM 4 x 8 sub-tiles over 16 K blocks, B: 128 entries from boff = 129 on; a bank of ktpu-v13p holds 256"
    )


# DRAIN


@pytest.mark.parametrize("machine", [MACHINE, SMALL], ids=["512", "256"])
def test_drain_has_what_the_accumulator_holds(machine):
    tiles = machine.cluster.accumulator_tiles
    for drain in (LOCAL, PEER, FAR):
        check(changed(drain, n=tiles), machine)
        for n in (0, tiles + 1):
            assert refusal(changed(drain, n=n), machine) == (
                f"DRAIN of {n} sub-tiles: 1 to {tiles}, which is what the accumulator of ktpu-v13p holds"
            )


def test_drain_writes_whole_bursts_of_its_own_mesh():
    check(Drain(addr=addr(TOP - 256), n=8))
    check(Drain(addr=addr(TOP - 256), n=1))
    assert refusal(Drain(addr=addr(TOP - 256), n=9)) == (
        "DRAIN of 9 sub-tiles: 512 bytes from 0xffffff00 on end at 0x100000100; mesh 3 of ktpu-v13p has bytes up to "
        "0x100000000"
    )
    assert refusal(Drain(addr=addr(128), n=1)) == (
        "DRAIN of 1 sub-tiles: address 0x3000000080 is not aligned to 256 bytes"
    )
    assert "is in mesh 2, and the unit is on mesh 3" in refusal(Drain(addr=addr(mesh=2), n=1))


@pytest.mark.parametrize("field", ["dst_x", "dst_y", "dbuf", "dflags", "dack_y", "dack_x", "dmesh", "dfin"])
def test_drain_to_memory_names_no_unit(field):
    assert refusal(changed(LOCAL, **{field: 1})) == (
        f"DRAIN of 64 sub-tiles: {field} = 1 is for a drain to a unit, and dnode = 0 drains to memory"
    )


def test_drain_into_resident_tiles_counts_granules():
    check(changed(PEER, addr=2 * (512 - 64)))
    assert refusal(changed(PEER, addr=3)) == (
        "DRAIN of 64 sub-tiles: granule 3 is inside a sub-tile: the accumulator's addresses count granules, two a "
        "sub-tile; sub-tile 1 starts at 2"
    )
    assert refusal(changed(PEER, addr=2 * (512 - 63))) == (
        "DRAIN of 64 sub-tiles: sub-tiles 449 to 512; the accumulator holds 512, and wraps past them"
    )
    assert "sub-tiles 193 to 256; the accumulator holds 256" in refusal(changed(PEER, addr=2 * 193), SMALL)
    assert "sub-tiles 449 to 512; the accumulator holds 512" in refusal(changed(FAR, addr=2 * 449))


def test_drain_into_l1_has_any_granule():
    check(changed(PEER, dbuf=0, addr=3))
    check(changed(PEER, dbuf=1, addr=65536 - 64))
    assert refusal(changed(PEER, dbuf=1, addr=65536 - 63)) == (
        "DRAIN of 64 sub-tiles: granules 65473 to 65536; a burst's offset has 16 bits"
    )


def test_a_cluster_has_three_buffers():
    assert refusal(changed(PEER, dbuf=3)) == (
        "DRAIN of 64 sub-tiles: buffer 3; a cluster has 0 L1 A, 1 L1 B, 2 the accumulator"
    )


def test_drain_to_a_vector_core():
    core = changed(PEER, dst_x=1, dst_y=0, dbuf=0, addr=512 - 64)
    check(core)
    assert refusal(changed(core, addr=512 - 63)) == (
        "DRAIN of 64 sub-tiles: granules 449 to 512; the L1 of a vector core has 512"
    )
    assert refusal(changed(core, dbuf=2)) == (
        "DRAIN of 64 sub-tiles: buffer 2 of a vector core, which has buffer 0 only"
    )


def test_drain_has_one_flag():
    check(changed(PEER, dflags=0))
    assert refusal(changed(PEER, dflags=2)) == (
        "DRAIN of 64 sub-tiles: dflags = 2; bit 0, signal when complete, is the only flag"
    )


def test_drain_goes_to_a_unit_that_is_there():
    units = "MG (1, 1), MG (1, 2), MG (1, 3), MG (2, 1), MG (2, 2), MG (2, 3)"
    assert refusal(changed(PEER, dst_x=0, dst_y=0), mesh=1) == (
        f"DRAIN of 64 sub-tiles: at (0, 0) of mesh 1 stands nothing; it has {units}"
    )
    assert "at (0, 1) of mesh 1 stands port+agent" in refusal(changed(PEER, dst_x=0, dst_y=1), mesh=1)


def test_drain_does_not_go_to_the_unit_itself():
    check(PEER, at=(2, 2))
    assert refusal(PEER, at=(2, 3)) == (
        "DRAIN of 64 sub-tiles: the unit at (2, 3) would send to itself, and wait for itself"
    )


# Across meshes


def test_across_meshes_the_acknowledgement_is_named():
    check(FAR)
    assert refusal(changed(FAR, dack_x=0, dack_y=0)) == (
        "DRAIN of 64 sub-tiles: to mesh 2 without somewhere to acknowledge: (0, 0) would be the sender's coordinate, "
        "which exists there too; name dack, such as the agent (0, 1)"
    )
    check(changed(PEER, dack_x=0, dack_y=0))


def test_across_meshes_dst_is_a_memory_port():
    for y in (1, 2, 3):
        check(changed(FAR, dst_y=y))
    assert refusal(changed(FAR, dst_x=1)) == (
        "DRAIN of 64 sub-tiles: to another mesh, dst is this mesh's own memory port; (1, 1) is none of (0, 1), (0, 2), "
        "(0, 3)"
    )


def test_across_meshes_the_unit_is_there():
    assert "at (1, 9) of mesh 2 stands nothing" in refusal(changed(FAR, dfin=0x91))
    check(changed(FAR, dbuf=0, dfin=0x01))  # the vector core at (1, 0)
    assert "buffer 2 of a vector core" in refusal(changed(FAR, dfin=0x01))
    assert "at (1, 0) of mesh 1 stands nothing" in refusal(changed(FAR, dbuf=0, dfin=0x01, dmesh=1))


def test_across_meshes_is_another_mesh():
    assert refusal(changed(FAR, dmesh=3)) == (
        "DRAIN of 64 sub-tiles: dfin names unit (2, 1) of another mesh, and mesh 3 is the unit's own"
    )
    check(changed(PEER, dmesh=3))
    assert refusal(changed(PEER, dmesh=2)) == (
        "DRAIN of 64 sub-tiles: mesh 2 is named, but dfin = 0 keeps the data on mesh 3; name the unit there with "
        "dfin = {y, x}"
    )


def test_across_meshes_takes_a_way_there():
    check(changed(FAR, dmesh=0))  # two links on, which forward
    still = msgspec.structs.replace(MACHINE, forwards=False)
    check(FAR, still)
    assert refusal(changed(FAR, dmesh=0), still) == (
        "DRAIN of 64 sub-tiles: no data for units gets from mesh 3 to mesh 0 of ktpu-v13p"
    )
    alone = load("ktpu-1")
    (mesh,) = alone.mesh_ids
    assert "has no mesh" in refusal(changed(FAR, dmesh=(mesh + 1) % 4), alone, mesh)


# Programs


def test_the_word_is_named():
    program = Program("MG", (Gemm(gm=1, gn=1), Gemm(gm=1, gn=1, nk=256)))
    with pytest.raises(InstructionError) as refused:
        check_program(program, MACHINE, MESH)
    assert str(refused.value) == (
        "word 1: GEMM: nk = 256 does not fit its 8 bits [183:176]: 0 to 255; the machine would read 0"
    )
    with pytest.raises(InstructionError, match=r"^word 1: GEMM: nk = 256 does not fit"):
        program.encode()


def test_the_unit_is_there():
    program = Program("VC", ())
    with pytest.raises(MachineError, match=r"^mesh 1 of ktpu-v13p has no VC: it has 6 MG;"):
        check_program(program, MACHINE, 1)
    with pytest.raises(MachineError) as refused:
        check_program(program, MACHINE, 0, (1, 1))
    assert str(refused.value) == "no VC stands at (1, 1) of mesh 0 of ktpu-v13p; they stand at (1, 0), (1, 4)"

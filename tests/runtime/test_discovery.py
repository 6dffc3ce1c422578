"""Units that say what they are, and cards that are not what their description says."""

import msgspec
import pytest
from tests.runtime.dispatch_rig import CARD, Quick, Recorder
from tests.simulator.programs import fresh

from meshwright.errors import DeviceError, DispatchError
from meshwright.machine.figures import DispatchSpec
from meshwright.machine.mesh import UnitSpec
from meshwright.runtime.discovery import FoundUnit, check, discover
from meshwright.runtime.transport import InProcess
from meshwright.simulator import Assumptions, Card
from meshwright.simulator import registers as reg
from meshwright.targets.ktpu.isa import Flit
from meshwright.targets.ktpu.isa.flit import CONTROL_REQUEST, FlitType


def with_units(machine, mesh, *units):
    """A machine whose mesh has these units instead."""
    meshes = tuple(
        msgspec.structs.replace(spec, units=tuple(UnitSpec(kind, at) for kind, at in units))
        if spec.id == mesh
        else spec
        for spec in machine.meshes
    )
    return msgspec.structs.replace(machine, meshes=meshes)


def stated(machine):
    return {
        (mesh, at, kind) for mesh in machine.mesh_ids for kind in ("MG", "VC") for at in machine.mesh(mesh).coords(kind)
    }


def test_every_unit_of_every_mesh_is_found():
    found = discover(InProcess(fresh()), CARD)
    assert {(unit.mesh, unit.at, unit.type) for unit in found} == stated(CARD)
    assert len(found) == 30
    assert found[0] == FoundUnit(mesh=0, at=(1, 0), type="VC", version=4, inst_depth=512, buffers=2)
    assert {unit.buffers for unit in found if unit.type == "MG"} == {3}
    check(CARD, found)


def test_more_meshes_take_no_more_calls():
    counts = []
    for machine in (CARD.without_mesh(0).without_mesh(1).without_mesh(2), CARD):
        recorder = Recorder(InProcess(Card(machine)))
        discover(recorder, machine)
        counts.append(len(recorder.log))
    assert counts[0] == counts[1]


def test_every_place_is_asked_twice_at_least():
    recorder = Recorder(InProcess(fresh()))
    discover(recorder, CARD)
    kicks = [mesh for _, mesh, offset, _ in recorder.registers() if offset == reg.TX_KICK]
    assert {mesh: kicks.count(mesh) for mesh in CARD.mesh_ids} == dict.fromkeys(CARD.mesh_ids, 2 * 25)


def test_a_queue_that_is_full_of_stale_replies():
    """Another program left replies, as many as there is room for, and the overflow flag set."""
    card = fresh()
    request = Flit(type=FlitType.CU_CTRL, payload=CONTROL_REQUEST.pack({"index": 1}), dst_x=1, dst_y=1).staged()
    for mesh in CARD.mesh_ids:
        for at, word in enumerate(request):
            card.write64(card.control(mesh, reg.TX_FLIT.start + 8 * at), word)
        for _ in range(20):
            card.write64(card.control(mesh, reg.TX_KICK), 1)
    assert {(unit.mesh, unit.at, unit.type) for unit in discover(InProcess(card), CARD)} == stated(CARD)


class Spoiled(Recorder):
    """Changes the flits that are read out of receive queues; `spoil(number, flit)` gives another flit."""

    def __init__(self, transport, spoil):
        super().__init__(transport)
        self.spoil, self.number = spoil, -1

    def collect(self, spans):
        found = []
        for data in super().collect(spans):
            self.number += 1
            words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
            flit = self.spoil(self.number, Flit.from_staged(words))
            found.append(b"".join(word.to_bytes(8, "little") for word in flit.staged()))
        return tuple(found)


def test_a_value_of_another_endpoint_once():
    """Two reads have to agree; a third is made where they don't."""

    def spoil(number, flit):
        return msgspec.structs.replace(flit, payload=flit.payload ^ 1 << 230) if number in (8, 50) else flit

    assert {(unit.mesh, unit.at, unit.type) for unit in discover(Spoiled(InProcess(fresh()), spoil), CARD)} == stated(
        CARD
    )


def test_capabilities_that_never_agree():
    def spoil(number, flit):
        return msgspec.structs.replace(flit, payload=flit.payload ^ number << 200) if flit.payload >> 248 == 2 else flit

    with pytest.raises(
        DeviceError, match=r"^what stands at \(1, 0\) of mesh 0 says something else each time it is asked"
    ):
        discover(Spoiled(InProcess(fresh()), spoil), CARD)


def test_answers_to_other_questions_are_passed_over():
    """Something else comes first, and then an answer of the same unit, to the same question, asked by somebody else."""
    card = fresh()

    class Chatty(Recorder):
        def submit(self, writes):
            super().submit(writes)
            asked = [self.placed(address) for address, _ in writes]
            for mesh in CARD.mesh_ids:
                received = card.mesh(mesh).agent._mailbox.received
                if (mesh, reg.TX_KICK) in asked:
                    answer = Flit.from_staged(received[0])
                    other = msgspec.structs.replace(answer, txn=answer.txn ^ 128, payload=answer.payload ^ 1 << 230)
                    received.appendleft(other.staged())
                    received.appendleft(Flit(type=FlitType.CU_SIGNAL).staged())

    assert {(unit.mesh, unit.at, unit.type) for unit in discover(Chatty(InProcess(card)), CARD)} == stated(CARD)


def test_nothing_answers():
    """Then there is no unit; nobody waits for ever."""
    card = fresh()

    class Deaf(Recorder):
        def poll(self, addresses):
            empty = [self.placed(address)[1] == reg.RX_STATUS for address in addresses]
            found = super().poll(addresses)
            return tuple(reg.RX_EMPTY if dead else word for dead, word in zip(empty, found, strict=True))

    recorder = Deaf(InProcess(card))
    assert discover(recorder, CARD.without_mesh(0).without_mesh(1).without_mesh(2)) == ()
    assert len(recorder.log) < 2000


def test_an_agent_that_dispatches():
    card = Card(CARD, units={"MG": Quick})
    card.mesh(2).agent.dispatcher._kick = object.__new__(type("Kick", (), {"left": 5}))
    with pytest.raises(DispatchError) as error:
        discover(InProcess(card), CARD)
    assert str(error.value) == (
        "the mailbox of mesh 2 can't be used: its agent dispatches, or its receive queue doesn't become empty. Reset "
        "the card"
    )


def test_a_card_that_is_not_what_is_stated():
    """One unit less, one more, one of another type, and short queues on one mesh: all in one table."""
    machine = with_units(
        CARD, 0, ("MG", ((1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (1, 4))), ("VC", ((1, 0), (2, 0), (2, 4)))
    )
    found = discover(InProcess(Card(machine, assumptions=Assumptions(unit_version=3))), machine)
    short = [
        msgspec.structs.replace(unit, inst_depth=32) if (unit.mesh, unit.at) == (3, (2, 2)) else unit for unit in found
    ]
    with pytest.raises(DeviceError) as error:
        check(CARD, short)
    assert str(error.value) == (
        "the card is not what ktpu-v13p states:\n"
        "  mesh  place   stated            found\n"
        "  0     (1, 4)  VC, queue of 512  MG, queue of 512, version 3\n"
        "  0     (2, 0)  nothing           VC, queue of 512, version 3\n"
        "  0     (2, 2)  MG, queue of 512  nothing\n"
        "  0     (2, 4)  nothing           VC, queue of 512, version 3\n"
        "  3     (2, 2)  MG, queue of 512  MG, queue of 32, version 3\n"
        "Use the machine description of this build, or load the build that it describes"
    )


def test_a_longer_queue_is_no_difference():
    figures = DispatchSpec("a test", staged_words=128, commands=128, instruction_fifo=1024)
    longer = msgspec.structs.replace(CARD, maybe_dispatch=figures)
    check(CARD, discover(InProcess(Card(longer)), longer))
    with pytest.raises(DeviceError):
        check(longer, discover(InProcess(fresh()), CARD))

"""Balance: `BlockBalance`, `GroupIsRectangle`, `OneSender`, `NoOrphanRecv`."""

from __future__ import annotations

import re

from meshwright.certify.certificate import BlockCounts, Entry, Members, Witness
from meshwright.certify.findings import Case, broken, held, not_decided
from meshwright.errors import GraphError
from meshwright.ir.graph import Graph
from meshwright.ir.ids import BufferId, ChipId, GroupId, StageId
from meshwright.ir.moves import group_members
from meshwright.ir.records import Group, Site
from meshwright.ir.room import occupants, unit_at


def members(graph: Graph) -> Members:
    """Who sends to each group, and who receives from it."""
    return Members(*group_members(graph))


def block_balance(case: Case) -> Entry:
    """Every FIFO gets what is taken from it, across multicast too."""
    name = "BlockBalance"
    try:
        counts = case.counts
    except GraphError as error:
        text = str(error)
        if not text.startswith(f"{name}: "):
            return not_decided(name, f"blocks can't be counted through the graph: {text}")
        stages = tuple(StageId(int(n)) for n in re.findall(r"\bs(\d+)\b", text))
        buffers = tuple(BufferId(int(n)) for n in re.findall(r"\bb(\d+)\b", text))
        stages = stages or _ends(case.graph, buffers)
        change = "make the patterns on both sides of the buffer turn equally often, or take the stage away"
        return broken(name, text.removeprefix(f"{name}: "), Witness(stages, buffers, case.chips(stages), change=change))
    return held(name, BlockCounts(tuple(counts.get(BufferId(i), 0) for i in range(len(case.graph.buffers)))))


def _ends(graph: Graph, buffers: tuple[BufferId, ...]) -> tuple[StageId, ...]:
    return tuple(StageId(i) for i, s in enumerate(graph.stages) if set(buffers) & {*s.outs, *s.takes()})


def _bare_site(case: Case, group: Group) -> Site | None:
    """A site of a rectangle at which the machine has nothing; found in as many looks as the chip has units, and one."""
    there = occupants(case.machine)
    (x0, y0), (x1, y1) = group.low, group.high
    sites = (Site(group.sender.chip, x, y) for y in range(y0, y1 + 1) for x in range(x0, x1 + 1))
    return next((site for site in sites if not unit_at(there, site)), None)


def group_is_rectangle(case: Case) -> Entry:
    """Corners are in order, the network multicasts, and there is a unit at every site of the rectangle."""
    name = "GroupIsRectangle"
    for fault in case.faults:
        if fault.obligation == name:
            return broken(name, fault.message, Witness(change="name the low corner first"))
    for index, group in enumerate(case.graph.groups):
        what = f"group g{index}, {group.low} to {group.high} on chip {group.sender.chip}"
        chip = (group.sender.chip,)
        if not case.machine.noc.multicast:
            change = "give every receiver a load of its own"
            return broken(
                name, f"{what}: the network of {case.machine.name} has no multicast", Witness(chips=chip, change=change)
            )
        bare = _bare_site(case, group)
        if bare is not None:
            change = "shrink the rectangle to sites that have a unit"
            message = f"{what}: {case.machine.name} has no unit at {bare}, which is in it"
            return broken(name, message, Witness(chips=chip, change=change))
    return held(name, members(case.graph), "" if case.graph.groups else "the graph has no group")


def one_sender(case: Case) -> Entry:
    """Every group that is received from has one load that sends to it."""
    name = "OneSender"
    found = members(case.graph)
    for index, senders in enumerate(found.senders):
        if len(senders) > 1:
            listed = ", ".join(f"s{s}" for s in senders)
            return broken(
                name,
                f"group g{index} has {len(senders)} senders, {listed}: a receiver can't tell whose block came first",
                Witness(senders, chips=case.chips(senders), change=f"give all but one of {listed} a group of its own"),
            )
    return held(name, found)


def no_orphan_recv(case: Case) -> Entry:
    """Receivers and, if it is inside, the sender are one at every site of the rectangle; all of it, nothing else."""
    name = "NoOrphanRecv"
    found = members(case.graph)
    for index, group in enumerate(case.graph.groups):
        senders, receivers = found.senders[index], found.receivers[index]
        if receivers and not senders:
            return broken(
                name,
                f"stage s{receivers[0]} receives from g{index}, and no load sends to it",
                Witness(receivers[:1], chips=case.chips(receivers[:1]), change=f"add a load that sends to g{index}"),
            )
        if not senders:
            continue
        at: dict[Site, list[StageId]] = {}
        for stage in receivers:
            at.setdefault(case.graph.site(case.graph.stages[stage]), []).append(stage)
        if group.holds(group.sender):
            at.setdefault(group.sender, []).insert(0, senders[0])
        twice = next((stages for stages in at.values() if len(stages) > 1), None)
        if twice is not None:
            listed = " and ".join(f"s{s}" for s in twice)
            return broken(
                name,
                f"{listed} both take the blocks of g{index} at {case.graph.site(case.graph.stages[twice[-1]])}; a "
                "multicast leaves one block a site",
                Witness(tuple(twice), chips=case.chips(twice), change=f"take s{twice[-1]} away"),
            )
        idle = [site for site in group.sites if site not in at]
        if idle:
            return broken(name, *_idle(case, GroupId(index), senders[0], len(at), idle))
    return held(name, found)


def _idle(case: Case, group: GroupId, sender: StageId, there: int, idle: list[Site]) -> tuple[str, Witness]:
    sites = len(case.graph.groups[group].sites)
    more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
    message = (
        f"group g{group} is a rectangle of {sites} sites, and {there} of them receive: nothing takes the blocks that "
        f"s{sender} sends to {idle[0]}{more}"
    )
    change = f"add a Recv at {idle[0]}{more}, or shrink the rectangle to the sites that receive"
    return message, Witness((sender,), (), (ChipId(idle[0].chip),), change=change)

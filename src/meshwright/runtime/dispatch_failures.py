"""What is said and kept of units that don't answer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from meshwright.errors import DispatchError
from meshwright.ir.records import Site
from meshwright.machine import Coord
from meshwright.runtime.dispatch_mailbox import COUNTERS, STATUS, Mailboxes, Question
from meshwright.runtime.dispatch_mirror import Node
from meshwright.simulator import MachineFault

CURE = "reset or reprogram the card, and make another Dispatcher"


class Wedged(Struct, frozen=True):
    """A unit that is used no more, or, with `at` None, a whole mesh. since: by the dispatcher's clock, in seconds."""

    mesh: int
    kind: str
    at: Coord | None
    since: float
    why: str

    @property
    def label(self) -> str:
        """As messages name it."""
        return (
            f"mesh {self.mesh}" if self.at is None else f"{self.kind} ({self.at[0]}, {self.at[1]}) of mesh {self.mesh}"
        )

    def concerns(self, site: Site) -> bool:
        """Whether work for a unit can't be done because of it."""
        return site.chip == self.mesh and self.at in (None, (site.x, site.y))

    def refusal(self, what: str, now: float) -> str:
        """Why work that needs it is refused."""
        seconds = f"{now - self.since:.1f} s"
        return (
            f"{what}, needs {self.label}, which has been out of use for {seconds}: {self.why}. To use it again, "
            f"{CURE}; until then, place this work elsewhere"
        )


def standing(node: Node) -> str:
    """How far a unit has come: its job and instruction, from how many signals have been counted."""
    lines: list[str] = []
    counted = node.counted - node.settled
    least = max(0, counted - node.arrivals)
    shown = f"{counted}" if least == counted else f"{least} to {counted}"
    own = [flight.piece for flight in node.flights if flight.piece.work.job.site == node.site]
    total = sum(map(len, own))
    if own and least < total:
        passed = 0
        for piece in own:
            if least < passed + len(piece):
                word, work = piece.first + least - passed, piece.work
                lines.append(
                    f"{work.label}, instruction {word} of {len(work.words)}, `{work.line(word)}` ({shown} of {total} "
                    "words of this round are counted)"
                )
                break
            passed += len(piece)
    senders = {f.piece.work.label: f for f in node.flights if node.site in f.piece.arrivals}
    for label, flight in senders.items():
        signals = sum(f.piece.arrivals[node.site] for f in node.flights if node.site in f.piece.arrivals)
        sender = flight.piece.work.job.site
        lines.append(
            f"acknowledgements of {label}, from ({sender.x}, {sender.y}) of mesh {sender.chip} ({signals} are expected)"
        )
    return "; ".join(lines) or "nothing that is known"


def testimony(mailboxes: Mailboxes, sites: Sequence[Site]) -> dict[Site, str]:
    """What units say of themselves, where they can be asked; `TransportError` where nothing can be."""
    return {site: _said(mailboxes, site) for site in sites}


def _said(mailboxes: Mailboxes, site: Site) -> str:
    said: list[str] = []
    for index, name in ((STATUS, "status"), (COUNTERS, "counters")):
        try:
            answer = mailboxes.ask({site.chip: Question((site.x, site.y), index)})[site.chip]
        except (DispatchError, MachineFault) as problem:
            said.append(f"its {name} can't be read ({problem})")
            continue
        if answer is None:
            said.append(f"it doesn't answer when asked for its {name}")
        elif index == STATUS:
            state = "busy" if answer >> 63 else "not busy"
            said.append(f"it says that it is {state}, with room for {answer >> 32 & 0xFFFF} more instructions")
        else:
            said.append(f"that it has retired {answer >> 32} instructions since it was reset")
    return ", ".join(said)


def busy(mailboxes: Mailboxes, site: Site) -> bool | None:
    """Whether a unit says that it is at work; None where it says nothing."""
    try:
        answer = mailboxes.ask({site.chip: Question((site.x, site.y), STATUS)})[site.chip]
    except (DispatchError, MachineFault):
        return None
    return None if answer is None else bool(answer >> 63)

"""The crown log: what operators and confirmations said about champions, and which champion answers then.

Entries are only ever added. A champion answers by being the latest, unless an entry says otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tuner.results.record import Id, ProblemKey, new_id, rank_in_time, utc_now


class Act(enum.StrEnum):
    """What an entry does."""

    #: This champion answers until it is unpinned, whoever is crowned meanwhile.
    PIN = "pin"
    #: The latest champion answers again.
    UNPIN = "unpin"
    #: This champion answers again; those crowned between it and now do not.
    ROLLBACK = "rollback"
    #: Champions crowned from now on do not answer.
    FREEZE = "freeze"
    #: They do again.
    UNFREEZE = "unfreeze"
    #: The champion won again in a fresh process.
    CONFIRM = "confirm"
    #: It did not.
    DOUBT = "doubt"


@dataclass(frozen=True)
class Crown:
    """An entry of the crown log.

    Attributes:
        act: What it does.
        problem: The problem; None for every problem, which only a freeze and its end may have.
        kind: Of the devices: ``cuda`` or ``cpu``; empty for all.
        device: Name of the devices; empty for all.
        regime: How time was taken; empty for all.
        champion: UUID of the champion that is pinned, confirmed, doubted or gone back to; else empty.
        who: Who said so.
        why: Why; may be empty.
        id: UUID.
        made_at: ISO 8601, UTC.
    """

    act: Act
    problem: ProblemKey | None
    kind: str
    device: str
    regime: str
    champion: str
    who: str
    why: str = ""
    id: Id = field(default_factory=new_id)
    made_at: str = field(default_factory=utc_now)

    def holds_for(self, problem: ProblemKey, kind: str, device: str, regime: str) -> bool:
        """True if it is about this problem on such a device."""
        return self.problem in (None, problem) and all(
            ours in ("", theirs)
            for ours, theirs in ((self.kind, kind), (self.device, device), (self.regime, regime))
        )


@dataclass
class CrownRules:
    """What the log says of one problem on one model of device in one regime.

    Attributes:
        pinned: UUID of the champion that is pinned; empty if none is.
        frozen_at: Since when no new champion answers; empty if they do.
        out: Champions that were gone back from.
        confirmed: Champions that won again in a fresh process.
        doubted: Champions that did not.
    """

    pinned: str = ""
    frozen_at: str = ""
    out: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    doubted: set[str] = field(default_factory=set)

    def allowed(self, history: Sequence[tuple[str, str]]) -> set[str]:
        """The champions that may answer; the latest of them does.

        Args:
            history: UUID and time of every champion.
        """
        known = {each for each, _ in history}
        if self.pinned in known:
            return {self.pinned}
        last = rank_in_time(self.frozen_at)
        late = {each for each, when in history if self.frozen_at and rank_in_time(when) > last}
        return known - self.out - late


def rules_of(log: Iterable[Crown], history: Sequence[tuple[str, str]]) -> CrownRules:
    """Reads the entries about one problem, device and regime in order of time.

    Args:
        log: The entries.
        history: UUID and time of every champion.
    """
    rules, times = CrownRules(), dict(history)
    for entry in sorted(log, key=lambda each: (rank_in_time(each.made_at), each.id)):
        _follow(rules, entry, times)
    return rules


def _follow(rules: CrownRules, entry: Crown, times: dict[str, str]) -> None:
    match entry.act:
        case Act.PIN:
            rules.pinned = entry.champion
            rules.out.discard(entry.champion)
        case Act.UNPIN:
            rules.pinned = ""
        case Act.ROLLBACK:
            since = rank_in_time(times.get(entry.champion, ""))
            until = rank_in_time(entry.made_at)
            rules.out |= {each for each, when in times.items() if since < rank_in_time(when) <= until}
            rules.out.discard(entry.champion)
            rules.pinned = ""
        case Act.FREEZE:
            rules.frozen_at = rules.frozen_at or entry.made_at
        case Act.UNFREEZE:
            rules.frozen_at = ""
        case Act.CONFIRM:
            rules.confirmed.add(entry.champion)
            rules.doubted.discard(entry.champion)
        case Act.DOUBT:
            rules.doubted.add(entry.champion)
            rules.confirmed.discard(entry.champion)

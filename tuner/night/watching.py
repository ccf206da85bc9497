"""How a night watches, and what its sentinels came to. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.night.causes import Alert
from tuner.results.record import new_id
from tuner.results.sentinel import Sentinel, Terms


@dataclass(frozen=True)
class Rules:
    """How a night watches.

    Attributes:
        terms: When a problem's sentinel stops.
        automatic: True to go back by itself to the champion before one that became slower than it.
    """

    terms: Terms = field(default_factory=Terms)
    automatic: bool = False

    @classmethod
    def of(cls, seconds: float, automatic: bool) -> Rules:
        """By a plan: seconds of each problem's rounds, and whether it goes back by itself."""
        return cls(Terms(seconds), automatic)


@dataclass
class Watching:
    """What the sentinels of a night came to.

    Attributes:
        night: Id of the night.
        sentinels: The night's own, of all boards, without repeats.
        alerts: What changed, and why.
        confirmed: Champions that won again, in words.
        rolled_back: What the night went back from by itself, in words.
        behind: Champions that are slower than the one before in every process of the night.
        left: Why problems were not timed.
        why_none: Why the night has no sentinels; empty if it has.
    """

    night: str = field(default_factory=new_id)
    sentinels: list[Sentinel] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    behind: list[Sentinel] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    why_none: str = ""


def joined(parts: Sequence[Watching], night: str) -> Watching:
    """What the sentinels of several models of device came to, as one.

    Args:
        parts: Of each model.
        night: Id of the night.
    """
    found = Watching(night)
    for name in ("sentinels", "alerts", "confirmed", "rolled_back", "behind", "left"):
        setattr(found, name, [each for part in parts for each in getattr(part, name)])
    if not found.sentinels:
        found.why_none = "; ".join(dict.fromkeys(filter(None, (part.why_none for part in parts))))
        found.why_none = found.why_none or "no board is there"
    return found

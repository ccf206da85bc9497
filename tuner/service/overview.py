"""What the first page shows: devices, what changed lately, what runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tuner.results.record import Champion, ProblemKey
from tuner.store import Store, listing, watched
from tuner.study.crowns import Place, same

#: Champions that are looked at, and hours that a night has before the last of them.
LOOKED_AT, NIGHT_H = 100, 24
#: By less than this fraction a champion is neither faster nor slower.
SAME = 0.01
#: Events of nights that are looked at for the last report.
EVENTS = 6


@dataclass(frozen=True)
class Change:
    """A champion that was crowned lately.

    Attributes:
        place: Problem, device and regime.
        now: The champion.
        before: The one before it; None for a first one.
    """

    place: Place
    now: Champion
    before: Champion | None

    @property
    def ratio(self) -> float | None:
        """Time before over time now: above 1 it got faster; None for a first one."""
        if self.before is None:
            return None
        before_s, now_s = self.before.record.measurement.time_s, self.now.record.measurement.time_s
        return before_s / now_s if before_s and now_s else None

    @property
    def what(self) -> str:
        """``new``, ``faster``, ``slower`` or ``same``."""
        ratio = self.ratio
        if ratio is None:
            return "new"
        if abs(ratio - 1) < SAME:
            return "same"
        return "faster" if ratio > 1 else "slower"

    @property
    def is_other(self) -> bool:
        """True if another config, or another source, is champion now."""
        return self.before is None or not same(self.now, self.before)


def last_night(store: Store) -> list[Change]:
    """The champions of the last day on which any were crowned, the largest change first.

    Champions of two nights were timed in different runs; whether a difference is real is for sentinels to say.
    """
    recent = listing.recent_champions(store, LOOKED_AT)
    if not recent:
        return []
    latest = datetime.fromisoformat(max(each.crowned_at for each in recent))
    since = (latest - timedelta(hours=NIGHT_H)).isoformat(timespec="microseconds")
    lately = [each for each in recent if each.crowned_at >= since]
    history = _histories(store, lately)
    changes = []
    for each in lately:
        place = Place.of(each)
        own = history[place]
        if own[-1].id == each.id:
            earlier = [other for other in own[:-1] if other.crowned_at < since]
            changes.append(Change(place, each, earlier[-1] if earlier else None))
    return sorted(changes, key=lambda change: -abs((change.ratio or 1.0) - 1.0))


def _histories(store: Store, champions: Sequence[Champion]) -> dict[Place, list[Champion]]:
    """All champions of the same places, oldest first."""
    found: dict[Place, list[Champion]] = {}
    problems: list[ProblemKey] = list(dict.fromkeys(each.record.problem for each in champions))
    for champion in listing.champions_of(store, problems):
        found.setdefault(Place.of(champion), []).append(champion)
    return found


def watched_night(store: Store) -> dict[str, Any] | None:
    """What the sentinels of the last night with a report came to; None if there was no such night."""
    ended = [each.data for each in watched.events(store, limit=EVENTS) if each.event == watched.ENDED]
    if not ended:
        return None
    told = ended[-1]
    return {
        "begun_at": told["begun_at"], "ended_at": told["ended_at"], "stopped": told["stopped"],
        "sentinels": len(told["sentinels"]), "no_sentinels": told["no_sentinels"],
        "alerts": told["alerts"], "behind": told["behind"], "confirmed": len(told["confirmed"]),
        "rolled_back": told["rolled_back"],
    }  # fmt: skip


def change_json(change: Change) -> dict[str, Any]:
    """A change as a JSON object."""
    record = change.now.record
    return {
        "operation": record.problem.operation, "shape": record.problem.dims, "dtype": record.problem.dtype,
        "layout": record.problem.layout, "precision": record.problem.precision,
        **record.problem.told_epilogue,
        "device": record.device.name, "regime": record.regime, "what": change.what, "ratio": change.ratio,
        "kernel": record.kernel, "time_s": record.measurement.time_s, "tflops": record.tflops,
        "gbps": record.gbps, "speedup": change.now.speedup or None, "crowned_at": change.now.crowned_at,
    }  # fmt: skip

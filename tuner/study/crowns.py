"""Who is champion, and why: the history of a problem, and what an operator may do about it.

Nothing is changed or deleted: each act is an entry of the crown log, with who and why.
The command line, a service and nights use the same functions.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tuner.devices.device_lock import user_name
from tuner.errors import InputError, NothingFound
from tuner.results.record import Champion, ProblemKey, rank_in_time
from tuner.results.verdict import Act, Crown, CrownRules, rules_of
from tuner.store import Store


class Throne(NamedTuple):
    """What a champion is champion of.

    Attributes:
        problem: The problem.
        kind: Of the devices: ``cuda`` or ``cpu``.
        device: Their name.
        regime: How time was taken.
    """

    problem: ProblemKey
    kind: str
    device: str
    regime: str

    @classmethod
    def of(cls, champion: Champion) -> Throne:
        """The place of a champion."""
        record = champion.record
        return cls(record.problem, record.device.kind, record.device.name, record.regime)

    def __str__(self) -> str:
        return f"{self.problem} on {self.device}, {self.regime}"


@dataclass(frozen=True)
class Reign:
    """A place with everybody who was champion there.

    Attributes:
        place: The place.
        history: Champions, the first first.
        log: Entries of the crown log about it, in order of time.
    """

    place: Throne
    history: tuple[Champion, ...]
    log: tuple[Crown, ...]

    @cached_property
    def rules(self) -> CrownRules:
        """What the log says."""
        return rules_of(self.log, [(one.id, one.crowned_at) for one in self.history])

    @cached_property
    def champion(self) -> Champion | None:
        """The champion that answers; None if none may."""
        allowed = self.rules.allowed([(one.id, one.crowned_at) for one in self.history])
        return next((one for one in reversed(self.history) if one.id in allowed), None)

    @cached_property
    def before(self) -> Champion | None:
        """The latest champion of another config or source before the one that answers, among those that may."""
        if self.champion is None:
            return None
        at, out = self.history.index(self.champion), self.rules.out
        others = (one for one in self.history[:at][::-1] if not same(one, self.champion))
        return next((one for one in others if one.id not in out), None)

    @property
    def beaten(self) -> Champion | None:
        """The champion before, if this one was crowned for being faster; not if that one was wrong, say."""
        now, before = self.champion, self.before
        if now is None or before is None:
            return None
        since = self.history[self.history.index(before) + 1 :]
        return before if next(one for one in since if same(one, now)).verdict == "faster" else None

    def state(self, champion: Champion) -> str:
        """What the log says of a champion: ``pinned``, ``gone back from``, ``confirmed``...; or nothing."""
        rules, frozen_at = self.rules, self.rules.frozen_at
        states = {
            "pinned": champion.id == rules.pinned,
            "gone back from": champion.id in rules.out,
            "frozen out": frozen_at and rank_in_time(champion.crowned_at) > rank_in_time(frozen_at),
            "behind the library": champion.id in rules.behind,
            "confirmed": champion.id in rules.confirmed,
            "not confirmed": champion.id in rules.doubted,
        }
        return next((state for state, holds in states.items() if holds), "")


def same(one: Champion, other: Champion) -> bool:
    """True if two champions are the same config of the same source."""
    a, b = one.record, other.record
    return (a.kernel, dict(a.config), a.source_hash) == (b.kernel, dict(b.config), b.source_hash)


def reigns(
    store: Store, operation: str = "", device: str = "", regime: str = "", problem: ProblemKey | None = None,
    published: Iterable[Champion] = (),
) -> list[Reign]:  # fmt: skip
    """Every place that has a champion, with its history.

    Args:
        store: The database.
        operation: Of this operation only.
        device: Name or uuid of a device.
        regime: How time was taken.
        problem: Of this problem only.
        published: Published champions, which count beside those of the database.
    """
    name = problem.operation if problem else operation
    stored = store.champions(name or None, device or None, regime or None, history=True)
    ids = {champion.id for champion in stored}
    by_place: dict[Throne, list[Champion]] = {}
    for champion in (*stored, *(one for one in published if one.id not in ids)):
        place = Throne.of(champion)
        facts = (name, place.problem.operation), (device, place.device), (regime, place.regime)
        fits = champion.id in ids or all(wanted in ("", fact) for wanted, fact in facts)
        if fits and problem in (None, place.problem):
            by_place.setdefault(place, []).append(champion)
    log = sorted(store.crown_log(), key=lambda entry: (rank_in_time(entry.made_at), entry.id))
    return [
        Reign(
            place,
            tuple(sorted(history, key=lambda one: (rank_in_time(one.crowned_at), one.id))),
            tuple(entry for entry in log if entry.holds_for(*place)),
        )
        for place, history in by_place.items()
    ]


def reign(
    store: Store, problem: ProblemKey, device: str = "", regime: str = "cold",
    published: Iterable[Champion] = (),
) -> Reign:  # fmt: skip
    """The history of one place.

    Args:
        store: The database.
        problem: The problem.
        device: Name or uuid; may be empty if only one model of device has champions of it.
        regime: How time was taken.
        published: See `reigns`.

    Raises:
        NothingFound: It never had a champion.
        InputError: Several models of device have one.
    """
    known = reigns(store, device=device, regime=regime, problem=problem, published=published)
    if not known:
        raise NothingFound(
            f"a problem must have a champion here, {problem} has none"
            f"{f' on {device}' if device else ''} in regime {regime}; `tuner champions list` names what has one"
        )
    if len(known) > 1:
        names = ", ".join(one.place.device for one in known)
        raise InputError(f"{problem} has champions on several devices: {names}; choose one with --device")
    return known[0]


def pin(store: Store, where: Reign, champion: str, why: str, who: str = "") -> Crown:
    """Makes one champion answer until it is unpinned.

    Args:
        store: The database.
        where: The place.
        champion: UUID of one of its champions, or the first letters of it; empty for the one that answers now.
        why: Why.
        who: Who says so; the user of this process when empty.

    Raises:
        NothingFound: It has no such champion.
        InputError: The letters fit several.
    """
    return enter(store, Act.PIN, where.place, _named(where, champion), why, who)


def unpin(store: Store, where: Reign, why: str, who: str = "") -> Crown:
    """Lets the latest champion answer again.

    Raises:
        NothingFound: None is pinned there.
    """
    if not where.rules.pinned:
        raise NothingFound(f"a champion must be pinned to be unpinned, none is for {where.place}")
    return enter(store, Act.UNPIN, where.place, "", why, who)


def rollback(store: Store, where: Reign, why: str, who: str = "", champion: str = "") -> Crown:
    """Goes back to the champion before, of another config; later ones may be crowned and then answer.

    Args:
        store: The database.
        where: The place.
        why: Why.
        who: Who says so; the user of this process when empty.
        champion: UUID of the champion to go back to; the one before when empty.

    Raises:
        NothingFound: There is none before.
    """
    target = _named(where, champion) if champion else where.before.id if where.before else ""
    if not target:
        raise NothingFound(
            f"there must be an earlier champion of another config to go back to, {where.place} has none; "
            f"`tuner champions history` shows all"
        )
    return enter(store, Act.ROLLBACK, where.place, target, why, who)


def freeze(store: Store, why: str, who: str = "", thaw: bool = False) -> Crown:
    """Lets no champion that is crowned from now on answer, of any problem, or ends that.

    Args:
        store: The database.
        why: Why.
        who: Who says so; the user of this process when empty.
        thaw: True to end it.
    """
    return enter(store, Act.UNFREEZE if thaw else Act.FREEZE, (None, "", "", ""), "", why, who)


def enter(
    store: Store, act: Act, place: tuple[ProblemKey | None, str, str, str], champion: str, why: str,
    who: str = "",
) -> Crown:  # fmt: skip
    """Adds an entry to the log.

    Args:
        store: The database.
        act: What is done or noted: that a champion won again in a fresh process, say.
        place: A `Throne`.
        champion: UUID of the champion; empty for an act that names none.
        why: Why.
        who: Who says so; the user of this process when empty.
    """
    entry = Crown(act, *place, champion, who or f"{user_name()}@{socket.gethostname()}", why)
    store.add(entry)
    return entry


def _named(where: Reign, champion: str) -> str:
    if not champion and where.champion is not None:
        return where.champion.id
    fitting = [one.id for one in where.history if champion and one.id.startswith(champion)]
    if len(fitting) > 1:
        raise InputError(f"letters of an id name one champion, {champion!r} fits {len(fitting)}; give more")
    if not fitting:
        raise NothingFound(
            f"an id names a champion of {where.place}, got {champion!r}; `tuner champions history` lists them"
        )
    return fitting[0]


def reign_json(reigning: Reign) -> dict[str, Any]:
    """A problem on a device with the champion that answers, and the one before it."""
    place, rules, now, before = reigning.place, reigning.rules, reigning.champion, reigning.before
    return place.problem.as_keys() | {
        "device": place.device, "regime": place.regime, "champion": now and champion_json(reigning, now),
        "before": before and champion_json(reigning, before), "pinned": rules.pinned or None,
        "frozen_at": rules.frozen_at or None,
    }  # fmt: skip


def champion_json(reigning: Reign, champion: Champion) -> dict[str, Any]:
    """A champion with its figures, and whether it may answer."""
    record, library = champion.record, champion.baseline
    return champion.as_keys() | {
        "library": library and {"name": library.kernel, "time_s": library.measurement.time_s},
        "id": champion.id, "verdict": champion.verdict, "crowned_at": champion.crowned_at,
        "state": reigning.state(champion) or None, "confirmed": champion.id in reigning.rules.confirmed,
        "device_uuid": record.device.uuid, "driver": record.device.driver,
    }  # fmt: skip


def history_json(reigning: Reign) -> dict[str, Any]:
    """Everybody who was champion of a problem on a device, and all that was said about them."""
    names = ("id", "act", "champion", "who", "why", "made_at")
    return reign_json(reigning) | {
        "history": [champion_json(reigning, one) for one in reigning.history],
        "log": [
            {name: getattr(entry, name) for name in names} | {"champion": entry.champion or None}
            for entry in reigning.log
        ],
    }

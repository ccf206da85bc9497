"""Who is champion, and why: the history of a problem, and what an operator may do about it.

Nothing is changed or deleted: each act is an entry of the crown log (`tuner.results.crowns`), with who and why.
The command line, a service and nights use the same functions.
"""

from __future__ import annotations

import getpass
import platform
from dataclasses import dataclass
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError, NothingFound
from tuner.results.crowns import Act, Crown, CrownRules, rules_of
from tuner.results.record import Champion, ProblemKey, rank_in_time
from tuner.store import Store
from tuner.store.listing import Selection


@dataclass(frozen=True)
class Throne:
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

    @property
    def rules(self) -> CrownRules:
        """What the log says."""
        return rules_of(self.log, self._times)

    @property
    def _times(self) -> list[tuple[str, str]]:
        return [(each.id, each.crowned_at) for each in self.history]

    @property
    def champion(self) -> Champion | None:
        """The champion that answers; None if none may."""
        allowed = self.rules.allowed(self._times)
        return next((each for each in reversed(self.history) if each.id in allowed), None)

    @property
    def before(self) -> Champion | None:
        """The latest champion of another config or source before the one that answers, among those that may."""
        now = self.champion
        if now is None:
            return None
        earlier = self.history[: self.history.index(now)]
        out = self.rules.out
        return next((each for each in reversed(earlier) if each.id not in out and not same(each, now)), None)

    @property
    def beaten(self) -> Champion | None:
        """The champion before, if this one was crowned for being faster; not if that one was wrong, say."""
        now, before = self.champion, self.before
        if now is None or before is None:
            return None
        since = self.history[self.history.index(before) + 1 :]
        first = next(each for each in since if same(each, now))
        return before if first.verdict == "faster" else None

    def state(self, champion: Champion) -> str:
        """``pinned``, ``gone back from``, ``frozen out``, ``confirmed``, ``not confirmed``, or nothing."""
        rules = self.rules
        if champion.id == rules.pinned:
            return "pinned"
        if champion.id in rules.out:
            return "gone back from"
        if rules.frozen_at and rank_in_time(champion.crowned_at) > rank_in_time(rules.frozen_at):
            return "frozen out"
        if champion.id in rules.confirmed:
            return "confirmed"
        return "not confirmed" if champion.id in rules.doubted else ""


def same(one: Champion, other: Champion) -> bool:
    """True if two champions are the same config of the same source."""
    a, b = one.record, other.record
    return (a.kernel, dict(a.config), a.source_hash) == (b.kernel, dict(b.config), b.source_hash)


def reigns(
    store: Store, operation: str = "", device: str = "", regime: str = "", problem: ProblemKey | None = None
) -> list[Reign]:
    """Every place that has a champion, with its history.

    Args:
        store: The database.
        operation: Of this operation only.
        device: Name or uuid of a device.
        regime: How time was taken.
        problem: Of this problem only.
    """
    name = problem.operation if problem else operation
    champions = store.champions(name or None, device or None, regime or None, history=True)
    places: dict[Throne, list[Champion]] = {}
    for champion in champions:
        if problem in (None, champion.record.problem):
            places.setdefault(Throne.of(champion), []).append(champion)
    log = sorted(store.rulings.log(), key=lambda each: (rank_in_time(each.made_at), each.id))
    return [
        Reign(
            place,
            tuple(sorted(history, key=lambda each: (rank_in_time(each.crowned_at), each.id))),
            tuple(e for e in log if e.holds_for(place.problem, place.kind, place.device, place.regime)),
        )
        for place, history in places.items()
    ]


def reign(store: Store, problem: ProblemKey, device: str = "", regime: str = "cold") -> Reign:
    """The history of one place.

    Args:
        store: The database.
        problem: The problem.
        device: Name or uuid; may be empty if only one model of device has champions of it.
        regime: How time was taken.

    Raises:
        NothingFound: It never had a champion.
        InputError: Several models of device have one.
    """
    found = reigns(store, device=device, regime=regime, problem=problem)
    if not found:
        raise NothingFound(
            f"a problem must have a champion here, {problem} has none"
            f"{f' on {device}' if device else ''} in regime {regime}; `tuner champions list` names what has one"
        )
    if len(found) > 1:
        names = ", ".join(each.place.device for each in found)
        raise InputError(f"{problem} has champions on several devices: {names}; choose one with --device")
    return found[0]


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
    return _enter(store, Act.PIN, where.place, _named(where, champion), why, who)


def unpin(store: Store, where: Reign, why: str, who: str = "") -> Crown:
    """Lets the latest champion answer again.

    Raises:
        NothingFound: None is pinned there.
    """
    if not where.rules.pinned:
        raise NothingFound(f"a champion must be pinned to be unpinned, none is for {where.place}")
    return _enter(store, Act.UNPIN, where.place, "", why, who)


def rollback(store: Store, where: Reign, why: str, who: str = "", to: str = "") -> Crown:
    """Goes back to the champion before, of another config; later ones may be crowned and then answer.

    Args:
        store: The database.
        where: The place.
        why: Why.
        who: Who says so; the user of this process when empty.
        to: UUID of the champion to go back to; the one before when empty.

    Raises:
        NothingFound: There is none before.
    """
    target = _named(where, to) if to else where.before.id if where.before else ""
    if not target:
        raise NothingFound(
            f"there must be an earlier champion of another config to go back to, {where.place} has none; "
            f"`tuner champions history` shows all"
        )
    return _enter(store, Act.ROLLBACK, where.place, target, why, who)


def freeze(store: Store, place: Throne | None, why: str, who: str = "", thaw: bool = False) -> Crown:
    """Lets no champion that is crowned from now on answer, or ends that.

    Args:
        store: The database.
        place: The place; None for all.
        why: Why.
        who: Who says so; the user of this process when empty.
        thaw: True to end it.
    """
    return _enter(store, Act.UNFREEZE if thaw else Act.FREEZE, place, "", why, who)


def confirm(store: Store, champion: Champion, won: bool, why: str, who: str = "") -> Crown:
    """Notes whether a champion won again in a fresh process."""
    act = Act.CONFIRM if won else Act.DOUBT
    return _enter(store, act, Throne.of(champion), champion.id, why, who)


def user() -> str:
    """The user of this process, with the machine's name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name}@{platform.node() or 'unknown'}"


def _enter(store: Store, act: Act, place: Throne | None, champion: str, why: str, who: str) -> Crown:
    kind, device, regime = (place.kind, place.device, place.regime) if place else ("", "", "")
    problem = place.problem if place else None
    entry = Crown(act, problem, kind, device, regime, champion, who or user(), why)
    store.add(entry)
    return entry


def _named(where: Reign, champion: str) -> str:
    if not champion and where.champion is not None:
        return where.champion.id
    found = [each.id for each in where.history if champion and each.id.startswith(champion)]
    if len(found) > 1:
        raise InputError(f"letters of an id name one champion, {champion!r} fits {len(found)}; give more")
    if not found:
        raise NothingFound(
            f"an id names a champion of {where.place}, got {champion!r}; `tuner champions history` lists them"
        )
    return found[0]


def reign_json(found: Reign) -> dict[str, Any]:
    """A problem on a device with the champion that answers, and the one before it."""
    place, rules = found.place, found.rules
    return {
        "operation": place.problem.operation, "shape": place.problem.dims, "dtype": place.problem.dtype,
        "layout": place.problem.layout, "precision": place.problem.precision,
        **place.problem.told_epilogue, "device": place.device,
        "regime": place.regime, "champion": found.champion and champion_json(found, found.champion),
        "before": found.before and champion_json(found, found.before), "pinned": rules.pinned or None,
        "frozen_at": rules.frozen_at or None,
    }  # fmt: skip


def champion_json(found: Reign, champion: Champion) -> dict[str, Any]:
    """A champion with its figures, and whether it may answer."""
    record, library = champion.record, champion.baseline
    return {
        "id": champion.id, "kernel": record.kernel, "config": dict(record.config),
        "time_s": record.measurement.time_s, "tflops": record.tflops, "gbps": record.gbps,
        "speedup": champion.speedup or None,
        "library": library and {"name": library.kernel, "time_s": library.measurement.time_s},
        "verdict": champion.verdict, "crowned_at": champion.crowned_at,
        "state": found.state(champion) or None, "confirmed": champion.id in found.rules.confirmed,
        "provisional_reasons": list(champion.doubts), "record_id": record.id,
        "device_uuid": record.device.uuid, "driver": record.device.driver,
    }  # fmt: skip


def crown_json(crown: Crown) -> dict[str, Any]:
    """An entry of the crown log."""
    return {
        "id": crown.id, "act": crown.act.value, "champion": crown.champion or None, "who": crown.who,
        "why": crown.why, "made_at": crown.made_at,
    }  # fmt: skip


def history_json(found: Reign) -> dict[str, Any]:
    """Everybody who was champion of a problem on a device, and all that was said about them."""
    return (
        reign_json(found)
        | {"history": [champion_json(found, each) for each in found.history]}
        | {"log": [crown_json(each) for each in found.log]}
    )


def history_of(store: Store, problem: ProblemKey, device: DeviceInfo, regime: str) -> dict[str, Any]:
    """The history of one problem on a device.

    Raises:
        NothingFound: It never had a champion.
    """
    return history_json(reign(store, problem, device.name, regime))


def champions_page(store: Store, wanted: Selection, after: int, limit: int) -> dict[str, Any]:
    """A page of the champions that answer, in the order of their problems."""
    found = [
        each
        for each in reigns(store, wanted.operation, wanted.device, wanted.regime)
        if wanted.has(each.place.problem) and each.champion is not None
    ]
    page = [reign_json(each) for each in found[after : after + limit]]
    more = after + limit if len(found) > after + limit else None
    return {"champions": page, "count": len(found), "next": more}

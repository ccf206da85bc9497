"""The report of a night as plain data, from which HTML, Markdown and JSON are made."""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.errors import NothingFound
from tuner.night.causes import arguments
from tuner.night.detecting import stretches
from tuner.night.watching import NightWatch
from tuner.results.record import utc_now
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Sentinel
from tuner.store import Store, watched
from tuner.study import crowns
from tuner.version import __version__

#: Nights of a sentinel's history in the report.
HISTORY = 90


def night_report(watch: NightWatch, problems: Sequence[Mapping[str, Any]], stopped: str) -> dict[str, Any]:
    """Ends a night: confirms its new champions, and notes its report, from which pages are made now or later.

    Args:
        watch: The night's sentinels.
        problems: What its problems came to, as JSON.
        stopped: Why the night ended early; empty if it did not.
    """
    watch.confirm_new(problems)
    alerts = {True: [], False: []}  # type: dict[bool, list[dict[str, Any]]]
    for alert in watch.alerts:
        alerts[alert.slower or alert.cause == "wrong"].append(alert.to_json())
    report = {
        "form": 1, "night": watch.night, "tuner": __version__, "plan": watch.plan, "host": platform.node(),
        "begun_at": watch.begun_at, "ended_at": utc_now(), "took_s": time.monotonic() - watch.begun_s,
        "stopped": stopped, "sentinels": [_sentinel(each) for each in watch.sentinels],
        "no_sentinels": watch.why_none or None, "not_watched": watch.left, "alerts": alerts[True],
        "improvements": alerts[False], "confirmed": watch.confirmed, "rolled_back": watch.rolled_back,
        "behind": [_behind(each) for each in watch.behind],
        "faster": [_faster(watch.store, each) for each in problems if _is_faster(each)],
        "stale": [_stale(each) for each in problems if each.get("stale")],
        "not_reached": [_left(each) for each in problems if each["state"] in ("not reached", "failed")],
        "problems": list(problems), "boards": _boards(watch.sentinels),
        "history": _history(watch.store, watch.sentinels),
    }  # fmt: skip
    watched.note(watch.store, watched.NightEvent(watch.night, watched.ENDED, report))
    return report


def has_alerts(report: Mapping[str, Any]) -> bool:
    """True if somebody should look."""
    return bool(report["alerts"] or report["behind"])


def latest(store: Store, which: str = "LAST") -> dict[str, Any]:
    """The report of an earlier night.

    Args:
        store: The database.
        which: ``LAST``, or the beginning of the UTC time at which it began, such as ``2026-11-22``.

    Raises:
        NothingFound: No night ended with a report then.
    """
    reports = [dict(each.data) for each in watched.events(store) if each.event == watched.ENDED]
    fitting = [each for each in reports if which.upper() == "LAST" or each["begun_at"].startswith(which)]
    if not fitting:
        known = ", ".join(sorted({each["begun_at"][:10] for each in reports})) or "none"
        raise NothingFound(f"a report is of LAST or of a date with a night, got {which}; there are: {known}")
    return fitting[-1]


def last_night(store: Store) -> dict[str, Any]:
    """How the last night that began has ended, if it has.

    Raises:
        NothingFound: None began.
    """
    events = watched.events(store)
    begun = next((each for each in reversed(events) if each.event == watched.BEGUN), None)
    if begun is None:
        raise NothingFound("no night has begun with this database; `tuner nightly PLAN` begins one")
    ended = next((each for each in events if (each.event, each.night) == (watched.ENDED, begun.night)), None)
    told = {"night": begun.night, "begun_at": begun.at, **begun.data}
    if ended is None:
        return {**told, "ended_at": None, "stopped": None, "alerts": None}
    counts: dict[str, int] = {}
    for each in ended.data["problems"]:
        counts[each["state"]] = counts.get(each["state"], 0) + 1
    alerts = len(ended.data["alerts"]) + len(ended.data["behind"])
    return {
        **told, "ended_at": ended.data["ended_at"], "stopped": ended.data["stopped"] or None, "alerts": alerts,
        "no_sentinels": ended.data["no_sentinels"], "counts": counts,
    }  # fmt: skip


def _sentinel(each: Sentinel) -> dict[str, Any]:
    found: dict[str, Any] = {
        "problem": str(each.problem), "board": each.device.uuid, "regime": each.regime, "took_s": each.took_s,
        "clock_hz": each.circumstance("sm_clock_hz"), "temperature_c": each.circumstance("temperature_c"),
        "power_w": each.circumstance("power_w"), "others": dict(each.seen),
    }  # fmt: skip
    for name in (CHAMPION, BEFORE, LIBRARY):
        player = each.player(name)
        if player is not None:
            found[name] = {"kernel": player.kernel, "config": dict(player.config), "time_s": player.time_s}
    for other in (BEFORE, LIBRARY):
        shift = each.shift(CHAMPION, other)
        if shift is not None:
            found[f"against_{other}"] = {
                "speedup": math.exp(-shift.log_ratio), "verdict": shift.verdict(each.bound),
                "low": _finite(-shift.high), "high": _finite(-shift.low),
            }  # fmt: skip
    return found


def _finite(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if math.isfinite(log_ratio) else None


def _behind(sentinel: Sentinel) -> dict[str, str]:
    """A champion that is slower than the one before, with the command that goes back."""
    return {
        "problem": str(sentinel.problem), "board": sentinel.device.uuid, "behind": BEFORE,
        "command": f"tuner champions rollback {arguments(sentinel.problem, sentinel.regime)} --why '...'",
    }  # fmt: skip


def _is_faster(problem: Mapping[str, Any]) -> bool:
    return problem["state"] == "tuned" and problem["verdict"] in ("faster", "first")


def _faster(store: Store, problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem that has a new champion, with its speed over all time."""
    after, before = problem["after"], problem["before"]
    found = {
        "problem": _words(problem), "verdict": problem["verdict"], "improvement": problem["improvement"],
        "before": before and {"kernel": before["kernel"], "config": before["config"]},
        "after": {"kernel": after["kernel"], "config": after["config"]}, "speedup": after["speedup"],
        "spent_s": problem["spent_s"],
    }  # fmt: skip
    times = _times_of_champions(store, problem)
    if len(times) > 1 and times[-1]:
        found["over_all_time"] = times[0] / times[-1]
    return found


def _times_of_champions(store: Store, problem: Mapping[str, Any]) -> list[float]:
    record = store.record(problem["after"]["record_id"])
    if record is None:
        return []
    history = crowns.reign(store, record.problem, record.device.name, record.regime).history
    return [each.record.measurement.time_s or 0.0 for each in history]


def _words(problem: Mapping[str, Any]) -> str:
    sizes = " x ".join(str(each) for each in problem["shape"].values())
    precision = problem.get("precision", "ieee")
    parts = [problem["operation"], sizes, problem["dtype"], problem["layout"], precision,
             problem.get("epilogue", "")]  # fmt: skip
    return " ".join(each for each in parts if each and each != "ieee")


def _stale(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem whose champion was stale: old beside new."""
    times = {name: problem[name] and problem[name]["time_s"] for name in ("before", "after")}
    return {"problem": _words(problem), "why": problem["stale"], "state": problem["state"], **times}


def _left(problem: Mapping[str, Any]) -> dict[str, Any]:
    return {"problem": _words(problem), "state": problem["state"], "why": problem["why"]}


def _boards(sentinels: Iterable[Sentinel]) -> list[dict[str, Any]]:
    """The boards and their health, as the sentinels saw them."""
    found: dict[str, dict[str, Any]] = {}
    for each in sentinels:
        board = found.setdefault(
            each.device.uuid,
            {
                "uuid": each.device.uuid, "name": each.device.name, "versions": dict(each.versions),
                "clock_hz": [], "temperature_c": [], "power_w": [], "wrong": 0,
            },
        )  # fmt: skip
        for reading, name in (("sm_clock_hz", "clock_hz"), ("temperature_c",) * 2, ("power_w",) * 2):
            value = each.circumstance(reading)
            board[name] += [value] if value is not None else []
        board["wrong"] += any(player.wrong for player in each.players)
    for board in found.values():
        for name in ("clock_hz", "temperature_c", "power_w"):
            values = board[name]
            board[name] = {"least": min(values), "most": max(values)} if values else None
    return list(found.values())


def _history(store: Store, sentinels: Iterable[Sentinel]) -> list[dict[str, Any]]:
    """Times of each sentinel's participants over the nights, and where the ratio's level changed."""
    found = []
    for now in sentinels:
        nights = [
            each
            for each in watched.sentinels(store, now.problem, now.regime)
            if each.process == 1 and each.device.uuid == now.device.uuid and each.player(CHAMPION)
        ][-HISTORY:]
        found.append(
            {
                "problem": str(now.problem), "board": now.device.uuid, "nights": list(map(_night, nights)),
                "changes": _changes(nights),
            }
        )  # fmt: skip
    return found


def _night(sentinel: Sentinel) -> dict[str, Any]:
    players = {name: sentinel.player(name) for name in (CHAMPION, BEFORE, LIBRARY)}
    times = {name: player.time_s if player else None for name, player in players.items()}
    return {"at": sentinel.measured_at, **times}


def _changes(nights: Sequence[Sentinel]) -> list[dict[str, Any]]:
    """Where the level of champion over library changed, and by which share."""
    shifts = [(each.measured_at, each.shift(CHAMPION, LIBRARY)) for each in nights]
    ratios = [(at, shift.log_ratio) for at, shift in shifts if shift is not None]
    cuts = stretches([ratio for _, ratio in ratios])
    return [
        {"at": ratios[each.first][0], "change": math.expm1(each.level - before.level)}
        for before, each in itertools.pairwise(cuts)
    ]

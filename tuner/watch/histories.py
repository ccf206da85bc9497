"""What earlier nights measured of a problem on a board, since its last change, past and told."""

from __future__ import annotations

from tuner.results.sentinel import CHAMPION, Sentinel
from tuner.store import Store, watched


def history_of(store: Store, tonight: Sentinel, said: dict[tuple[str, str], str]) -> list[Sentinel]:
    """The board's own sentinels of earlier nights, since the last change of the problem that was said.

    Args:
        store: The database.
        tonight: The night's own sentinel.
        said: Problem in words and board -> when the last change was said.
    """
    since = said.get((str(tonight.problem), tonight.device.uuid), "")
    found = watched.sentinels(store, tonight.problem, tonight.regime, since=since)
    return [
        each
        for each in found
        if each.process == 1 and each.night != tonight.night and each.device.uuid == tonight.device.uuid
        if each.measured_at < tonight.measured_at and each.player(CHAMPION) is not None
    ]


def last_changes(store: Store) -> dict[tuple[str, str], str]:
    """Problem in words and board -> the beginning of the night in which its last change was said."""
    found: dict[tuple[str, str], str] = {}
    begun: dict[str, str] = {}
    for event in watched.events(store):
        if event.event == watched.BEGUN:
            begun[event.night] = event.at
            continue
        for alert in event.data.get("alerts", ()):
            for each in alert["problems"]:
                found[each["problem"], each["board"]] = begun.get(event.night, event.at)
    return found

"""Entries of the crown log that a night makes by itself: who won again, and what it goes back from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuner.night.analysing import Watch
from tuner.results.record import Champion
from tuner.results.sentinel import BEFORE, CHAMPION
from tuner.store import Store
from tuner.study import crowns

#: A night goes back by itself only from a champion that is slower by this share in each of its passes.
GO_BACK_BEYOND = 0.02
#: Who says so.
BY_ITSELF = "tuner nightly"


def confirm_again(store: Store, watches: Iterable[Watch]) -> list[str]:
    """Confirms champions that won again in a fresh process, or notes that they did not.

    One that did not on one of several boards is not confirmed by another.

    Args:
        store: The database.
        watches: Of all boards of a model.

    Returns:
        The problems whose champion was confirmed, in words.
    """
    told: dict[str, list[tuple[bool, str]]] = {}
    champions: dict[str, Champion] = {}
    for watch in watches:
        now = watch.tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        champion = reign.champion
        if champion is None or champion.id in reign.rules.confirmed:
            continue
        won, why = has_won(watch, champion, reign)
        if won is not None:
            champions[champion.id] = champion
            told.setdefault(champion.id, []).append((won, why))
    for known, verdicts in told.items():
        # False comes first.
        crowns.confirm(store, champions[known], *min(verdicts), BY_ITSELF)
    won_again = (champions[known] for known, verdicts in told.items() if min(verdicts)[0])
    return [str(each.record.problem) for each in won_again]


def go_back(store: Store, watches: Iterable[Watch]) -> list[str]:
    """Goes back from champions that are slower than the one before in all passes of two nights in a row.

    Args:
        store: The database.
        watches: Of all boards of a model; each that timed a champion beside the one before must say so.

    Returns:
        What it went back from, in words.
    """
    places: dict[tuple[object, ...], list[Watch]] = {}
    for watch in watches:
        now = watch.tonight
        if now.shift(CHAMPION, BEFORE) is not None:
            places.setdefault((now.problem, now.device.name, now.regime), []).append(watch)
    found = []
    for beside in places.values():
        now = beside[0].tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        if reign.rules.pinned or reign.before is None or not all(map(goes_back, beside)):
            continue
        shifts = [shift for watch in beside if (shift := watch.tonight.shift(CHAMPION, BEFORE)) is not None]
        slower = min(each.log_ratio for each in shifts)
        passes = sum(1 + len(watch.again) for watch in beside)
        why = f"{slower:.1%} slower than the champion before, in each of {passes} passes, and in the last night"
        crowns.rollback(store, reign, why, BY_ITSELF)
        found.append(f"{now.problem}: {why}")
    return found


def goes_back(watch: Watch) -> bool:
    """True if the champion is slower than the one before in all passes of this night, and was in the last.

    All passes of a night share what the night does: only another one tells it from a champion's own slowness.
    """
    shifts = [each.shift(CHAMPION, BEFORE) for each in (watch.tonight, *watch.again)]
    far = all(each is not None and each.log_ratio >= math.log1p(GO_BACK_BEYOND) for each in shifts)
    return far and bool(watch.again) and watch.is_behind and watch.was_behind


def has_won(watch: Watch, champion: Champion, reign: crowns.Reign) -> tuple[bool | None, str]:
    """Whether a champion won again in a fresh process; None if that is not known yet.

    Against the one before it must be faster again; the first of a problem must be correct.
    """
    tonight = watch.tonight
    player = next((each for each in tonight.players if each.name == CHAMPION), None)
    record = champion.record
    if player is None or (player.kernel, dict(player.config)) != (record.kernel, dict(record.config)):
        return None, ""
    if player.wrong:
        return False, f"in a fresh process: {player.wrong}"
    if not player.rounds_s:
        return None, ""
    if reign.beaten is None:
        return True, "correct in a fresh process; there is no champion before it to beat"
    verdict = tonight.verdict(BEFORE)
    shift = tonight.shift(CHAMPION, BEFORE)
    if shift is None:
        return None, ""
    told = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    if verdict == "slower":
        return False, told
    return (True, told) if shift.high < 0 else (None, told)

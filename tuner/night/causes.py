"""Why did times change? Evidence in, a cause out; pure rules that a person can follow.

Both moved: the node, its clocks or a neighbour. The library alone: its vendor. The champion with new machine
code: the compiler, or its own new config. The champion with the same machine code: the driver, or the board.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: Causes, and what they are called.
CAUSES = {
    "neighbour": "something else ran on the same device",
    "clocks": "the device ran at other clocks",
    "driver": "the driver changed",
    "node": "the node or board became slower or faster as a whole",
    "vendor": "the library changed",
    "compiler": "the compiler makes other machine code of the same source",
    "config": "the champion is another config or source than before",
    "board": "the champion alone moved, with the same machine code and driver",
    "wrong": "the champion no longer computes the right result",
}
#: A clock that differs by this share tells something.
CLOCK_CHANGE = 0.005
#: Power beyond that of the nights before, at other problems, that only a neighbour explains.
POWER_CHANGE = 0.12
#: Of the problems of a board, so many must have moved together for the board to be the cause.
TOGETHER = 0.5


@dataclass(frozen=True)
class Evidence:
    """What is known of a problem that changed on a board in a night.

    Attributes:
        problem: The problem in words.
        board: UUID of the board.
        regime: How time was taken.
        moved: What explains the night best: ``champion``, ``library`` or ``all``.
        change: Share by which the time changed; above 0 it is slower.
        interval: Its 95 % interval.
        since: First night of the change: ISO 8601, UTC.
        crept: True if the nights together tell it, not this one alone.
        wrong: What is wrong with the champion's result; empty if nothing is.
        new_code: True if the champion's machine code is not that of the nights before.
        new_config: True if the champion is another config or source than in the nights before.
        versions: Name -> (before, now) of each version that changed: driver, compiler, library...
        clock_change: Share by which the clock differs from the nights before; None if it was not read.
        throttled: True if the device was throttled, and was not in the nights before.
        power_change: Largest share by which the board drew more power at other problems than in the nights
            before; None if it was not read.
        others: Others' share of the device meanwhile, or how many processes, whichever tells more; 0 for none.
        together: Share of the board's watched problems whose champion and library moved alike.
        elsewhere: True if another board of the model moved alike in that night; None if there is none.
        arguments: The problem as the command line takes it.
        fell_behind: ``before`` or ``library`` if the champion is now slower than that one; else empty.
    """

    problem: str
    board: str
    regime: str
    moved: str
    change: float
    interval: tuple[float, float]
    since: str = ""
    crept: bool = False
    wrong: str = ""
    new_code: bool = False
    new_config: bool = False
    versions: dict[str, tuple[str, str]] = field(default_factory=dict)
    clock_change: float | None = None
    throttled: bool = False
    power_change: float | None = None
    others: float = 0.0
    together: float = 0.0
    elsewhere: bool | None = None
    arguments: str = ""
    fell_behind: str = ""


@dataclass(frozen=True)
class Alert:
    """One cause, however many problems it hit.

    Attributes:
        cause: A key of `CAUSES`.
        why: What led to it, in a sentence.
        slower: True if times rose.
        change: Median change of the problems.
        since: When it was first seen; ISO 8601, UTC.
        command: The command that shows more.
        problems: Everything that is known of each problem.
    """

    cause: str
    why: str
    slower: bool
    change: float
    since: str
    command: str
    problems: tuple[Evidence, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object, with the cause in words."""
        return asdict(self) | {"told": CAUSES[self.cause]}


def judge(found: Evidence) -> tuple[str, str]:
    """Names the cause of a change.

    Args:
        found: What is known of it.

    Returns:
        A key of `CAUSES`, and what led to it.
    """
    if found.wrong:
        return "wrong", found.wrong
    if found.moved == "library":
        return _neighbour(found) or ("vendor", _vendor(found))
    if found.moved == "champion":
        return _champion(found)
    return _all(found)


def _vendor(found: Evidence) -> str:
    if "library" in found.versions:
        return f"the library alone moved, and it was {_versions(found, 'library')}"
    return "the library alone moved, although its version is the same: what it chooses has changed"


def _champion(found: Evidence) -> tuple[str, str]:
    if found.new_config:
        return "config", "the champion is another config or source than in the nights before"
    if found.new_code:
        told = _versions(found, "compiler") if "compiler" in found.versions else "of the same version"
        return "compiler", f"the champion's machine code is new, of the same source and config; compiler {told}"
    if "driver" in found.versions:
        return (
            "driver",
            f"the champion's machine code is the same; the driver was {_versions(found, 'driver')}",
        )
    disturbed = _disturbed(found)
    if disturbed:
        return disturbed
    return "board", "the champion alone moved; its machine code, driver, clocks and neighbours are the same"


def _all(found: Evidence) -> tuple[str, str]:
    disturbed = _disturbed(found)
    if disturbed:
        return disturbed
    if "driver" in found.versions:
        return "driver", f"champion and library moved alike, and the driver was {_versions(found, 'driver')}"
    if found.elsewhere:
        return "node", "champion and library moved alike, on another board, too: what the boards share"
    beside = "" if found.elsewhere is None else "; another board did not"
    return "node", f"champion and library moved alike, with the same driver and clocks{beside}"


def _disturbed(found: Evidence) -> tuple[str, str] | None:
    """A neighbour or other clocks, if there is a sign of them."""
    neighbour = _neighbour(found)
    if neighbour:
        return neighbour
    if found.throttled and found.change > 0:
        return "clocks", "the device was throttled, and was not in the nights before"
    clock = found.clock_change
    if clock is not None and abs(clock) >= CLOCK_CHANGE and clock * found.change < 0:
        return "clocks", f"its clock was {clock:+.1%} of that in the nights before"
    return None


def _neighbour(found: Evidence) -> tuple[str, str] | None:
    """A neighbour, if it was seen, or if the board drew more power than its own work explains."""
    if found.change <= 0:
        return None
    if found.others > 0:
        return "neighbour", "others were seen on the device meanwhile"
    if found.power_change is not None and found.power_change >= POWER_CHANGE:
        told = f"the board drew {found.power_change:.0%} more power at other problems than in the nights before"
        return "neighbour", told
    return None


def _versions(found: Evidence, name: str) -> str:
    before, now = found.versions[name]
    return f"{before or 'unknown'} and is {now or 'unknown'}"


def alerts(evidence: Iterable[Evidence]) -> list[Alert]:
    """One alert for each cause, however many problems it hit; those with the most problems first."""
    groups: dict[tuple[str, ...], list[Evidence]] = {}
    whys: dict[tuple[str, ...], str] = {}
    for each in evidence:
        cause, why = judge(each)
        where = "" if cause in ("vendor", "compiler") else each.board
        key = cause, where, "slower" if each.change > 0 else "faster"
        groups.setdefault(key, []).append(each)
        whys.setdefault(key, why)
    found = [_alert(key[0], whys[key], problems) for key, problems in groups.items()]
    return sorted(found, key=lambda each: (not each.slower, -len(each.problems)))


def _alert(cause: str, why: str, problems: Sequence[Evidence]) -> Alert:
    ordered = sorted(problems, key=lambda each: -abs(each.change))
    changes = sorted(each.change for each in ordered)
    middle = changes[len(changes) // 2]
    command = f"tuner watch explain {ordered[0].arguments}"
    since = min((each.since for each in ordered if each.since), default="")
    return Alert(cause, why, middle > 0, middle, since, command, tuple(ordered))

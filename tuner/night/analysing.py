"""From the sentinels of a board's nights to what changed, with all the evidence for why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tuner.declare.problem import IEEE
from tuner.night.detecting import LEAST_HISTORY, Finding, Floats, confirmed, discoveries, examine, levels
from tuner.results.doubts import BUSY_GPU, OTHERS_CORES, OTHERS_GPU, OTHERS_PROCESSES
from tuner.results.record import ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Player, Sentinel

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
        return f"the library alone moved, and it was {_version_change(found, 'library')}"
    return "the library alone moved, although its version is the same: what it chooses has changed"


def _champion(found: Evidence) -> tuple[str, str]:
    if found.new_config:
        return "config", "the champion is another config or source than in the nights before"
    if found.new_code:
        told = _version_change(found, "compiler") if "compiler" in found.versions else "of the same version"
        return "compiler", f"the champion's machine code is new, of the same source and config; compiler {told}"
    if "driver" in found.versions:
        return (
            "driver",
            f"the champion's machine code is the same; the driver was {_version_change(found, 'driver')}",
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
        return (
            "driver",
            f"champion and library moved alike, and the driver was {_version_change(found, 'driver')}",
        )
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


def _version_change(found: Evidence, name: str) -> str:
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


def arguments(problem: ProblemKey, regime: str = "cold") -> str:
    """Operation, dims and options of a problem."""
    dims = " ".join(str(size) for _, size in problem.shape)
    more = [f"--layout {problem.layout}"] if problem.layout else []
    more += [f"--precision {problem.precision}"] if problem.precision != IEEE else []
    more += [f"--epilogue {problem.epilogue}"] if problem.epilogue else []
    more += [f"--regime {regime}"] if regime != "cold" else []
    return " ".join([problem.operation, dims, f"--dtype {problem.dtype}", *more])


#: Others' processor time that counts, in cores.
BUSY_CORES = 0.5
#: Bits of NVML's reasons that are a throttle: power, thermal and hardware slowdowns (nvml.h, "clocks event
#: reasons"): software power cap, hardware slowdown, software and hardware thermal, power brake.
THROTTLES = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@dataclass
class Watch:
    """One problem on one board in a night.

    Attributes:
        history: The nights before, the first first: the night's own sentinels since the last change.
        tonight: The night's own sentinel.
        again: Its repeats in fresh processes.
    """

    history: list[Sentinel]
    tonight: Sentinel
    again: list[Sentinel]

    @property
    def new_config(self) -> bool:
        """True if the champion is another config or source than in the nights before."""
        return bool(self.history) and _who(self.history[-1], CHAMPION) != _who(self.tonight, CHAMPION)

    @property
    def wrong(self) -> str:
        """What is wrong with the champion; empty if nothing is."""
        return next((each.wrong for each in self.tonight.players if each.name == CHAMPION), "")

    @property
    def nights(self) -> Floats:
        """A row for each earlier night with the champion that the last one had."""
        who = _who(self.history[-1], CHAMPION), _who(self.history[-1], BEFORE)
        rows = []
        for each in reversed(self.history):
            if _who(each, CHAMPION) != who[0]:
                break
            rows.append(self._row(each, who[1]))
        return np.array(rows[::-1])

    def rows(self, sentinels: Iterable[Sentinel]) -> Floats:
        """A row for each process of this night."""
        before = _who(self.history[-1], BEFORE)
        return np.array([self._row(each, before) for each in sentinels])

    def _row(self, sentinel: Sentinel, before: tuple[object, ...] | None) -> Floats:
        row = levels(sentinel)
        if _who(sentinel, BEFORE) != before:
            row[1] = np.nan
        return row

    def first_look(self) -> Finding | None:
        """What the night's own process tells; None while too little is known."""
        timed = self.tonight.player(CHAMPION) is not None
        return examine(self.nights, self.rows([self.tonight])) if self.history and timed else None

    def second_look(self) -> Finding | None:
        """What is left of it after the repeats."""
        again = [each for each in self.again if each.player(CHAMPION) is not None]
        if not again or not self.history or self.tonight.player(CHAMPION) is None:
            return None
        return confirmed(self.nights, self.rows([self.tonight])[0], self.rows(again))

    def behind(self) -> str:
        """Whom the champion is slower than in all processes: ``before``, ``library`` or nobody."""
        for other in (BEFORE, LIBRARY):
            verdicts = {each.verdict(other) for each in (self.tonight, *self.again)}
            if verdicts == {"slower"}:
                return other
        return ""

    @property
    def is_behind(self) -> bool:
        """True if the champion is slower than the one before in all processes."""
        return self.behind() == BEFORE

    @property
    def was_behind(self) -> bool:
        """True if the same champion was slower than the same one before in the night before, too."""
        if not self.history:
            return False
        last = self.history[-1]
        same = all(_who(last, name) == _who(self.tonight, name) for name in (CHAMPION, BEFORE))
        return same and last.verdict(BEFORE) == "slower"

    @property
    def suspect(self) -> bool:
        """True if it is worth repeating in fresh processes."""
        found = self.first_look()
        return bool(self.wrong) or bool(self.behind()) or (found is not None and found.suspect)


def _who(sentinel: Sentinel, name: str) -> tuple[object, ...] | None:
    """Identity of a participant: kernel, config and source."""
    for each in sentinel.players:
        if each.name == name:
            return each.kernel, tuple(sorted(each.config.items())), each.source_hash
    return None


def told(watches: Sequence[Watch]) -> list[tuple[Watch, Finding]]:
    """The changes of a board's night that are told: repeated, beyond its prediction limits, few of them false.

    A new champion that is faster is no news here: its finals said so.
    """
    findings = [each.second_look() if each.suspect else each.first_look() for each in watches]
    tell = discoveries(findings)
    return [
        (watch, finding)
        for watch, finding, is_told in zip(watches, findings, tell, strict=True)
        if is_told and watch.again and finding is not None
        if not (watch.new_config and finding.residual.change < 0)
    ]


def evidence(watches: Sequence[Watch], elsewhere: Mapping[str, bool]) -> list[Evidence]:
    """Everything that is known of each change of a board's night.

    Args:
        watches: The board's problems.
        elsewhere: Problem in words -> whether another board moved alike; without an entry there is none.
    """
    changed = told(watches)
    moved = [finding.moved for _, finding in changed]
    together = moved.count("all") / max(len(watches), 1)
    # Where one alone moved, the board's power is that one's own: another algorithm draws another power.
    alone = {id(watch) for watch, finding in changed if finding.moved != "all"}
    power = {
        id(each): change
        for each in watches
        if id(each) not in alone and (change := _power_change(each)) is not None
    }
    found = []
    for watch, finding in changed:
        others = [change for name, change in power.items() if name != id(watch)]
        one = _evidence(watch, finding, together, elsewhere)
        found.append(replace(one, power_change=max(others, default=None)))
    for watch in watches:
        if watch.wrong and all(each.players[0].wrong for each in watch.again):
            found.append(_of_a_wrong_one(watch))
    return found


def _of_a_wrong_one(watch: Watch) -> Evidence:
    now = watch.tonight
    return Evidence(
        str(now.problem), now.device.uuid, now.regime, CHAMPION, 0.0, (0.0, 0.0), now.measured_at,
        wrong=watch.wrong, new_config=watch.new_config, arguments=arguments(now.problem, now.regime),
    )  # fmt: skip


def _evidence(watch: Watch, finding: Finding, together: float, elsewhere: Mapping[str, bool]) -> Evidence:
    now, before = watch.tonight, watch.history
    champion, library = now.player(CHAMPION), now.player(LIBRARY)
    since = now.measured_at
    if finding.crept and finding.nights > 1:
        since = [*before, now][-min(finding.nights, len(before) + 1)].measured_at
    return Evidence(
        str(now.problem), now.device.uuid, now.regime, finding.moved, math.expm1(finding.residual.change),
        finding.residual.interval, since, finding.crept and finding.nights > 1,
        new_code=bool(champion and not watch.new_config and _codes(before, champion)),
        new_config=watch.new_config, versions=_versions(before[-1], now, library is not None),
        clock_change=_clock_change(before, now), throttled=_throttled(now) and not any(map(_throttled, before)),
        others=_others(now) if not any(_others(each) for each in before[-5:]) else 0.0, together=together,
        elsewhere=elsewhere.get(str(now.problem)), fell_behind=watch.behind(),
        arguments=arguments(now.problem, now.regime),
    )  # fmt: skip


def _codes(before: Sequence[Sentinel], champion: Player) -> bool:
    """True if the champion's machine code is new."""
    last = before[-1].player(CHAMPION)
    return bool(last and champion.binary_hash and last.binary_hash != champion.binary_hash)


def _versions(before: Sentinel, now: Sentinel, library: bool) -> dict[str, tuple[str, str]]:
    names = sorted(before.versions.keys() | now.versions.keys())
    found = {
        name: (before.versions.get(name, ""), now.versions.get(name, ""))
        for name in names
        if before.versions.get(name) != now.versions.get(name)
    }
    champion, last = now.player(CHAMPION), before.player(CHAMPION)
    if champion and last and champion.compiler != last.compiler:
        found["compiler"] = last.compiler, champion.compiler
    return found


def _clock_change(before: Sequence[Sentinel], now: Sentinel) -> float | None:
    clocks = [each for each in (one.circumstance("sm_clock_hz") for one in before) if each]
    clock = now.circumstance("sm_clock_hz")
    return clock / statistics.median(clocks) - 1.0 if clock and clocks else None


def _power_change(watch: Watch) -> float | None:
    """Share by which a problem's power differs from that of the nights before; None if it was not read."""
    powers = [each for each in (one.circumstance("power_w") for one in watch.history) if each]
    power = watch.tonight.circumstance("power_w")
    return power / statistics.median(powers) - 1.0 if power and len(powers) >= LEAST_HISTORY else None


def _throttled(sentinel: Sentinel) -> bool:
    reasons = sentinel.circumstances.get("throttle_reasons", ())
    hit = sum(bool(int(each) & THROTTLES) for each in reasons)
    return bool(reasons) and hit > len(reasons) / 2


def _others(sentinel: Sentinel) -> float:
    seen = sentinel.seen
    cores = seen.get(OTHERS_CORES, 0.0)
    gpu = seen.get(OTHERS_GPU, 0.0)
    return max(
        gpu if gpu >= BUSY_GPU else 0.0, seen.get(OTHERS_PROCESSES, 0.0), cores if cores > BUSY_CORES else 0.0
    )  # fmt: skip


def alerts_of(of_boards: Mapping[str, Sequence[Watch]]) -> list[Alert]:
    """The alerts of all boards; the evidence of each is told what the others did."""
    alone = {board: evidence(watches, {}) for board, watches in of_boards.items()}
    found = []
    for board, watches in of_boards.items():
        others = [each for other, told in alone.items() if other != board for each in told]
        elsewhere = {
            str(watch.tonight.problem): any(
                each.problem == str(watch.tonight.problem) and each.moved == "all" for each in others
            )
            for watch in watches
            if len(of_boards) > 1
        }
        found += evidence(watches, elsewhere)
    return alerts(found)

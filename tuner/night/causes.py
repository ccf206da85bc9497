"""From the sentinels of a board's nights to what changed, with all the evidence for why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.declare.problem import IEEE
from tuner.night.detecting import LEAST_HISTORY, Finding, ProblemNight
from tuner.results.measurement import BUSY_GPU, OTHERS_CORES, OTHERS_GPU, OTHERS_PROCESSES
from tuner.results.record import ProblemKey
from tuner.results.sentinel import CHAMPION, Sentinel

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
#: Others' processor time that counts, in cores.
BUSY_CORES = 0.5
#: Bits of NVML's reasons that are a throttle: power, thermal and hardware slowdowns (nvml.h, "clocks event
#: reasons"): software power cap, hardware slowdown, software and hardware thermal, power brake.
THROTTLES = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class ChangeEvidence:
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
    problems: tuple[ChangeEvidence, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object, with the cause in words."""
        return asdict(self) | {"told": CAUSES[self.cause]}


def judge(evidence: ChangeEvidence) -> tuple[str, str]:
    """Names the cause of a change.

    Args:
        evidence: What is known of it.

    Returns:
        A key of `CAUSES`, and what led to it.
    """
    return next(_causes(evidence))


def _causes(evidence: ChangeEvidence) -> Iterator[tuple[str, str]]:
    """The causes that explain a change, what tells most first; the last explains any."""
    is_alone, is_slower = evidence.moved == "champion", evidence.change > 0
    if evidence.wrong:
        yield "wrong", evidence.wrong
    if is_alone and evidence.new_config:
        yield "config", "the champion is another config or source than in the nights before"
    if is_alone and evidence.new_code:
        compiler = _version(evidence, "compiler") or "of the same version"
        yield (
            "compiler",
            f"the champion's machine code is new, of the same source and config; compiler {compiler}",
        )
    driver = _version(evidence, "driver")
    if is_alone and driver:
        yield "driver", f"the champion's machine code is the same; the driver was {driver}"
    if is_slower and evidence.others > 0:
        yield "neighbour", "others were seen on the device meanwhile"
    if is_slower and (evidence.power_change or 0.0) >= POWER_CHANGE:
        power = f"{evidence.power_change:.0%} more power at other problems"
        yield "neighbour", f"the board drew {power} than in the nights before"
    if evidence.moved == "library":
        same = "although its version is the same: what it chooses has changed"
        library = _version(evidence, "library")
        yield "vendor", f"the library alone moved, {f'and it was {library}' if library else same}"
    if is_slower and evidence.throttled:
        yield "clocks", "the device was throttled, and was not in the nights before"
    clock = evidence.clock_change or 0.0
    if abs(clock) >= CLOCK_CHANGE and clock * evidence.change < 0:
        yield "clocks", f"its clock was {clock:+.1%} of that in the nights before"
    if is_alone:
        yield "board", "the champion alone moved; its machine code, driver, clocks and neighbours are the same"
    if driver:
        yield "driver", f"champion and library moved alike, and the driver was {driver}"
    if evidence.elsewhere:
        yield "node", "champion and library moved alike, on another board, too: what the boards share"
    beside = "" if evidence.elsewhere is None else "; another board did not"
    yield "node", f"champion and library moved alike, with the same driver and clocks{beside}"


def _version(evidence: ChangeEvidence, name: str) -> str:
    """How a version changed; empty if it did not."""
    before, now = evidence.versions.get(name, ("", ""))
    return f"{before or 'unknown'} and is {now or 'unknown'}" if before or now else ""


def alerts(changes: Iterable[ChangeEvidence]) -> list[Alert]:
    """One alert for each cause, however many problems it hit; those with the most problems first."""
    groups: dict[tuple[str, str, bool], list[tuple[ChangeEvidence, str]]] = {}
    for change in changes:
        cause, why = judge(change)
        board = "" if cause in ("vendor", "compiler") else change.board
        groups.setdefault((cause, board, change.change > 0), []).append((change, why))
    of_causes = []
    for (cause, _, slower), group in groups.items():
        problems = tuple(sorted((change for change, _ in group), key=lambda one: -abs(one.change)))
        middle = statistics.median_high(one.change for one in problems)
        since = min((one.since for one in problems if one.since), default="")
        command = f"tuner watch explain {problems[0].arguments}"
        of_causes.append(Alert(cause, group[0][1], slower, middle, since, command, problems))
    return sorted(of_causes, key=lambda alert: (not alert.slower, -len(alert.problems)))


def arguments(problem: ProblemKey, regime: str = "cold") -> str:
    """Operation, dims and options of a problem."""
    precision = problem.precision if problem.precision != IEEE else ""
    options = {
        "dtype": problem.dtype, "layout": problem.layout, "precision": precision, "epilogue": problem.epilogue,
        "regime": regime if regime != "cold" else "",
    }  # fmt: skip
    named = [f"--{name} {value}" for name, value in options.items() if value]
    return " ".join([problem.operation, *(str(size) for _, size in problem.shape), *named])


def alerts_of(of_boards: Mapping[str, Sequence[ProblemNight]]) -> list[Alert]:
    """The alerts of all boards; the evidence of each says what the others did."""
    changes = [change for nights in of_boards.values() for change in _evidence(nights)]
    if len(of_boards) > 1:
        alike = {(change.problem, change.board) for change in changes if change.moved == "all"}
        changes = [
            replace(one, elsewhere=any(name == one.problem and board != one.board for name, board in alike))
            for one in changes
        ]
    return alerts(changes)


def _evidence(nights: Sequence[ProblemNight]) -> list[ChangeEvidence]:
    """Everything that is known of each change of a board's night."""
    changes = [(night, change) for night in nights if (change := night.change) is not None]
    together = sum(change.moved == "all" for _, change in changes) / max(len(nights), 1)
    # Where one alone moved, the board's power is that one's own: another algorithm draws another power.
    alone = [night for night, change in changes if change.moved != "all"]
    power = [
        (night, _share_of_usual(night, "power_w", LEAST_HISTORY)) for night in nights if night not in alone
    ]
    evidence = []
    for night, change in changes:
        shares = [share for other, share in power if other is not night and share is not None]
        found = _change_evidence(night, change)
        evidence.append(replace(found, together=together, power_change=max(shares, default=None)))
    wrong = [night for night in nights if night.wrong and all(again.players[0].wrong for again in night.again)]
    return [*evidence, *(replace(_plain_evidence(night, CHAMPION), wrong=night.wrong) for night in wrong)]


def _plain_evidence(night: ProblemNight, moved: str) -> ChangeEvidence:
    now = night.tonight
    return ChangeEvidence(
        str(now.problem), now.device.uuid, now.regime, moved, 0.0, (0.0, 0.0), now.measured_at,
        new_config=night.new_config, arguments=arguments(now.problem, now.regime),
    )  # fmt: skip


def _change_evidence(night: ProblemNight, change: Finding) -> ChangeEvidence:
    now, history = night.tonight, night.history
    champion, last = now.player(CHAMPION), history[-1].player(CHAMPION)
    both = {
        name: (history[-1].versions.get(name, ""), now.versions.get(name, ""))
        for name in sorted(history[-1].versions.keys() | now.versions.keys())
    }
    if champion and last and champion.compiler != last.compiler:
        both["compiler"] = last.compiler, champion.compiler
    new_code = champion and last and champion.binary_hash and champion.binary_hash != last.binary_hash
    return replace(
        _plain_evidence(night, change.moved), change=math.expm1(change.change), interval=change.interval,
        since=[*history, now][-min(change.nights, len(history) + 1)].measured_at, crept=change.nights > 1,
        new_code=bool(new_code and not night.new_config),
        versions={name: versions for name, versions in both.items() if versions[0] != versions[1]},
        clock_change=_share_of_usual(night, "sm_clock_hz"),
        throttled=_throttled(now) and not any(map(_throttled, history)),
        others=_others(now) if not any(map(_others, history[-5:])) else 0.0, fell_behind=night.behind,
    )  # fmt: skip


def _share_of_usual(night: ProblemNight, reading: str, least: int = 1) -> float | None:
    """Share by which a reading differs from that of the nights before; None if it was read too seldom."""
    usual = [value for sentinel in night.history if (value := sentinel.circumstance(reading))]
    value = night.tonight.circumstance(reading)
    return value / statistics.median(usual) - 1.0 if value and len(usual) >= least else None


def _throttled(sentinel: Sentinel) -> bool:
    reasons = sentinel.circumstances.get("throttle_reasons", ())
    return sum(bool(int(reason) & THROTTLES) for reason in reasons) > len(reasons) / 2


def _others(sentinel: Sentinel) -> float:
    seen = sentinel.seen
    gpu, cores = seen.get(OTHERS_GPU, 0.0), seen.get(OTHERS_CORES, 0.0)
    busy = gpu if gpu >= BUSY_GPU else 0.0, cores if cores > BUSY_CORES else 0.0
    return max(*busy, seen.get(OTHERS_PROCESSES, 0.0))

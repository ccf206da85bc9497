"""From the sentinels of a board's nights to what changed, with all the evidence for why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.declare.problem import IEEE
from tuner.night.causes import Alert, Evidence, alerts
from tuner.night.detecting import LEAST_HISTORY, Finding, confirmed, discoveries, examine
from tuner.night.noise import Floats, levels
from tuner.results.doubts import BUSY_GPU, OTHERS_CORES, OTHERS_GPU, OTHERS_PROCESSES
from tuner.results.record import ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Player, Sentinel


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

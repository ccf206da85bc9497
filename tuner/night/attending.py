"""What accompanies a night: its beginning is noted, sentinels come first, and its end is noted with the report.

The night itself is not known here: the command line runs it between `begin` and `end`.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, TunerError
from tuner.night.reporting import summary
from tuner.night.sentinels import Boards, Candidate, Here, choose
from tuner.night.watch_night import NightWatch, Rules, Watching, joined
from tuner.results.record import utc_now
from tuner.store import Store, demand, watched
from tuner.version import __version__

#: Share of a night's time that sentinels may take, and what they cost beside their rounds: seconds to begin,
#: and for each problem, for arrays and checks.
SHARE, BEGIN_S, BESIDE_S = 0.1, 15.0, 0.6
#: Seconds that it takes to begin to confirm new champions.
CONFIRM_BEGIN_S = 5.0


@dataclass
class Attended:
    """A night that is watched.

    Attributes:
        store: The database.
        boards: The night's boards, of one model.
        rules: How it watches.
        plan: The plan's file, in words.
        say: Is told what goes on.
        watching: What the sentinels came to.
    """

    store: Store
    boards: Sequence[DetectedDevice]
    rules: Rules
    plan: str
    say: Callable[[str], None]
    watching: Watching = field(default_factory=Watching)
    _begun_s: float = field(default_factory=time.monotonic, init=False)
    _begun_at: str = field(default_factory=utc_now, init=False)
    _candidates: Sequence[Candidate] = field(default=(), init=False)
    _until_s: float = field(default=math.inf, init=False)
    _noted: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls, store: Store, boards: Sequence[DetectedDevice], plan: str, say: Callable[[str], None], *,
        seconds: float, automatic: bool,
    ) -> Attended:  # fmt: skip
        """A night by the rules of a plan.

        Args:
            store: The database.
            boards: The night's boards.
            plan: The plan's file, in words.
            say: Is told what goes on.
            seconds: Wall time of each problem's rounds.
            automatic: True to go back by itself from a champion that became slower than the one before.
        """
        return cls(store, boards, Rules.of(seconds, automatic), plan, say)

    def note(self, boards: Sequence[str] = ()) -> None:
        """Notes that the night has begun; only the first time counts.

        Args:
            boards: UUIDs of its boards, as far as known.
        """
        if not self._noted:
            told = {"plan": self.plan, "host": platform.node(), "boards": list(boards)}
            begun = watched.NightEvent(self.watching.night, watched.BEGUN, told, at=self._begun_at)
            watched.note(self.store, begun)
            self._noted = True

    def begin(
        self, candidates: Sequence[Candidate], most: int, left_s: float = math.inf,
        models: Sequence[Boards] | None = None,
    ) -> Watching:  # fmt: skip
        """Notes the beginning, and times and judges the sentinels; no trouble with them ends the night.

        Args:
            candidates: Problems that may be watched.
            most: At most so many on each board.
            left_s: Seconds that the night has.
            models: Boards of each model; by default those of this machine.
        """
        self.note([each.info.uuid for each in self.boards])
        self._candidates, self._until_s = candidates, time.monotonic() + left_s
        count = min(most, self._affordable(left_s))
        if count == 0:
            why = "the plan asks for none" if most == 0 else f"{left_s:.0f} s are too short for them"
            self.watching.why_none = why
            return self.watching
        of_models = [self._watched(each, count) for each in ([Here(self.boards)] if models is None else models)]
        self.watching = joined(of_models, self.watching.night)
        return self.watching

    def _watched(self, boards: Boards, count: int) -> Watching:
        """What the sentinels of a model came to."""
        device, night = boards.info, self.watching.night
        uses = {each.problem: each.saves_s for each in demand.read(self.store, device=device.name)}
        chosen, left = choose(self.store, device, self._candidates, uses, count)
        try:
            found = NightWatch(self.store, boards, self.rules, self.say).run(chosen, night)
        except DeviceTrouble as error:
            found = Watching(night, why_none=f"the device cannot be used: {error}")
        except TunerError as error:
            found = Watching(night, why_none=str(error))
        found.left += left
        return found

    def _affordable(self, left_s: float) -> int:
        """How many problems a share of the night's time holds."""
        if math.isinf(left_s):
            return 1_000_000
        return max(0, int((SHARE * left_s - BEGIN_S) / (self.rules.terms.budget_s + BESIDE_S)))

    def versions(self) -> Mapping[str, str] | None:
        """Versions of compiler, driver and library as the open device told them; None if it told nothing."""
        for each in self.watching.sentinels:
            return dict(each.versions)
        return None

    def _confirm(self, problems: Sequence[Mapping[str, Any]]) -> None:
        """Has this night's new champions win again in a fresh process, while there is time.

        The sentinels of the next night confirm the others.
        """
        new = [each for each in problems if each["state"] == "tuned" and each["verdict"] in ("first", "faster")]
        fresh = [each for each in self._candidates if any(_is_of(each, problem) for problem in new)]
        left_s = self._until_s - time.monotonic() - CONFIRM_BEGIN_S
        count = len(fresh) if math.isinf(left_s) else int(left_s / (self.rules.terms.budget_s + BESIDE_S))
        if not self.boards or not fresh or count <= 0:
            return
        device = self.boards[0].info
        chosen, _ = choose(self.store, device, fresh, {}, count)
        try:
            night = NightWatch(self.store, Here(self.boards), self.rules, self.say)
            self.watching.confirmed += night.confirm(chosen, self.watching.night)
        except TunerError as error:
            self.say(f"new champions were not confirmed: {error}")

    def end(self, problems: Sequence[Mapping[str, Any]], stopped: str) -> dict[str, Any]:
        """Notes the end with the report, from which pages are made now or later.

        Args:
            problems: What the night's problems came to, as JSON.
            stopped: Why the night ended early; empty if it did not.
        """
        self._confirm(problems)
        report = {
            "form": 1, "night": self.watching.night, "tuner": __version__, "plan": self.plan,
            "host": platform.node(), "begun_at": self._begun_at, "ended_at": utc_now(),
            "took_s": time.monotonic() - self._begun_s, "stopped": stopped,
            **summary(self.store, self.watching, problems),
        }  # fmt: skip
        watched.note(self.store, watched.NightEvent(self.watching.night, watched.ENDED, report))
        return report


def _is_of(candidate: Candidate, problem: Mapping[str, Any]) -> bool:
    """True if a candidate is the problem of a night's result."""
    named = candidate.problem.to_json()
    same = all(problem.get(name) == value for name, value in named.items())
    return same and problem["regime"] == candidate.regime

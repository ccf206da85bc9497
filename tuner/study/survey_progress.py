"""How far a survey is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tuner.results.measurement import Outcome
from tuner.results.survey import Timing

#: Crashes of a config after which it is left out.
MOST_CRASHES = 2


@dataclass
class SurveyProgress:
    """How far a survey is.

    Attributes:
        timings: Timings of this run, failures among them.
        problems: Problems of this run.
        before: Problems that an earlier run had.
        skipped: Problems that do not fit into memory.
        outcomes: Outcome -> how many.
        timing_s: Seconds spent timing, preparing problems among it.
        preparing_s: Seconds of these until arrays and references were there.
        waiting_s: Seconds in which nothing was compiled that could be timed.
        elapsed_s: Seconds since the start.
        compiled: Sources compiled.
        configs: Configs there are by now.
        reasons: Outcome -> the first reason.
        crashes: Config's number -> workers that it cost.
    """

    timings: int = 0
    problems: int = 0
    before: int = 0
    skipped: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    timing_s: float = 0.0
    preparing_s: float = 0.0
    waiting_s: float = 0.0
    elapsed_s: float = 0.0
    compiled: int = 0
    configs: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)

    def count(self, timing: Timing) -> None:
        """Takes a timing in."""
        self.timings += 1
        name = timing.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if timing.reason:
            self.reasons.setdefault(name, timing.reason)
        if timing.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT):
            self.crashes[timing.config] = self.crashes.get(timing.config, 0) + 1

    def sound(self, numbers: Iterable[int]) -> list[int]:
        """Those of the configs that did not crash too often."""
        return [number for number in numbers if self.crashes.get(number, 0) < MOST_CRASHES]

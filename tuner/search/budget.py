"""Shares a night between problems: the next slice goes where recent gain is largest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: Slices whose gain counts as recent; older ones fade.
FADE = 0.5
#: What a problem's first time counts as, so that each gets a second slice.
FIRST_GAIN = 0.1
#: A problem is converged when its gain stays below this share for so many slices in a row.
LEAST_GAIN = 0.005
SLICES_WITHOUT_GAIN = 3


@dataclass
class _Problem:
    best_s: float | None = None
    slices: int = 0
    gain: float = 0.0
    without_gain: int = 0
    stopped: str = ""
    since: int = field(default=0)


class Budget:
    """Decides which problem gets the next slice.

    Every problem gets one slice first. From then on the problem with the largest recent gain is next, where
    gain is the share by which a slice made the best time shorter, averaged with weights that fade. A problem
    that waits is worth a little more with every slice that others get, so that none starves.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        """Begins.

        Args:
            problems: Names, in the order of preference.
        """
        self._problems = {name: _Problem() for name in problems}
        self._slices = 0

    def next(self) -> str | None:
        """The problem to work on; None where all have stopped."""
        open_ones = {name: each for name, each in self._problems.items() if not each.stopped}
        for name, each in open_ones.items():
            if not each.slices:
                return name
        if not open_ones:
            return None
        return max(open_ones, key=lambda name: self._worth(open_ones[name]))

    def _worth(self, problem: _Problem) -> float:
        waited = self._slices - problem.since
        return problem.gain + LEAST_GAIN * waited / len(self._problems)

    def report(self, problem: str, best_s: float | None, stopped: str = "") -> None:
        """Says what a slice brought.

        Args:
            problem: Its name.
            best_s: Best time so far in seconds; None before there is one.
            stopped: Why its search has nothing more to ask; empty while it has.
        """
        each = self._problems[problem]
        gain = 0.0
        if best_s is not None:
            gain = FIRST_GAIN if each.best_s is None else max(0.0, 1.0 - best_s / each.best_s)
            each.best_s = best_s if each.best_s is None else min(best_s, each.best_s)
        each.slices += 1
        self._slices += 1
        each.since = self._slices
        each.gain = gain if each.slices == 1 else FADE * each.gain + (1 - FADE) * gain
        each.without_gain = 0 if gain >= LEAST_GAIN else each.without_gain + 1
        if stopped:
            each.stopped = stopped
        elif each.without_gain >= SLICES_WITHOUT_GAIN:
            each.stopped = f"converged: {each.without_gain} slices in a row gained less than {LEAST_GAIN:.1%}"

    @property
    def stopped(self) -> dict[str, str]:
        """Why each stopped problem stopped."""
        return {name: each.stopped for name, each in self._problems.items() if each.stopped}

"""Shares a night between problems: the next slice goes where recent gain is largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Number of slices whose gain counts as recent; the weight of older ones fades.
FADE = 0.5
#: Slices are compared by their gain in this many seconds.
PER_S = 60.0
#: Gain assumed for a problem's first time, until a second slice shows its gain.
FIRST_GAIN = 0.1
#: A problem has converged if its gain stays below this share for these slices in a row, and these trials.
LEAST_GAIN = 0.005
SLICES_WITHOUT_GAIN = 3
TRIALS_WITHOUT_GAIN = 30


@dataclass
class _Problem:
    place: int
    best: float | None = None
    slices: int = 0
    gain: float = 0.0
    without_gain: int = 0
    trials: int = 0
    stopped: str = ""
    since: int = 0


class Budget:
    """Decides which problem gets the next slice.

    Every problem gets one slice first. From then on the problem with the largest recent gain is next, where
    gain is the share by which a slice shortened the best time, relative to its seconds, averaged with fading
    weights. The value of a waiting problem rises a little with every slice of the others, so that none starves.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        """Begins.

        Args:
            problems: Names, in order of preference.
        """
        self._problems = {name: _Problem(place) for place, name in enumerate(problems)}
        # Of thousands of problems most wait for a first slice, so a step looks only at the others.
        self._waiting = dict.fromkeys(self._problems)
        self._running: dict[str, _Problem] = {}
        self._slices = 0

    def next(self) -> str | None:
        """The problem to work on; None if all have stopped."""
        return next(iter(self.ranked()), None)

    def ranked(self) -> list[str]:
        """The problems that have not stopped, the one to work on first."""
        return [*self.waiting, *self.running]

    @property
    def waiting(self) -> Iterator[str]:
        """Problems without a slice, in order of preference."""
        return iter(self._waiting)

    @property
    def running(self) -> list[str]:
        """Problems that had a slice and have not stopped, the most valuable first."""
        running = self._running
        return sorted(running, key=lambda name: (-self._worth(running[name]), running[name].place))

    def why_stopped(self, problem: str) -> str:
        """Reason why a problem stopped; empty if it has not."""
        return self._problems[problem].stopped

    def _worth(self, problem: _Problem) -> float:
        waited = self._slices - problem.since
        return problem.gain + LEAST_GAIN * waited / len(self._problems)

    def report(
        self, problem: str, best: float | None, trials: int, stopped: str = "", seconds: float = PER_S
    ) -> float | None:
        """Reports the result of a slice.

        Args:
            problem: Its name.
            best: Best time so far in seconds, or another number above 0 that falls as the search progresses;
                None if there is none yet.
            trials: Number of trials finished so far.
            stopped: Reason why its search has ended; empty if it has not.
            seconds: Duration of the slice.

        Returns:
            The share by which the slice reduced `best`; None if there was no earlier value.
        """
        each = self._problems[problem]
        first = each.best is None
        gain = 0.0
        if best is not None:
            gain = FIRST_GAIN if each.best is None else max(0.0, 1.0 - best / each.best)
            each.best = best if each.best is None else min(best, each.best)
        each.slices += 1
        self._slices += 1
        each.since = self._slices
        rate = gain * PER_S / max(seconds, 1e-3)
        each.gain = rate if each.slices <= 2 else FADE * each.gain + (1 - FADE) * rate
        if gain >= LEAST_GAIN or each.best is None:
            each.without_gain, each.trials = 0, trials
        else:
            each.without_gain += 1
        each.stopped = stopped or self._converged(each, trials - each.trials)
        self._waiting.pop(problem, None)
        if each.stopped:
            self._running.pop(problem, None)
        else:
            self._running[problem] = each
        return None if first else gain

    @staticmethod
    def _converged(problem: _Problem, trials: int) -> str:
        """Reason why a problem has converged after slices and trials without gain; empty if it has not."""
        if problem.without_gain < SLICES_WITHOUT_GAIN or trials < TRIALS_WITHOUT_GAIN:
            return ""
        return (
            f"converged: {problem.without_gain} slices in a row, of {trials} trials, gained less than "
            f"{LEAST_GAIN:.1%} each"
        )

    def stop(self, problem: str, why: str = "finished") -> None:
        """Takes a problem out."""
        self._problems[problem].stopped = why
        self._waiting.pop(problem, None)
        self._running.pop(problem, None)

    @property
    def stopped(self) -> dict[str, str]:
        """Why each stopped problem stopped."""
        return {name: each.stopped for name, each in self._problems.items() if each.stopped}

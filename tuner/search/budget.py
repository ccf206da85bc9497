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
        self._running: set[str] = set()
        self._stopped: dict[str, str] = {}
        self._slices = 0

    @property
    def waiting(self) -> Iterator[str]:
        """Problems without a slice, in order of preference."""
        return iter(self._waiting)

    @property
    def running(self) -> list[str]:
        """Problems that had a slice and have not stopped, the most valuable first."""

        def worth(name: str) -> tuple[float, int]:
            problem = self._problems[name]
            waited = self._slices - problem.since
            return -(problem.gain + LEAST_GAIN * waited / len(self._problems)), problem.place

        return sorted(self._running, key=worth)

    def why_stopped(self, problem: str) -> str:
        """Reason why a problem stopped; empty if it has not."""
        return self._stopped.get(problem, "")

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
        known, gain = self._problems[problem], 0.0
        before, first = known.best, known.best is None
        if best is not None:
            gain = FIRST_GAIN if before is None else max(0.0, 1.0 - best / before)
            known.best = best if before is None else min(best, before)
        known.slices += 1
        self._slices += 1
        known.since = self._slices
        rate = gain * PER_S / max(seconds, 1e-3)
        known.gain = rate if known.slices <= 2 else FADE * known.gain + (1 - FADE) * rate
        known.without_gain += 1
        if gain >= LEAST_GAIN or known.best is None:
            known.without_gain, known.trials = 0, trials
        self._running.add(problem)
        self._waiting.pop(problem, None)
        if why := stopped or self._converged(known, trials - known.trials):
            self.stop(problem, why)
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
        self._stopped[problem] = why
        self._waiting.pop(problem, None)
        self._running.discard(problem)

"""Shares a night between problems: the next slice goes where recent gain is largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Slices whose gain counts as recent; older ones fade.
FADE = 0.5
#: Slices are compared by their gain in so many seconds.
PER_S = 60.0
#: What a problem's first time counts as, until a second slice has shown a gain.
FIRST_GAIN = 0.1
#: A problem is converged when its gain stays below this share for so many slices in a row, and as many trials.
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
    gain is the share by which a slice made the best time shorter, for the seconds that it took, averaged with
    weights that fade. A problem that waits is worth a little more with every slice that others get, so that
    none starves.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        """Begins.

        Args:
            problems: Names, in the order of preference.
        """
        self._problems = {name: _Problem(place) for place, name in enumerate(problems)}
        # Of thousands of problems most wait for a first slice: a step looks at the others only.
        self._waiting = dict.fromkeys(self._problems)
        self._running: dict[str, _Problem] = {}
        self._slices = 0

    def next(self) -> str | None:
        """The problem to work on; None where all have stopped."""
        return next(iter(self.ranked()), None)

    def ranked(self) -> list[str]:
        """The problems that have not stopped, the one to work on first."""
        return [*self.waiting, *self.running]

    @property
    def waiting(self) -> Iterator[str]:
        """Those without a slice, in the order of preference."""
        return iter(self._waiting)

    @property
    def running(self) -> list[str]:
        """Those that had a slice and have not stopped, the one that is worth most first."""
        running = self._running
        return sorted(running, key=lambda name: (-self._worth(running[name]), running[name].place))

    def why_stopped(self, problem: str) -> str:
        """Why a problem stopped; empty while it has not."""
        return self._problems[problem].stopped

    def _worth(self, problem: _Problem) -> float:
        waited = self._slices - problem.since
        return problem.gain + LEAST_GAIN * waited / len(self._problems)

    def report(
        self, problem: str, best: float | None, trials: int, stopped: str = "", seconds: float = PER_S
    ) -> float | None:
        """Says what a slice brought.

        Args:
            problem: Its name.
            best: Best time so far in seconds, or another number above 0 that falls as the search gets on; None
                before there is one.
            trials: Finished so far.
            stopped: Why its search has nothing more to ask; empty while it has.
            seconds: That the slice took.

        Returns:
            The share by which the slice made it less; None where there was nothing before it.
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
        """Why a problem need not go on after so many slices and trials without gain; empty where it should."""
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

"""Shares a night between problems: the next slice goes where recent gain is largest."""

from collections.abc import Iterable
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
    """A problem's slices so far.

    Attributes:
        place: Its place in the order of preference.
        best: Its best time.
        slices: Number of its slices.
        gain: Recent gain.
        since: Number of all slices at its last one.
        slices_without_gain: Slices since the last gain.
        trials_at_gain: Trials at the last gain.
        stopped: Reason why it stopped; empty if it has not.
    """

    place: int
    best: float | None = None
    slices: int = 0
    gain: float = 0.0
    since: int = 0
    slices_without_gain: int = 0
    trials_at_gain: int = 0
    stopped: str = ""


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
        self._slices = 0

    @property
    def waiting(self) -> list[str]:
        """Problems without a slice, in order of preference."""
        return [name for name, problem in self._problems.items() if not problem.slices and not problem.stopped]

    @property
    def running(self) -> list[str]:
        """Problems that had a slice and have not stopped, the most valuable first."""

        def worth(name: str) -> tuple[float, int]:
            problem = self._problems[name]
            waited = self._slices - problem.since
            return -(problem.gain + LEAST_GAIN * waited / len(self._problems)), problem.place

        running = (name for name, problem in self._problems.items() if problem.slices and not problem.stopped)
        return sorted(running, key=worth)

    def why_stopped(self, problem: str) -> str:
        """Reason why a problem stopped; empty if it has not."""
        return self._problems[problem].stopped

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
        known, self._slices = self._problems[problem], self._slices + 1
        gain = 0.0
        if best is not None:
            gain = FIRST_GAIN if known.best is None else max(0.0, 1.0 - best / known.best)
        rate = gain * PER_S / max(seconds, 1e-3)
        known.slices, known.since = known.slices + 1, self._slices
        known.gain = rate if known.slices <= 2 else FADE * known.gain + (1 - FADE) * rate
        known.slices_without_gain += 1
        if gain >= LEAST_GAIN or (known.best is None and best is None):
            known.slices_without_gain, known.trials_at_gain = 0, trials
        first, known.best = known.best is None, min(filter(None, (best, known.best)), default=None)
        without, tried = known.slices_without_gain, trials - known.trials_at_gain
        if not stopped and without >= SLICES_WITHOUT_GAIN and tried >= TRIALS_WITHOUT_GAIN:
            least = f"{LEAST_GAIN:.1%}"
            stopped = f"converged: {without} slices in a row, of {tried} trials, gained less than {least} each"
        known.stopped = stopped or known.stopped
        return None if first else gain

    def stop(self, problem: str, why: str = "finished") -> None:
        """Takes a problem out."""
        self._problems[problem].stopped = why

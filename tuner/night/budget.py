"""Shares a night between problems: the next slice goes where recent gain is largest."""

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
class Gains:
    """What the slices of a problem gained: the share by which each shortened the best time, for its seconds.

    Every problem gets one slice first. From then on the problem that is worth most is next.

    Attributes:
        best: Its best time.
        slices: Number of its slices.
        recent: Recent gain, averaged with fading weights.
        at: Number of all problems' slices at its last one.
        slices_without: Slices since the last gain.
        trials_without: Trials since the last gain.
        trials: Number of its trials.
    """

    best: float | None = None
    slices: int = 0
    recent: float = 0.0
    at: int = 0
    slices_without: int = 0
    trials_without: int = 0
    trials: int = 0

    def worth(self, at: int, problems: int) -> float:
        """Value of a further slice. It rises a little with every slice of the others, so that none starves.

        Args:
            at: Number of all problems' slices now.
            problems: Number of problems that share the night.
        """
        return self.recent + LEAST_GAIN * (at - self.at) / problems

    def add(self, best: float | None, trials: int, seconds: float, at: int) -> float | None:
        """Adds a slice.

        Args:
            best: Best time so far in seconds, or another number above 0 that falls as the search progresses;
                None if there is none yet.
            trials: Number of trials finished so far.
            seconds: Duration of the slice.
            at: Number of all problems' slices with this one.

        Returns:
            The share by which the slice reduced `best`; None if there was no earlier value.
        """
        before, gain = self.best, 0.0
        if best is not None:
            gain = FIRST_GAIN if before is None else max(0.0, 1.0 - best / before)
        rate = gain * PER_S / max(seconds, 1e-3)
        self.slices, self.at = self.slices + 1, at
        self.recent = rate if self.slices <= 2 else FADE * self.recent + (1 - FADE) * rate
        self.slices_without += 1
        self.trials_without, self.trials = self.trials_without + trials - self.trials, trials
        if gain >= LEAST_GAIN or (before is None and best is None):
            self.slices_without = self.trials_without = 0
        self.best = min(filter(None, (best, before)), default=None)
        return None if before is None else gain

    @property
    def converged(self) -> str:
        """Says that a further slice is not worth it; empty if it is."""
        if self.slices_without < SLICES_WITHOUT_GAIN or self.trials_without < TRIALS_WITHOUT_GAIN:
            return ""
        slices = f"{self.slices_without} slices in a row, of {self.trials_without} trials"
        return f"converged: {slices}, gained less than {LEAST_GAIN:.1%} each"

"""Replays studies on a recorded space, without a device, to measure how many trials a search needs.

A trial is screened as in a real study, by the same code: samples are drawn at random from the recorded ones,
two or three of them if the config is too slow to win (it is PRUNED), else until their median is known well. So
the noise is that of the recording. As in a real study the champion comes from finals: by the finals' own rule,
four configs, alternately those observed and those estimated to be fastest, are judged by all of their recorded
samples. A fraction is the lowest recorded mean of the whole space over the mean of that champion. Every
requested config counts as a trial, including failures; none is requested twice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.verdict import FINALISTS, shortlist
from tuner.search import Known, Observation, Search, SearchOptions
from tuner.study.recordings import Recording
from tuner.workers.sampling import screen_by

#: The champion is evaluated after these numbers of trials, if the study is that long, and at its end.
CHECKPOINTS = (10, 25, 50, 100, 200)


@dataclass(frozen=True)
class Replay:
    """One study on a recording.

    Attributes:
        seed: Seed of the study.
        fraction_at: Trials -> fraction of the optimum reached by then; 0 before any config has a time.
        trials: Number of trials; fewer than allowed if the study stopped.
        stopped: Why it stopped; empty if it used all trials.
        recorded_s: Recorded compile and run time of the trials, in seconds.
        search_s: Time for asking and telling in this replay, in seconds.
    """

    seed: int
    fraction_at: Mapping[int, float]
    trials: int
    stopped: str
    recorded_s: float
    search_s: float


@dataclass(frozen=True)
class SimulationResult:
    """Replays of one strategy on one recording.

    Attributes:
        space: Name of the recording.
        strategy: Name of the sampler.
        replays: One replay for each repeat.
    """

    space: str
    strategy: str
    replays: tuple[Replay, ...]

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Numbers of trials at which all replays were evaluated."""
        return tuple(self.replays[0].fraction_at)

    def fractions(self, trials: int) -> list[float]:
        """Returns the fraction of the optimum of each replay after this many trials."""
        return [replay.fraction_at[trials] for replay in self.replays]

    @property
    def recorded_s_per_trial(self) -> float:
        """Mean compile and run time of a trial, as recorded, in seconds."""
        return sum(each.recorded_s for each in self.replays) / sum(each.trials for each in self.replays)

    @property
    def search_s_per_trial(self) -> float:
        """Mean time of the search itself for a trial, in seconds."""
        return sum(each.search_s for each in self.replays) / sum(each.trials for each in self.replays)

    def to_json(self) -> dict[str, Any]:
        """Space, strategy, repeats, fractions, and seconds of a trial: recorded, and of the search."""
        return {
            "space": self.space,
            "strategy": self.strategy,
            "repeats": len(self.replays),
            "fraction_at": {
                str(trials): {
                    "mean": statistics.fmean(self.fractions(trials)),
                    "min": min(self.fractions(trials)),
                    "max": max(self.fractions(trials)),
                }
                for trials in self.checkpoints
            },
            "seconds_per_trial": self.recorded_s_per_trial,
            "search_seconds_per_trial": self.search_s_per_trial,
        }

    def rows(self) -> list[tuple[int, float, float, float, float, float]]:
        """Returns rows for people: trials; mean, deviation, min and max of the fraction; recorded seconds."""
        return [
            (
                trials,
                statistics.fmean(self.fractions(trials)),
                statistics.pstdev(self.fractions(trials)),
                min(self.fractions(trials)),
                max(self.fractions(trials)),
                trials * self.recorded_s_per_trial,
            )
            for trials in self.checkpoints
        ]


def simulate(
    recording: Recording,
    *,
    sampler: str = "tile",
    trials: int = 200,
    repeats: int = 20,
    seed: int = 0,
    warm_start: Recording | None = None,
) -> SimulationResult:
    """Replays studies on a recording.

    Args:
        recording: The space.
        sampler: Name of the search's sampler.
        trials: Length of each study.
        repeats: Studies, with seeds that follow on `seed`.
        seed: Seed of the first study.
        warm_start: Another device's recording of the same kernels, which the study uses like earlier records.

    Raises:
        InputError: There is less than one trial or repeat, or a warm start shares no kernel.
    """
    for name, value in (("trials", trials), ("repeats", repeats)):
        if value < 1:
            raise InputError(f"{name} is 1 or more, got {value}; choose another")
    elsewhere = _elsewhere(recording, warm_start) if warm_start else ()
    # The search's matrices are small: waking more threads takes longer than they save.
    with threadpool_limits(1, "blas"):
        replays = tuple(
            _replay(recording, sampler=sampler, trials=trials, seed=each, elsewhere=elsewhere)
            for each in range(seed, seed + repeats)
        )
    return SimulationResult(recording.name, sampler, replays)


def _elsewhere(recording: Recording, past: Recording) -> Sequence[Observation]:
    shared = [name for name in past.kernels if name in recording.kernels]
    if not shared:
        raise InputError(
            f"a warm start is a recording of the same kernel, got one of {', '.join(past.kernels)} for "
            f"{', '.join(recording.kernels)}; choose another"
        )
    return [
        Observation(name, config, measurement.outcome, measurement.time_s)
        for name in shared
        for config, measurement in zip(past.kernels[name].space, past.kernels[name].measurements, strict=True)
    ]


def _replay(
    recording: Recording, *, sampler: str, trials: int, seed: int, elsewhere: Sequence[Observation]
) -> Replay:
    rng = np.random.default_rng([seed, trials])
    begun = time.perf_counter()
    options = SearchOptions(seed, f"{recording.name}-{seed}", sampler, trials)
    search = Search(recording.spaces, options, Known(elsewhere=elsewhere))
    observed: dict[tuple[str, Config], float] = {}
    fraction_at: dict[int, float] = {}
    made, recorded_s = 0, 0.0
    checkpoints = sorted({each for each in CHECKPOINTS if each < trials} | {trials})
    while made < trials and (asked := search.ask()):
        candidate = asked[0]
        measurement = recording.measurement(candidate.kernel, candidate.config)
        outcome, time_s = _tried(measurement, min(observed.values(), default=None), rng)
        if outcome is Outcome.MEASURED and time_s is not None:
            observed[candidate.kernel, candidate.config] = time_s
        search.tell(candidate, outcome, time_s)
        made += 1
        recorded_s += sum(measurement.stages_s.values()) or sum(measurement.samples_s)
        if made in checkpoints:
            fraction_at[made] = _fraction(recording, observed, search.leaderboard())
    search_s = time.perf_counter() - begun
    search.close()
    last = _fraction(recording, observed, search.leaderboard())
    for each in checkpoints:  # a study that stopped earlier keeps its champion
        fraction_at.setdefault(each, last)
    return Replay(seed, fraction_at, made, search.stopped, recorded_s, search_s)


def _tried(
    recorded: Measurement, incumbent_s: float | None, rng: np.random.Generator
) -> tuple[Outcome, float | None]:
    """Returns the result of a trial: outcome and median of the drawn samples."""
    if recorded.outcome is not Outcome.MEASURED:
        return recorded.outcome, None
    screened = screen_by(lambda count: rng.choice(recorded.samples_s, count).tolist(), incumbent_s)
    outcome = Outcome.PRUNED if screened.pruned else Outcome.MEASURED
    return outcome, statistics.median(screened.samples_s)


def _fraction(
    recording: Recording,
    observed: Mapping[tuple[str, Config], float],
    believed: Mapping[tuple[str, Config], float],
) -> float:
    """Returns the fraction of the optimum that the winner of finals reaches."""
    if not observed:
        return 0.0
    by_turns = zip_longest(shortlist(believed, None), shortlist(observed, None))
    finalists = list(dict.fromkeys(each for pair in by_turns for each in pair if each))[:FINALISTS]
    means = [
        float(recording.kernels[kernel].mean_s[recording.kernels[kernel].space.index_of(config)])
        for kernel, config in finalists
    ]
    return recording.optimum_s / min(means)

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
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import click
import numpy as np
from threadpoolctl import threadpool_limits

from tuner.cli.formatting import clock, duration
from tuner.cli.formatting import show as show_rows
from tuner.cli.options import SAMPLER, json_option
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.verdict import FINALISTS, shortlist
from tuner.search import Known, Observation, Search, SearchOptions
from tuner.study.recordings import Recording, read_recording
from tuner.workers.sampling import screen_by

#: The champion is evaluated after these numbers of trials, if the study is that long, and at its end.
CHECKPOINTS = (10, 25, 50, 100, 200)


@dataclass(frozen=True)
class Replay:
    """One study on a recording.

    Attributes:
        fraction_at: Trials -> fraction of the optimum reached by then; 0 before any config has a time.
        trials: Number of trials; fewer than allowed if the study stopped.
        stopped: Why it stopped; empty if it used all trials.
        recorded_s: Recorded compile and run time of the trials, in seconds.
        search_s: Time for asking and telling in this replay, in seconds.
    """

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

    def fractions(self) -> dict[int, list[float]]:
        """Trials -> the fraction of the optimum that each replay had reached after them."""
        return {
            trials: [replay.fraction_at[trials] for replay in self.replays]
            for trials in self.replays[0].fraction_at
        }

    def per_trial(self, name: str) -> float:
        """Mean seconds of a trial: ``recorded_s``, for compiling and running it, or ``search_s``."""
        trials = sum(replay.trials for replay in self.replays)
        return sum(float(getattr(replay, name)) for replay in self.replays) / trials

    def to_json(self) -> dict[str, Any]:
        """Space, strategy, repeats, fractions, and seconds of a trial: recorded, and of the search."""
        return {
            "space": self.space,
            "strategy": self.strategy,
            "repeats": len(self.replays),
            "fraction_at": {
                str(trials): {"mean": statistics.fmean(reached), "min": min(reached), "max": max(reached)}
                for trials, reached in self.fractions().items()
            },
            "seconds_per_trial": self.per_trial("recorded_s"),
            "search_seconds_per_trial": self.per_trial("search_s"),
        }


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
            _replay(recording, SearchOptions(number, sampler, trials), trials, elsewhere)
            for number in range(seed, seed + repeats)
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
    recording: Recording, options: SearchOptions, trials: int, elsewhere: Sequence[Observation]
) -> Replay:
    rng = np.random.default_rng([options.seed, trials])
    begun = time.perf_counter()
    search = Search(recording.spaces, options, Known(elsewhere=elsewhere))
    times_s: dict[tuple[str, Config], float] = {}
    fraction_at: dict[int, float] = {}
    made, recorded_s = 0, 0.0
    checkpoints = sorted({count for count in CHECKPOINTS if count < trials} | {trials})
    while made < trials and (candidates := search.ask()):
        (candidate,) = candidates
        measurement = recording.measurement(candidate.kernel, candidate.config)
        outcome, time_s = _tried(measurement, min(times_s.values(), default=None), rng)
        if outcome is Outcome.MEASURED and time_s is not None:
            times_s[candidate.kernel, candidate.config] = time_s
        search.tell(candidate, outcome, time_s)
        made += 1
        recorded_s += sum(measurement.stages_s.values()) or sum(measurement.samples_s)
        if made in checkpoints:
            fraction_at[made] = _fraction(recording, times_s, search.leaderboard())
    search_s = time.perf_counter() - begun
    last = _fraction(recording, times_s, search.leaderboard())
    for count in checkpoints:  # a study that stopped earlier keeps its champion
        fraction_at.setdefault(count, last)
    return Replay(fraction_at, made, search.stopped, recorded_s, search_s)


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
    finalists = list(dict.fromkeys(config for pair in by_turns for config in pair if config))[:FINALISTS]
    kernels = recording.kernels
    return recording.optimum_s / min(
        float(kernels[kernel].mean_s[kernels[kernel].space.index_of(config)]) for kernel, config in finalists
    )


@click.command()
@click.argument("space", metavar="SPACE.json[.gz]", type=click.Path(path_type=Path))
@click.option("--trials", type=int, default=200, show_default=True, help="Trials of each study.")
@click.option(
    "--repeats", type=int, default=20, show_default=True, help="Number of studies, each with its own seed."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the first study.")
@click.option("--sampler", shell_complete=SAMPLER, default="tile", show_default=True, help="Search strategy.")
@click.option(
    "--warm-start", type=click.Path(path_type=Path), metavar="OTHER.json[.gz]",
    help="Recording of another device, used as earlier records.",
)  # fmt: skip
@json_option
def simulate_command(
    space: Path, trials: int, repeats: int, seed: int, sampler: str, warm_start: Path | None, as_json: bool
) -> None:
    """Replay a study on a recorded space: a Kernel Tuner cache file, or exported records of one problem.

    Prints the fraction of the space's best speed that is reached after given numbers of trials.
    """
    earlier = read_recording(warm_start) if warm_start else None
    replayed = simulate(
        read_recording(space), sampler=sampler, trials=trials, repeats=repeats, seed=seed, warm_start=earlier
    )
    per_trial_s = replayed.per_trial("recorded_s")
    rows = [
        (count, *(f"{figure(reached):.3f}" for figure in (fmean, pstdev, min, max)), clock(count * per_trial_s))
        for count, reached in replayed.fractions().items()
    ]
    columns = ("trials", "fraction of the optimum", "st. dev.", "least", "most", "recorded time")
    title = f"{replayed.space}: {replayed.strategy}, {len(replayed.replays)} studies"
    show_rows(as_json, replayed.to_json(), title, columns, rows)
    if not as_json:
        click.echo(f"searching takes {duration(replayed.per_trial('search_s'))} a trial", err=True)

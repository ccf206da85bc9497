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
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tuner.declare.space import Config, Space, choice
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.results.verdict import shortlist
from tuner.search import Candidate, Known, Observation, Search, SearchOptions
from tuner.store.kernel_tuner import cache_of, records_of, text_of
from tuner.store.lines import parsed
from tuner.workers.sampling import screen_by

#: The champion is evaluated after these numbers of trials, if the study is that long, and at its end.
CHECKPOINTS = (10, 25, 50, 100, 200)


class Recording:
    """A recorded space.

    Attributes:
        name: Name of the file without its suffixes.
        device: Name of the recorded device.
        spaces: Kernel -> its configs, all of them legal.
        measurements: Kernel -> measurements in the order of its space.
        mean_s: Kernel -> mean of the samples of each config, in seconds; infinite if it failed.
        optimum_s: Mean time of the fastest config, in seconds; infinite if none has a time.
    """

    def __init__(self, name: str, trials: Sequence[Record]) -> None:
        """Gathers the trials by kernel; of a config the last one counts.

        Raises:
            InputError: Configs of a kernel differ in their parameters.
        """
        by_kernel: dict[str, dict[Config, Measurement]] = {}
        for trial in trials:
            by_kernel.setdefault(trial.kernel, {})[Config(trial.config)] = trial.measurement
        self.name, self.device = name, trials[0].device.name if trials else ""
        self.spaces = {kernel: _space_of(list(configs)) for kernel, configs in by_kernel.items()}
        self.measurements = {kernel: tuple(configs.values()) for kernel, configs in by_kernel.items()}
        self.mean_s = {
            kernel: np.array(
                [np.mean(one.samples_s) if one.outcome is Outcome.MEASURED else np.inf for one in all_]
            )
            for kernel, all_ in self.measurements.items()
        }
        self.optimum_s = float(min((mean_s.min() for mean_s in self.mean_s.values()), default=np.inf))

    def measurement(self, kernel: str, config: Config) -> Measurement:
        """Returns the recorded measurement of a config."""
        return self.measurements[kernel][self.spaces[kernel].index_of(config)]


def _space_of(configs: Sequence[Config]) -> Space:
    names = list(configs[0])
    other = next((config for config in configs if list(config) != names), None)
    if other is not None:
        raise InputError(
            f"all configs of a kernel have the same parameters, got {', '.join(names)} and {', '.join(other)}; "
            f"split the recording"
        )
    parameters = [choice(name, *dict.fromkeys(config[name] for config in configs)) for name in names]
    return Space.of(parameters, configs)


def read_recording(path: Path) -> Recording:
    """Reads a recorded space.

    Args:
        path: A ``.json`` or ``.json.gz`` file.

    Raises:
        InputError: There is no such file, it has neither form, or no config in it has a time.
    """
    text = text_of(path)
    cache = cache_of(text, path)
    if cache is None:
        trials = _our_trials(text, path)
    else:
        trials = list(records_of(path, device=str(cache.get("device_name", "unknown"))))
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".jsonl")
    recording = Recording(name, trials)
    if not np.isfinite(recording.optimum_s):
        raise InputError(f"a recording has a config with a time, got none in {path}; check the file")
    return recording


def _our_trials(text: str, path: Path) -> list[Record]:
    """The trials of our own records."""
    try:
        kept = list(map(parsed, text.splitlines()))
    except ValueError as error:
        raise InputError(
            f"a recording is a Kernel Tuner cache or an export of our records, {path} is neither: {error}"
        ) from error
    trials = [item for item in kept if isinstance(item, Record) and item.role is Role.TRIAL]
    if len({(trial.problem, trial.regime) for trial in trials}) > 1:
        raise InputError(
            f"a recording is of one problem and regime, {path} has several; choose one with "
            f"`tuner records export --operation --shape --regime`"
        )
    return trials


def simulate(
    recording: Recording, *, sampler: str = "tile", trials: int = 200, repeats: int = 20, seed: int = 0,
    warm_start: Recording | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Replays studies on a recording.

    Args:
        recording: The space.
        sampler: Name of the search's sampler.
        trials: Length of each study.
        repeats: Studies, with seeds that follow on `seed`.
        seed: Seed of the first study.
        warm_start: Another device's recording of the same kernels, which the study uses like earlier records.

    Returns:
        ``space``, ``strategy`` and ``repeats``; under ``fraction_at``, by trials, the fraction of the optimum
        that studies had reached after them, 0 before any config has a time; ``seconds_per_trial``, as recorded
        for compiling and running, and ``search_seconds_per_trial`` for asking and telling, in these replays.

    Raises:
        InputError: There is less than one trial or repeat, or a warm start shares no kernel.
    """
    if min(trials, repeats) < 1:
        raise InputError(f"trials and repeats are 1 or more, got {trials} and {repeats}; choose others")
    elsewhere = _elsewhere(recording, warm_start) if warm_start else ()
    checkpoints = sorted({count for count in CHECKPOINTS if count < trials} | {trials})
    seeds = range(seed, seed + repeats)
    # The search's matrices are small: waking more threads takes longer than they save.
    with threadpool_limits(1, "blas"):
        replays = [_Replay(recording, SearchOptions(number, sampler, trials), elsewhere) for number in seeds]
        reached = [[replay.fraction_after(count) for count in checkpoints] for replay in replays]
    made = sum(replay.made for replay in replays)
    fraction_at = {
        str(count): {"mean": fmean(own), "min": min(own), "max": max(own), "st_dev": pstdev(own)}
        for count, own in zip(checkpoints, zip(*reached, strict=True), strict=True)
    }
    return {
        "space": recording.name, "strategy": sampler, "repeats": repeats, "fraction_at": fraction_at,
        "seconds_per_trial": sum(replay.recorded_s for replay in replays) / made,
        "search_seconds_per_trial": sum(replay.search_s for replay in replays) / made,
    }  # fmt: skip


def _elsewhere(recording: Recording, past: Recording) -> Sequence[Observation]:
    shared = [name for name in past.spaces if name in recording.spaces]
    if not shared:
        raise InputError(
            f"a warm start is a recording of the same kernel, got one of {', '.join(past.spaces)} for "
            f"{', '.join(recording.spaces)}; choose another"
        )
    return [
        Observation(name, config, measurement.outcome, measurement.time_s)
        for name in shared
        for config, measurement in zip(past.spaces[name], past.measurements[name], strict=True)
    ]


class _Replay:
    """One study on a recording, which stops earlier where the search does."""

    def __init__(self, recording: Recording, options: SearchOptions, elsewhere: Sequence[Observation]) -> None:
        self._recording = recording
        self._search = Search(recording.spaces, options, Known(elsewhere=elsewhere))
        self._rng = np.random.default_rng([options.seed, options.budget or 0])
        self._times_s: dict[tuple[str, Config], float] = {}
        self.made, self.recorded_s, self.search_s = 0, 0.0, 0.0

    def fraction_after(self, trials: int) -> float:
        """Goes on to a number of trials; the fraction of the optimum that the winner of finals then reaches."""
        begun = time.perf_counter()
        while self.made < trials and (candidates := self._search.ask()):
            self._try(candidates[0])
        self.search_s += time.perf_counter() - begun
        if not self._times_s:
            return 0.0
        recording = self._recording
        return recording.optimum_s / min(
            float(recording.mean_s[kernel][recording.spaces[kernel].index_of(config)])
            for kernel, config in shortlist(self._times_s, None)
        )

    def _try(self, candidate: Candidate) -> None:
        """Screens a config by samples that are drawn from the recorded ones."""
        measurement = self._recording.measurement(candidate.kernel, candidate.config)
        outcome, time_s = measurement.outcome, None
        if outcome is Outcome.MEASURED:
            draw = lambda count: self._rng.choice(measurement.samples_s, count).tolist()
            screened = screen_by(draw, min(self._times_s.values(), default=None))
            time_s = statistics.median(screened.samples_s)
            if screened.pruned:
                outcome = Outcome.PRUNED
            else:
                self._times_s[candidate.kernel, candidate.config] = time_s
        self._search.tell(candidate, outcome, time_s)
        self.made += 1
        self.recorded_s += sum(measurement.stages_s.values()) or sum(measurement.samples_s)

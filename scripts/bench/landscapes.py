#!/usr/bin/env python3
"""Searches synthetic landscapes, on which the strategy's constants were chosen instead of recordings.

    scripts/bench/landscapes.py [--seeds 0-3] [--families product,needle] [--trials 100] [--samplers tile]
        [--processes 2] [--json FILE] [--against FILE]

A landscape is a roofline model with occupancy, wave quantisation, spills, random conjunctions of conditions
and quirks, on a random device; see `tiled.py`, `switched.py` and `reshaped.py`. Legal configs number 9,000 to
130,000. A trial is screened as in a real study, on samples with noise and rare outliers. It prints the mean
fraction of the optimum after 10, 25, 50, 100 and 200 trials with its standard error, by family and over all;
with `--against` also the difference from an earlier run's FILE, paired by family and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes share the cores
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray
from reshaped import reshaped
from roofline import Landscape
from switched import cached, methods, needle, strided, temporal, traps
from tiled import pipelined, product, stencil

from tuner.results.measurement import Outcome
from tuner.search import Search, SearchOptions
from tuner.workers.sampling import screen_by

CHECKPOINTS = (10, 25, 50, 100, 200)
FAMILIES: dict[str, Callable[[int], Landscape]] = {
    each.__name__: each
    for each in (
        product, stencil, pipelined, cached, methods, temporal, strided, traps, needle, reshaped,
    )
}  # fmt: skip
#: Chance of an outlier, and how much faster or slower than the others it is.
OUTLIERS = (0.02, 0.08)
#: Trials done, best four by belief or observation are judged: as many as in a study's finals.
FINALISTS = 4
Job = tuple[str, int, str, int]


def samples(time_s: float, noise: float, count: int, rng: np.random.Generator) -> list[float]:
    """Samples of a config."""
    logs = noise * rng.standard_normal(count)
    logs += (rng.random(count) < OUTLIERS[0]) * OUTLIERS[1] * rng.choice([-1, 1], count)
    return [float(each) for each in time_s * np.exp(logs)]


def study(job: Job) -> list[float]:
    """Fractions of the optimum at the checkpoints of one study."""
    family, seed, sampler, trials = job
    landscape = FAMILIES[family](seed)
    space, times = landscape.space, landscape.times / np.nanmin(landscape.times)
    rng = np.random.default_rng([seed, 99])
    search = Search(
        {"k": space}, SearchOptions(sampler=sampler, seed=seed, study_name=landscape.name, budget=trials)
    )
    best, fractions = None, []
    for number in range(1, trials + 1):
        if asked := search.ask():
            time = float(times[space.index_of(asked[0].config)])
            if np.isfinite(time):
                screened = screen_by(lambda count: samples(time, landscape.noise, count, rng), best)  # noqa: B023
                median = statistics.median(screened.samples_s)
                if not screened.pruned:
                    best = min(median, best or median)
                search.tell(asked[0], Outcome.PRUNED if screened.pruned else Outcome.MEASURED, median)
            else:
                search.tell(asked[0], Outcome.LAUNCH_FAILED, None)
        if number in CHECKPOINTS:
            leaderboard = search.leaderboard()
            finalists = sorted(leaderboard, key=lambda each: leaderboard[each])[:FINALISTS]
            reached = min((times[space.index_of(config)] for _, config in finalists), default=np.inf)
            fractions.append(float(1 / reached))
    return fractions


def print_means(title: str, rows: NDArray[np.float64]) -> None:
    """Mean and standard error of each column."""
    errors = rows.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.zeros(rows.shape[1])
    cells = [f"{mean:6.3f} ± {error:.3f}" for mean, error in zip(rows.mean(axis=0), errors, strict=True)]
    print(f"{title:22} {len(rows):4} {'  '.join(cells)}", flush=True)


def report(sampler: str, jobs: list[Job], rows: NDArray[np.float64], before: dict[str, list[float]]) -> None:
    """Prints means by family and over all, or differences where there is a run before."""
    own = [at for at, job in enumerate(jobs) if job[2] == sampler and (not before or name(job) in before)]
    shown = np.array([rows[at] - np.array(before[name(jobs[at])]) if before else rows[at] for at in own])
    for family in dict.fromkeys(jobs[at][0] for at in own):
        print_means(f"{sampler} {family}", shown[[jobs[at][0] == family for at in own]])
    if own:
        print_means(f"{sampler} all", shown)


def name(job: Job) -> str:
    """By which studies of two runs are paired."""
    return "-".join(map(str, job))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--samplers", default="tile")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    jobs = [
        (family, seed, sampler, asked.trials)
        for sampler in asked.samplers.split(",")
        for seed in range(int(first), int(last or first) + 1)
        for family in asked.families.split(",")
    ]
    with ProcessPoolExecutor(asked.processes) as pool:
        rows = np.array(list(pool.map(study, jobs)))
    before = json.loads(asked.against.read_text(encoding="utf-8")) if asked.against else {}
    for sampler in asked.samplers.split(","):
        report(sampler, jobs, rows, {})
        if before:
            report(sampler, jobs, rows, before)
    if asked.json:
        found = {name(job): row.tolist() for job, row in zip(jobs, rows, strict=True)}
        asked.json.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

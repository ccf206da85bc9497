#!/usr/bin/env python3
"""Searches synthetic landscapes: what the strategy's constants were chosen on, instead of recordings.

    scripts/bench/landscapes.py [--seeds 0-3] [--trials 100] [--samplers tile]

A landscape is a roofline model with occupancy, wave quantisation, spills, random conjunctions of conditions
and quirks, on a random device; see `tiled.py` and `switched.py`. Legal configs number 9,000 to 130,000. Printed
is the fraction of the optimum after 25, 50, 100 and 200 trials.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from roofline import Landscape
from switched import cached, methods, needle, strided, temporal, traps
from tiled import pipelined, product, stencil

from tuner.measurement import Outcome
from tuner.search import Search

CHECKPOINTS = (25, 50, 100, 200)
FAMILIES: tuple[Callable[[int], Landscape], ...] = (
    product, stencil, pipelined, cached, methods, temporal, strided, traps, needle,
)  # fmt: skip


def search(landscape: Landscape, sampler: str, seed: int, trials: int) -> list[float]:
    """Fractions of the optimum at the checkpoints; the champion is the best of four that are believed best."""
    space, times = landscape.space, landscape.times
    rng = np.random.default_rng([seed, 99])
    found = Search({"k": space}, sampler=sampler, seed=seed, study_name=landscape.name, budget=trials)
    fractions = []
    for number in range(1, trials + 1):
        (candidate,) = found.ask()
        time_s = times[space.index_of(candidate.config)] * np.exp(landscape.noise * rng.standard_normal())
        failed = not np.isfinite(time_s)
        found.tell(candidate, Outcome.LAUNCH_FAILED if failed else Outcome.MEASURED, None if failed else time_s)
        if number in CHECKPOINTS:
            standings = found.standings()
            best = sorted(standings, key=lambda each: standings[each])[:4]
            reached = min((times[space.index_of(config)] for _, config in best), default=np.inf)
            fractions.append(float(np.nanmin(times) / reached))
    return fractions


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--samplers", default="tile")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    for sampler in asked.samplers.split(","):
        rows = []
        for family in FAMILIES:
            for seed in range(int(first), int(last or first) + 1):
                landscape = family(seed)
                rows.append(search(landscape, sampler, seed, asked.trials))
                shown = " ".join(f"{each:.3f}" for each in rows[-1])
                print(f"{sampler:10} {landscape.name:14} {len(landscape.space):7} {shown}", flush=True)
        print(f"{sampler:10} {'mean':22} {' '.join(f'{each:.3f}' for each in np.mean(rows, axis=0))}")


if __name__ == "__main__":
    main()

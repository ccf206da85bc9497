#!/usr/bin/env python3
"""Replays searches on recorded spaces, and writes a table of fractions of the optimum by trials, and a plot.

A recording is a cache of Kernel Tuner, or exported trials of one problem.

    scripts/bench/search.py RECORDING.json.gz ... [--samplers tile,tpe,cmaes,random] [--repeats 20]
        [--trials 200] [--warm-start OTHER.json.gz] [--plots docs/images] [--json FILE]

Four samplers, three recordings, 20 repeats and 200 trials took 740 s in one process on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes share the cores
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from recordings import read_recording, simulate  # noqa: E402

#: Kernel Tuner 1.5.0 replayed on the same recordings without noise: mean of 10 seeds at these trials.
KERNEL_TUNER_AT = (50, 100, 200)
KERNEL_TUNER: dict[str, dict[str, tuple[float, ...]]] = {
    "gemm-rtx2080ti": {
        "random_sample": (0.824, 0.845, 0.872),
        "genetic_algorithm": (0.836, 0.909, 0.959),
        "diff_evo": (0.915, 0.938, 0.950),
        "hybrid_vndx": (0.902, 0.927, 0.971),
        "adaptive_tabu_greywolf": (0.918, 0.990, 1.000),
    },
    "convolution-a100": {
        "random_sample": (0.675, 0.725, 0.796),
        "genetic_algorithm": (0.677, 0.792, 0.889),
        "diff_evo": (0.618, 0.681, 0.805),
        "hybrid_vndx": (0.783, 0.825, 0.895),
        "adaptive_tabu_greywolf": (0.760, 0.832, 0.923),
    },
}


def one(job: tuple[Path, str, int, int, Path | None]) -> dict[str, Any]:
    """One study."""
    path, sampler, seed, trials, warm = job
    past = read_recording(warm) if warm else None
    return simulate(read_recording(path), sampler=sampler, trials=trials, repeats=1, seed=seed, warm_start=past)


def gathered(studies: list[dict[str, Any]]) -> dict[str, Any]:
    """The studies of one recording and sampler as one result of many repeats."""
    by_trials = {
        trials: [each["fraction_at"][trials]["mean"] for each in studies]
        for trials in studies[0]["fraction_at"]
    }
    return studies[0] | {
        "repeats": len(studies),
        "fraction_at": {
            trials: {
                "mean": statistics.fmean(found),
                "stdev": statistics.pstdev(found),
                "min": min(found),
                "max": max(found),
            }
            for trials, found in by_trials.items()
        },
        "search_seconds_per_trial": statistics.fmean(each["search_seconds_per_trial"] for each in studies),
    }


def print_table(results: list[dict[str, Any]]) -> None:
    """Means with standard deviations, as Markdown."""
    trials = list(results[0]["fraction_at"])
    print(f"| recording | sampler | {' | '.join(trials)} | ms a trial |")
    print(f"|---|---|{'---|' * (len(trials) + 1)}")
    for each in results:
        cells = [f"{found['mean']:.3f} ± {found['stdev']:.3f}" for found in each["fraction_at"].values()]
        spent = f"{1e3 * each['search_seconds_per_trial']:.1f}"
        print(f"| {each['space']} | {each['strategy']} | {' | '.join(cells)} | {spent} |")


def plot(results: list[dict[str, Any]], folder: Path) -> None:
    """One picture per recording."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tile-tuner"  # the same figures give the same file
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for space in dict.fromkeys(each["space"] for each in results):
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for name, fractions in KERNEL_TUNER.get(space, {}).items():
            axes.plot(KERNEL_TUNER_AT, fractions, ":", linewidth=1, label=f"Kernel Tuner {name}")
        for each in results:
            if each["space"] == space:
                trials = [int(number) for number in each["fraction_at"]]
                means = [found["mean"] for found in each["fraction_at"].values()]
                width = 2.5 if each["strategy"] == "tile" else 1.3
                axes.plot(trials, means, "o-", linewidth=width, markersize=3, label=each["strategy"])
        axes.set(xlabel="trials", ylabel="fraction of the optimum (mean)", title=space, xscale="log")
        axes.set_xticks([10, 25, 50, 100, 200], ["10", "25", "50", "100", "200"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="lower right")
        figure.savefig(folder / f"search-{space}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--samplers", default="tile,tpe,cmaes,random")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--warm-start", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    groups = [(path, sampler) for path in asked.recordings for sampler in asked.samplers.split(",")]
    jobs = [
        (path, sampler, seed, asked.trials, asked.warm_start)
        for path, sampler in groups
        for seed in range(asked.repeats)
    ]
    with ProcessPoolExecutor(asked.processes) as pool:
        studies = list(pool.map(one, jobs))
    results = [gathered(studies[at * asked.repeats : (at + 1) * asked.repeats]) for at in range(len(groups))]
    print_table(results)
    print(f"\n{len(jobs)} studies in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if asked.plots:
        plot(results, asked.plots)


if __name__ == "__main__":
    main()

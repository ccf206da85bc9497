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


def replayed(job: tuple[Path, str, int, int, Path | None]) -> dict[str, Any]:
    """Studies of one recording and sampler."""
    path, sampler, repeats, trials, warm = job
    past = read_recording(warm) if warm else None
    return simulate(read_recording(path), sampler=sampler, trials=trials, repeats=repeats, warm_start=past)


def print_table(results: list[dict[str, Any]]) -> None:
    """Means with standard deviations, as Markdown."""
    trials = list(results[0]["fraction_at"])
    print(f"| recording | sampler | {' | '.join(trials)} | ms a trial |")
    print(f"|---|---|{'---|' * (len(trials) + 1)}")
    for each in results:
        cells = [f"{found['mean']:.3f} ± {found['st_dev']:.3f}" for found in each["fraction_at"].values()]
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
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    how = asked.repeats, asked.trials, asked.warm_start
    jobs = [(path, sampler, *how) for path in asked.recordings for sampler in asked.samplers.split(",")]
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(replayed, jobs))
    print_table(results)
    print(f"\n{len(jobs) * asked.repeats} studies in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if asked.plots:
        plot(results, asked.plots)


if __name__ == "__main__":
    main()

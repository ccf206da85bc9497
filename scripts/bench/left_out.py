#!/usr/bin/env python3
"""What a model's answers lose at problems that it was not fitted to, from a survey.

    scripts/bench/left_out.py SURVEY [--operation gemm] [--target cuda] [--device-file
        configs/tuned/nvidia-h200/gemm.json] [--repeats 3] [--fresh 100] [--fitted 568] [--seed 0]

SURVEY is the URL of a database, or a file of arrays, .npz. Each repeat draws `--fresh` problems of the survey,
fits to others, answers, and compares with the survey's times. Configs that were not timed at a problem cannot
be answered there. Printed: time of the answer over the best of configs and library, minus 1; library over
answer; the number slower than the library by over 3 %; the same loss with the best eight timed; how many of the
configs timed at a problem are tried in the model's order, and at random, until one is within 1 % of their best;
and how well the figures hold that come with answers. Needs LightGBM.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.model.calibrate import HELD, SLOWER, Cases, Said, cases
from tuner.model.fit import fit
from tuner.model.fitted import Model
from tuner.model.predict import Predictor
from tuner.model.refit import from_database
from tuner.model.stored import to_bytes
from tuner.model.table import Timings, from_arrays, table

Floats = NDArray[np.float64]


#: A config this much slower than the best is as good; problems with fewer timings tell nothing of trials.
WITHIN, TIMED = 0.01, 20


def predicted(
    model: Model, fresh: Timings, kernels: Mapping[str, Kernel]
) -> tuple[Cases, list[int], list[float]]:
    """The fresh problems as cases; trials to within 1 % of the best in the model's order, and at random."""
    data, count = table(fresh, kernels, model.device), len(fresh.problems)
    log_s, behind, gain = (np.full(len(data.problem), np.inf) for _ in range(3))
    library, place = np.full(count, np.inf), {named: place for place, named in enumerate(model.configs)}
    at = np.flatnonzero([fresh.configs[number] in place for number in data.config])
    for number, problem in enumerate(fresh.problems):
        mine = at[data.problem[at] == number]
        known = [place[fresh.configs[each]] for each in data.config[mine]]
        there = model.at(problem, among=known)
        library[number] = there.library_log_s()
        assert model.evidence is not None, "it was just fitted"
        kind = list(model.traits).index((problem.dtype, problem.layout))
        near = model.evidence.around(problem, kind, len(model.configs))
        behind[mine], gain[mine] = near[0][known], near[1][known]
        log_s[mine] = np.where(np.isfinite(behind[mine]), there.log_s(), np.inf)
    dims = np.log([[size for _, size in each.shape] for each in fresh.problems])
    said = Said(log_s, behind, gain, library, model.weight)
    order = np.nan_to_num(log_s + model.weight * behind, nan=np.inf)
    ordered, at_random = trials(data.problem, data.time_s, order)
    return cases(np.unique(data.problem), dims, data, said), ordered, at_random


def trials(problem: NDArray[np.int64], time_s: Floats, order: Floats) -> tuple[list[int], list[float]]:
    """Configs tried at each problem to within 1 % of the best: in order, and expected at random."""
    ordered, at_random = [], []
    for number in np.unique(problem):
        mine = problem == number
        good = time_s[mine] <= time_s[mine].min() * (1 + WITHIN)
        if len(good) >= TIMED:
            ordered.append(1 + int(np.argmax(good[np.argsort(order[mine], kind="stable")])))
            at_random.append((len(good) + 1) / (good.sum() + 1))
    return ordered, at_random


def losses(of: Cases, margin: float) -> str:
    """Loss, ratio to the library, first use."""
    loss, ratio, first = of.loss(margin), of.library_s / of.answered_s(margin), of.first_loss()
    best = of.library_s / of.best_s
    return (
        f"loss mean {loss.mean():.2%} median {np.median(loss):.2%} p90 {np.quantile(loss, 0.9):.1%} worst "
        f"{loss.max():.0%}; library / answer {_geometric(ratio):.3f} (best {_geometric(best):.3f}); slower by "
        f"over 3 %: {np.sum(ratio < 1 / (1 + SLOWER))} of {len(loss)}; best 8 timed: mean {first.mean():.2%} "
        f"p90 {np.quantile(first, 0.9):.1%} worst {first.max():.0%}"
    )


def calibration(of: Cases, model: Model) -> str:
    """Said against true loss, as fractions of speed, and how often intervals hold."""
    told = [model.calibration.figures(dims, float(gain)) for dims, gain in zip(of.dims, of.gain, strict=True)]
    margin = model.calibration.margin
    loss, said = of.lost(margin), np.array([each[0] for each in told])
    error = np.where(of.used(margin), of.error[:, 0], of.error[:, 1])
    inside = [low <= each <= high for each, (_, _, (low, high)) in zip(error, told, strict=True)]
    below = [each <= most for each, (_, most, _) in zip(loss, told, strict=True)]
    return (
        f"said mean {said.mean():.2%}, true {loss.mean():.2%}; {HELD:.0%} intervals hold: "
        f"time {np.mean(inside):.1%}, loss {np.mean(below):.1%}"
    )


def answering(model: Model, kernels: Mapping[str, Kernel], fresh: Timings) -> str:
    """Median milliseconds of this thread for an answer, and for the first."""
    predictor, spent = Predictor(model, kernels), []
    for problem in fresh.problems:
        begin = time.thread_time()
        predictor.answer(problem)
        spent.append(1e3 * (time.thread_time() - begin))
    return f"answer {np.median(spent[len(spent) // 4 :]):.2f} ms, the first {spent[0]:.0f} ms"


def _geometric(ratios: Floats) -> float:
    return math.exp(float(np.log(ratios).mean()))


def main() -> None:
    """Prints a line or two for each repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("survey")
    parser.add_argument("--operation", default="gemm")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--device-file", type=Path, default=Path("configs/tuned/nvidia-h200/gemm.json"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fresh", type=int, default=100)
    parser.add_argument("--fitted", type=int, default=0, help="problems fitted to; all others when 0")
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat")
    given = parser.parse_args()
    device = next(iter(json.loads(given.device_file.read_text())["devices"].values()))
    catalogue = builtin()
    kernels = {each.name: each for each in catalogue.of(given.operation, given.target)}
    declared, where = catalogue.operation(given.operation), DeviceInfo.from_json(device)
    if given.survey.endswith(".npz"):
        survey = from_arrays(np.load(given.survey), declared)
    else:
        survey = from_database(given.survey, declared, kernels.values(), where, "cold")
    for seed in range(given.seed, given.seed + given.repeats):
        order = np.random.default_rng(seed).permutation(len(survey.problems))
        some, fresh = order[: -given.fresh][-given.fitted :], survey.of(order[-given.fresh :])
        begin = time.thread_time()
        model = fit(survey.of(some), kernels, where, seed)
        took = time.thread_time() - begin
        of, ordered, at_random = predicted(model, fresh, kernels)
        print(f"seed {seed}, {len(some)} problems: {losses(of, model.calibration.margin)}")
        print(f"  {calibration(of, model)}; margin {model.calibration.margin:.2f}")
        if ordered:
            print(
                f"  trials to within {WITHIN:.0%} of the best timed, at {len(ordered)} problems: median "
                f"{np.median(ordered):.0f}, mean {np.mean(ordered):.1f}; at random {np.median(at_random):.0f}, "
                f"{np.mean(at_random):.1f}"
            )
        print(
            f"  fit {took:.0f} s of a core, {len(to_bytes(model)):,} bytes; {answering(model, kernels, fresh)}",
            flush=True,
        )


if __name__ == "__main__":
    main()

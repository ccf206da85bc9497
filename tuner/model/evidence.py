"""What was timed near a problem: a model answers with configs that were, and beats the library where they did.

Trees extrapolate. Of two thousand configs that they have never seen at a problem some look faster than any is.
So an answer is a config that was good at one of the surveyed problems nearest to the one that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.declare.problem import Problem
from tuner.model.table import FeatureRows
from tuner.results.distance import OTHER_LAYOUT, Floats, Numbers, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND

#: Surveyed problems that speak for a config.
NEAREST = 32
#: A config this much slower than the best at a problem, as a log of time, does not recommend itself there.
GOOD = 0.5
#: Log of time to which it is rounded, up to `GOOD` and beyond: finer differences are noise, and take space. No
#: config counts as further behind than the last.
STEP, COARSE_STEP, FURTHEST = 1 / 32, 1 / 8, 1.5
#: What is added to a distance, in doublings, before a near problem counts its inverse square.
SOFTLY = 0.3
#: Weight of how a config stood near by beside the time that trees predict. At problems left out of 54,313
#: timings of gemm on an H200 answers lost 7.5 %, with a weight of 0.5 and trees grown faster 9.3 % (three draws
#: of 134 problems).
WEIGHT = 1.0


@dataclass(frozen=True)
class Evidence:
    """How configs of the shortlist stood at the surveyed problems.

    Attributes:
        places: log2 of the problems' dims, shape (problems, dims).
        kinds: Number of each problem's dtype and layout among the model's.
        library: Per problem: log(library / fastest config); NaN where either was not timed.
        starts: Where each problem's configs begin, shape (problems + 1,).
        configs: Numbers of configs in the shortlist, one problem after the other.
        behind: Log of their time over that of the fastest one there.
        weight: Of how a config stood near by, beside the time that trees predict.
    """

    places: Floats
    kinds: Numbers
    library: Floats
    starts: Numbers
    configs: Numbers
    behind: Floats
    weight: float = WEIGHT

    def around(self, problem: Problem, kind: int, count: int) -> tuple[Floats, Floats]:
        """How configs stood near a problem.

        Args:
            problem: The problem.
            kind: Number of its dtype and layout.
            count: Configs of the shortlist.

        Returns:
            Per config: how far it is expected to be behind the fastest, a log, infinite if it was not good near
            by; and the mean log(library / config) near by, minus infinity if it is not known.
        """
        unlike = OTHER_LAYOUT * (self.kinds != kind)
        apart = distances(self.places, log_dims(problem.shape), unlike)
        near = np.argpartition(apart, NEAREST)[:NEAREST] if len(apart) > NEAREST else np.arange(len(apart))
        first, counts = self.starts[near], self.starts[near + 1] - self.starts[near]
        # Row by row: the near problem that it is of, and its place among all rows.
        of = np.repeat(np.arange(len(near)), counts)
        rows = np.arange(len(of)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        configs, lost, apart = self.configs[rows], self.behind[rows], apart[near]
        behind, good = np.full(count, np.inf), lost <= GOOD
        np.minimum.at(behind, configs[good], lost[good] + FALLS_BEHIND * apart[of[good]])
        library = self.library[near]
        weight = np.where(np.isfinite(library), 1 / (SOFTLY + apart) ** 2, 0.0)[of]
        gain = np.nan_to_num(library, posinf=0.0, neginf=0.0)[of] - lost
        weights = np.bincount(configs, weight, count)
        gains = np.bincount(configs, weight * gain, count)
        return behind, np.divide(gains, weights, out=np.full(count, -np.inf), where=weights > 0)


def evidence(data: FeatureRows, numbers: Numbers, shortlist: Numbers) -> Evidence:
    """The evidence of some problems.

    Args:
        data: A survey.
        numbers: Of the problems that may speak, ascending.
        shortlist: Numbers of the configs that may be answered, in order.
    """
    places = np.full(len(data.timings.configs), -1)
    places[shortlist] = np.arange(len(shortlist))
    place, timed = places[data.config], numbers[np.isfinite(data.fastest_s[numbers])]
    rows = np.flatnonzero(np.isin(data.problem, timed) & (place >= 0))
    # In a row, numbers take less space in a file.
    rows = rows[np.lexsort((place[rows], data.problem[rows]))]
    problem, kinds = data.problem[rows], list(data.traits)
    lost = np.log(data.time_s[rows] / data.fastest_s[problem])
    step = np.where(lost > GOOD, COARSE_STEP, STEP)
    problems = [data.timings.problems[number] for number in timed]
    return Evidence(
        np.array([log_dims(of.shape) for of in problems]),
        np.array([kinds.index((of.dtype, of.layout)) for of in problems], np.int32),
        np.log(data.library_s[timed] / data.fastest_s[timed]),
        np.append(np.searchsorted(problem, timed), len(rows)).astype(np.int32),
        place[rows].astype(np.int32), np.minimum(np.round(lost / step) * step, FURTHEST),
    )  # fmt: skip

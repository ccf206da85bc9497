"""The configs that a model answers with: few of those surveyed, chosen to hold a good one for every problem."""

from __future__ import annotations

import numpy as np

from tuner.lookup.features import Floats, Numbers

#: Configs of a shortlist.
SHORTLIST = 2000
#: A problem for which nothing good is chosen counts as this loss of log time.
MISSED = 0.5
#: Log of time behind the best that is near to it.
NEAR = 0.03


def shortlist(problem: Numbers, config: Numbers, time_s: Floats, count: int = SHORTLIST) -> Numbers:
    """Chooses configs one by one, each time the one that brings problems closest to their best.

    Args:
        problem: Per time: number of its problem.
        config: Per time: number of its config.
        time_s: Per time: seconds.
        count: Configs at the most; once every problem has its best, those follow that are good most often.

    Returns:
        Numbers of configs, the most useful first.
    """
    order = np.argsort(config, kind="stable")
    problem, config, log_s = problem[order], config[order], np.log(time_s[order])
    best = np.full(problem.max(initial=-1) + 1, np.inf)
    np.minimum.at(best, problem, log_s)
    loss, left = log_s - best[problem], np.full(len(best), MISSED)
    starts = np.flatnonzero(np.diff(config, prepend=-1))
    numbers, ends = config[starts], np.append(starts[1:], len(config))
    chosen: list[int] = []
    while len(chosen) < min(count, len(numbers)):
        gains = np.add.reduceat(np.maximum(left[problem] - loss, 0.0), starts)
        at = int(np.argmax(gains))
        if gains[at] <= 0:
            break
        chosen.append(int(numbers[at]))
        mine = slice(starts[at], ends[at])
        np.minimum.at(left, problem[mine], loss[mine])
    good = np.add.reduceat(np.exp(-loss / NEAR), starts)
    rest = [int(numbers[at]) for at in np.argsort(-good, kind="stable")]
    return np.array(list(dict.fromkeys([*chosen, *rest]))[:count], dtype=np.int64)

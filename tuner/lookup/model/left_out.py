"""Problems left out of a fit: what they cost is what answers at new ones are expected to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.declare.problem import Problem
from tuner.devices.gpu_process import Gpu
from tuner.lookup.model.calibrate import Cases, Said, cases
from tuner.lookup.model.evidence import BESIDE_NETWORKS, WEIGHT, evidence, standing_near
from tuner.lookup.model.parts import Recipe, parts_of
from tuner.lookup.model.shortlist import shortlist
from tuner.lookup.model.table import Table
from tuner.lookup.model.training import share_of

#: Parts of the problems that are left out in turn.
FOLDS = 5
#: Problems left out that suffice to tell what answers cost.
CASES = 400


def left_out(
    problems: Sequence[Problem], data: Table, seed: int, recipe: Recipe, gpu: Gpu | None
) -> tuple[Cases, float]:
    """Problems as cases, each predicted by a model that was fitted to others, and the networks' share.

    A fifth of the problems is left out, and then another, until there are enough cases.
    """
    timed = np.unique(data.problem)
    has_library = np.isfinite(data.library_s)
    order = np.random.default_rng(seed).permutation(timed[has_library[timed] | ~has_library.any()])
    behind, gain = (np.full(len(data.problem), np.inf) for _ in range(2))
    of_trees, of_network = (np.zeros(len(data.problem)) for _ in range(2))
    of_library, out = np.full(len(problems), np.inf), []
    for fold in range(FOLDS):
        fresh = order[fold::FOLDS]
        rest = np.setdiff1d(np.arange(len(problems)), fresh)
        parts = parts_of(data, rest, seed, recipe, gpu)
        inside = np.isin(data.problem, rest)
        kept = shortlist(data.problem[inside], data.config[inside], data.time_s[inside])
        known = evidence(problems, list(data.traits), data, rest, kept)
        at = np.flatnonzero(np.isin(data.problem, fresh))
        of_trees[at] = parts.forest.predict(data.rows[at])
        of_network[at] = of_trees[at] if parts.network is None else parts.network.predict(data.rows[at])
        behind[at], gain[at] = standing_near(problems, data, known, kept, at)
        if len(parts.library.leaves):
            of_library[fresh] = parts.library.predict(data.library_rows[fresh]) + data.roofline[fresh]
        out.append(fresh)
        if sum(map(len, out)) >= CASES:
            break
    numbers = np.sort(np.concatenate(out))
    seen = np.isin(data.problem, numbers)
    share = share_of(of_trees[seen], of_network[seen], data.target[seen], data.weight[seen])
    log_s = (1 - share) * of_trees + share * of_network + data.reference
    weight = WEIGHT if parts.network is None else BESIDE_NETWORKS
    said = Said(np.where(np.isfinite(behind), log_s, np.inf), behind, gain, of_library, weight)
    dims = np.log([[size for _, size in each.shape] for each in problems])
    return cases(numbers, dims, data, said), share

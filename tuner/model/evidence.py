"""What was timed near a problem: a model answers with configs that were, and beats the library where they did.

Trees extrapolate. Of two thousand configs that they have never seen at a problem some look faster than any is.
So an answer is a config that was good at one of the surveyed problems nearest to the one that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space, Value
from tuner.lookup.legality import Flags
from tuner.model.table import FeatureRows
from tuner.results.distance import OTHER_LAYOUT, Floats, Numbers, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND

#: A kernel with so many good configs that are legal needs no others; those of each kernel that are changed.
ENOUGH, ORIGINS = 8, 8
#: Kernel and config by number.
Configs = Sequence[tuple[str, Mapping[str, Value]]]
#: Numbers of the configs of a kernel that has none.
NOTHING: Numbers = np.zeros(0, np.int64)
#: Combinations of a space that are looked at.
LOOKED_AT = 100_000
#: Log of time behind the best near by beyond which a config is not worth changing.
WORTH = 0.3
#: Log of time that a changed config is expected to fall behind the one that it was made from.
CHANGED = 0.05


@dataclass(frozen=True)
class AdaptedConfigs:
    """Configs that were made legal.

    Attributes:
        configs: Kernel and config.
        origins: Number of the config that each was made from.
    """

    configs: Sequence[tuple[str, Config]]
    origins: Numbers


def adapted(
    problem: Problem,
    device: DeviceInfo,
    about: tuple[Mapping[str, Kernel], Configs, Mapping[str, Numbers]],
    behind: Floats,
    legal: Flags,
) -> AdaptedConfigs:
    """Makes good configs legal, of the kernels that have few good ones.

    Args:
        problem: Where they are to be legal.
        device: Likewise.
        about: Kernels by name; kernel and config by number; and by kernel the numbers of those that are points
            of its parameters.
        behind: How far each is expected to be behind the fastest by what was timed near by; infinite: unknown.
        legal: Whether each is legal.
    """
    kernels, configs, points = about
    least = behind.min(initial=np.inf)
    made: dict[tuple[str, Config], int] = {}
    for name, kernel in kernels.items():
        mine = points.get(name, NOTHING)
        mine = mine[np.isfinite(behind[mine])]
        if legal[mine].sum() >= ENOUGH:
            continue
        tied = mine[~legal[mine] & (behind[mine] <= least + WORTH)]
        tied = tied[np.argsort(behind[tied], kind="stable")][:ORIGINS]
        if not len(tied):
            continue
        space = Space.build(kernel.parameters, kernel.constraints, problem, device, limit=LOOKED_AT)
        known = {Config(configs[number][1]) for number in mine[legal[mine]].tolist()}
        nearest = space.nearest_indices([configs[number][1] for number in tied.tolist()])
        for index, number in zip(nearest, tied.tolist() if nearest else (), strict=True):
            config = space[index]
            if config not in known:
                made.setdefault((name, config), number)
    return AdaptedConfigs(list(made), np.array(list(made.values()), np.int64))


#: Surveyed problems that speak for a config.
NEAREST = 32
#: A config this much slower than the best at a problem, as a log of time, does not recommend itself there.
GOOD = 0.5
#: Log of time to which it is rounded, up to `GOOD` and beyond: finer differences are noise, and take space. No
#: config counts as further behind than the last.
STEP, COARSE_STEP, FURTHEST = 1 / 32, 1 / 8, 1.5
#: What is added to a distance, in doublings, before a near problem counts its inverse square.
SOFTLY = 0.3
#: Weight of how a config stood near by beside the time that trees predict, and beside what networks do. At
#: problems left out of 54,313 timings of gemm on an H200 answers lost 7.5 %, with a weight of 0.5 and trees
#: grown faster 9.3 % (three draws of 134 problems).
WEIGHT, BESIDE_NETWORKS = 1.0, 0.2


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
    weight: float = 0.5

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
    place, fastest_s = _places(data, shortlist)[data.config], np.full(len(data.problems), np.inf)
    np.minimum.at(fastest_s, data.problem, data.time_s)
    timed = numbers[np.isfinite(fastest_s[numbers])]
    rows = np.flatnonzero(np.isin(data.problem, timed) & (place >= 0))
    # In a row, numbers take less space in a file.
    rows = rows[np.lexsort((place[rows], data.problem[rows]))]
    problem = data.problem[rows]
    lost = np.log(data.time_s[rows] / fastest_s[problem])
    step = np.where(lost > GOOD, COARSE_STEP, STEP)
    return Evidence(
        np.array([log_dims(data.problems[number].shape) for number in timed]),
        np.array([data.kind(number) for number in timed], np.int32),
        np.log(data.library_s[timed] / fastest_s[timed]),
        np.append(np.searchsorted(problem, timed), len(rows)).astype(np.int32),
        place[rows].astype(np.int32), np.minimum(np.round(lost / step) * step, FURTHEST), WEIGHT,
    )  # fmt: skip


def _places(data: FeatureRows, shortlist: Numbers) -> Numbers:
    """The place of each config of a survey in a shortlist; -1 for those that are not on it."""
    place = np.full(data.parameters.shape[1], -1)
    place[shortlist] = np.arange(len(shortlist))
    return place


def standing_near(
    data: FeatureRows, known: Evidence, shortlist: Numbers, rows: Numbers
) -> tuple[Floats, Floats]:
    """Per row: how far behind a config is by what was timed near by, and log(library / config) there.

    A config that is not known near by counts as one made from the kernel's best one, if few of the kernel are
    known: a predictor would make some. Others are infinitely far behind.

    Args:
        data: A survey.
        known: The evidence of some of its problems.
        shortlist: Numbers of the configs that it is of, in order.
        rows: Of the survey, whose configs are asked about.
    """
    place, kernel = _places(data, shortlist), data.parameters[0].astype(np.int64)
    behind, gain = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    for number in np.unique(data.problem[rows]):
        mine = np.flatnonzero(data.problem[rows] == number)
        near = known.around(data.problems[number], data.kind(number), len(shortlist))
        configs = data.config[rows[mine]]
        at = place[configs]
        behind[mine[at >= 0]], gain[mine[at >= 0]] = near[0][at[at >= 0]], near[1][at[at >= 0]]
        is_known = np.isfinite(behind[mine])
        for name in np.unique(kernel[configs[~is_known]]):
            of_kernel, theirs = kernel[configs] == name, np.flatnonzero(kernel[shortlist] == name)
            best = theirs[np.argmin(near[0][theirs])] if len(theirs) else -1
            if (is_known & of_kernel).sum() < ENOUGH and best >= 0 and np.isfinite(near[0][best]):
                made = mine[of_kernel & ~is_known]
                behind[made], gain[made] = near[0][best] + CHANGED, near[1][best]
    return behind, gain if np.isfinite(data.library_s).any() else np.full(len(rows), np.inf)

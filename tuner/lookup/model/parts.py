"""What a model predicts by, fitted to some problems of a survey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuner.devices.gpu_process import Gpu
from tuner.lookup.features import Numbers
from tuner.lookup.model.forest import MOST_LEAVES, Forest, joined
from tuner.lookup.model.growing import Growth, grow, no_trees
from tuner.lookup.model.network import Network
from tuner.lookup.model.table import Table
from tuner.lookup.model.training import TRAINING, Training, trained

#: Forests of the library, of which there is one time a problem.
LIBRARY_FORESTS = 3
#: How trees of configs and of the library are grown.
CONFIGS, OF_LIBRARY = Growth(800, MOST_LEAVES, 0.15, 20, 0.6), Growth(200, 10, 0.08, 5, 0.4)
#: Trees of configs beside networks: they tell which configs are worth asking networks about.
BESIDE = Growth(150, MOST_LEAVES, 0.15, 20, 0.6)


@dataclass(frozen=True)
class Recipe:
    """How a model is fitted.

    Attributes:
        configs: Trees of configs: two forests.
        beside: The same where there are networks.
        library: Trees of the library.
        networks: Networks of configs.
    """

    configs: Growth = CONFIGS
    beside: Growth = BESIDE
    library: Growth = OF_LIBRARY
    networks: Training = TRAINING


class Parts(NamedTuple):
    """Predict logs of times: of configs over their references, and of the library over the roofline."""

    forest: Forest
    network: Network | None
    library: Forest


def parts_of(data: Table, problems: Numbers, seed: int, recipe: Recipe, gpu: Gpu | None) -> Parts:
    """Fits them.

    Args:
        data: The survey.
        problems: Numbers of the problems that count.
        seed: Of samples and first weights.
        recipe: How.
        gpu: Where networks are trained; None for the CPU.

    Raises:
        TunerError: LightGBM is not installed.
    """
    at = np.isin(data.problem, problems)
    rows, weight = data.rows[at], data.weight[at]
    network = None
    if len(data.rows) >= recipe.networks.least:
        network = trained(rows, data.target[at], weight, recipe.networks, seed, gpu)
    how = recipe.configs if network is None else recipe.beside
    # Errors of forests with different references differ, and their mean errs less than one as large.
    forest = joined([
        grow(rows, target[at], weight, how, seed + number) for number, target in enumerate(data.targets)
    ])  # fmt: skip
    timed = problems[np.isfinite(data.library_target[problems])]
    if not len(timed):
        return Parts(forest, network, no_trees(data.library_rows.shape[1]))
    of_library, target = data.library_rows[timed], data.library_target[timed]
    ones = np.ones(len(timed))
    some = [grow(of_library, target, ones, recipe.library, seed + each) for each in range(LIBRARY_FORESTS)]
    return Parts(forest, network, joined(some))

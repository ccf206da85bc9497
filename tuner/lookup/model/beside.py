"""Configs beside others: they differ in one parameter, or in two, since constraints often tie two together."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config

#: Configs that differ in two parameters, at the most: of more, so many are drawn.
PAIRS = 20_000


def beside(kernel: Kernel, config: Config, seed: int = 0) -> list[Config]:
    """The configs that differ from one in one or two parameters, legal or not.

    Args:
        kernel: Declares the parameters.
        config: One of its points.
        seed: Of the choice where there are too many.
    """
    own = {each.name: config[each.name] for each in kernel.parameters}
    steps = [
        (each.name, value) for each in kernel.parameters for value in each.values if value != own[each.name]
    ]
    found = [Config({**own, name: value}) for name, value in steps]
    sizes = np.array([len(each.values) - 1 for each in kernel.parameters])
    total = (sizes.sum() ** 2 - (sizes**2).sum()) // 2
    if total <= PAIRS:
        pairs = [(one, two) for one, two in combinations(steps, 2) if one[0] != two[0]]
    else:
        drawn = np.random.default_rng(seed).integers(0, len(steps), (PAIRS, 2)).tolist()
        pairs = [(steps[one], steps[two]) for one, two in drawn if steps[one][0] != steps[two][0]]
    return [*found, *(Config({**own, one[0]: one[1], two[0]: two[1]}) for one, two in dict.fromkeys(pairs))]

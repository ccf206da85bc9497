"""Grows the trees of a model. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tuner.errors import TunerError
from tuner.model.forest import MOST_LEAVES, Forest
from tuner.results.distance import Floats

#: Log of time to which leaves are rounded: sums are far more precise than times are, and files smaller.
LEAF_STEP = 2.0**-14


@dataclass(frozen=True)
class Growth:
    """How trees are grown.

    Attributes:
        trees: How many.
        leaves: Of a tree, at the most.
        rate: Learning rate.
        least: Rows of a leaf at the least.
        share: Of the features that a tree may ask for.
    """

    trees: int
    leaves: int
    rate: float
    least: int
    share: float


def no_trees(features: int) -> Forest:
    """A forest that says nothing of so many features."""
    return Forest(
        np.zeros((0, 5), np.int32), np.zeros(0), np.zeros(features + 1, np.int32), np.zeros((0, MOST_LEAVES))
    )


def grow(rows: Floats, target: Floats, weight: Floats, how: Growth, seed: int) -> Forest:
    """Gradient-boosted trees for a squared error, the same with any number of threads (``OMP_NUM_THREADS``).

    Args:
        rows: Shape (rows, features).
        target: Shape (rows,).
        weight: Shape (rows,).
        how: How.
        seed: Of the samples.

    Raises:
        TunerError: LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise TunerError(
            "fitting a model needs LightGBM, which is not installed; pip install 'tile-tuner[model]'"
        ) from error
    settings = {
        "objective": "regression", "num_leaves": how.leaves, "learning_rate": how.rate,
        "min_data_in_leaf": how.least, "bagging_fraction": 0.8, "bagging_freq": 1,
        "feature_fraction": how.share, "max_bin": 127, "seed": seed,
        "verbose": -1, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, target, weight=weight), how.trees)
    return _arrays([each["tree_structure"] for each in booster.dump_model()["tree_info"]], rows.shape[1])


def _arrays(trees: Sequence[Mapping[str, Any]], features: int) -> Forest:
    """LightGBM's trees as arrays; it goes left where a value is at most the threshold."""
    leaves = np.zeros((len(trees), MOST_LEAVES))
    asked: list[tuple[int, int, float, int, int]] = []

    def walk(tree: int, node: Mapping[str, Any], first: int) -> int:
        """Numbers the leaves from `first` on; returns the number after the last."""
        if "split_feature" not in node:
            leaves[tree, first] = round(node["leaf_value"] / LEAF_STEP) * LEAF_STEP
            return first + 1
        middle = walk(tree, node["left_child"], first)
        asked.append((tree, node["split_feature"], node["threshold"], first, middle))
        return walk(tree, node["right_child"], middle)

    for number, tree in enumerate(trees):
        walk(number, tree, 0)
    thresholds = [sorted({each[2] for each in asked if each[1] == number}) for number in range(features)]
    places = [{value: at for at, value in enumerate(some)} for some in thresholds]
    nodes = [(tree, feature, places[feature][value], low, high) for tree, feature, value, low, high in asked]
    starts = np.cumsum([0, *map(len, thresholds)]).astype(np.int32)
    return Forest(
        np.array(nodes, np.int32).reshape(-1, 5),
        np.array(list(chain.from_iterable(thresholds))),
        starts,
        leaves,
    )

"""Regression trees as arrays, evaluated for many rows at once with NumPy alone.

A tree has at most 32 leaves, numbered from left to right, and a row has a bit for each: those that can still
be reached. A node whose question is answered with "above" takes the bits of its left side away; the lowest bit
left is the row's leaf (QuickScorer, Lucchese et al. 2015). What a feature's value takes away in all trees is
looked up in a table, so that rows that share a feature share the work: problem features are looked up once for
all configs, and a config's own once for all problems.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TunerError
from tuner.extras import remedy
from tuner.results.distance import Floats

Bits = NDArray[np.uint32]
Numbers = NDArray[np.int32]
Places = NDArray[np.intp]

#: Leaves of a tree at the most: a bit each.
MOST_LEAVES = 32
#: Rows that are looked up together: what is known of them stays in a processor's cache.
AT_ONCE = 64
#: Every leaf can be reached.
ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Forest:
    """Trees whose values are added.

    Attributes:
        nodes: Shape (nodes, 5): tree, feature, number of the threshold among the feature's, and the leaves on
            the node's left side, from first to before last.
        thresholds: Of all features one after the other, each feature's ascending.
        starts: Where each feature's thresholds start, shape (features + 1,).
        leaves: Values, shape (trees, 32).
    """

    nodes: Numbers
    thresholds: Floats
    starts: Numbers
    leaves: Floats

    @property
    def features(self) -> int:
        """Features of a row."""
        return len(self.starts) - 1

    @cached_property
    def _table(self) -> Bits:
        """Bits left in each tree, a row for each feature and number of its thresholds that are below a value.

        Feature f's rows begin at ``starts[f] + f``.
        """
        tree, feature, place, low, high = self.nodes.T
        left = (np.uint64(1) << high.astype(np.uint64)) - (np.uint64(1) << low.astype(np.uint64))
        first = self.starts + np.arange(len(self.starts))
        table = np.full((first[-1], len(self.leaves)), ALL, np.uint32)
        np.bitwise_and.at(table, (first[feature] + place + 1, tree), ~left.astype(np.uint32))
        for begin, end in itertools.pairwise(first):
            np.bitwise_and.accumulate(table[begin:end], axis=0, out=table[begin:end])
        return table

    @cached_property
    def _of_features(self) -> list[tuple[Floats, int]]:
        """Per feature its thresholds, and where its rows of the table begin."""
        pairs = itertools.pairwise(self.starts.tolist())
        return [(self.thresholds[begin:end], begin + at) for at, (begin, end) in enumerate(pairs)]

    @cached_property
    def _begins(self) -> Places:
        """Where each tree's leaves begin."""
        return np.arange(len(self.leaves), dtype=np.intp) * MOST_LEAVES

    def places(self, first: int, values: Floats) -> Places:
        """Where rows' values lie among the thresholds of some features: the rows of the table to look up.

        Args:
            first: Number of the first of the features.
            values: Shape (features, rows); those beyond the forest's features do not count, since models of
                earlier versions know fewer.

        Returns:
            Shape (features that are asked for, rows); also right for the first trees alone.
        """
        of_features = zip(self._of_features[first:], values, strict=False)
        rows = [known.searchsorted(row) + begin for (known, begin), row in of_features if len(known)]
        return np.array(rows, dtype=np.intp).reshape(len(rows), values.shape[1])

    def bits_at(self, places: Places) -> Bits:
        """Leaves that rows may still reach by the features of `places`, shape (rows, trees)."""
        left = np.full((places.shape[1], len(self.leaves)), ALL, np.uint32)
        taken = np.empty((min(AT_ONCE, len(left)), len(self.leaves)), np.uint32)
        take = self._table.take
        for begin in range(0, len(left), AT_ONCE):
            some = left[begin : begin + AT_ONCE]
            room = taken[: len(some)]
            for row in places[:, begin : begin + AT_ONCE]:
                take(row, axis=0, out=room, mode="clip")  # clipping, which never happens, spares a buffer
                some &= room
        return left

    def bits(self, first: int, values: Floats) -> Bits:
        """Leaves that rows may still reach by some features.

        Args:
            first: Number of the first of the features.
            values: Shape (features, rows).

        Returns:
            Shape (rows, trees); to be joined with ``&``.
        """
        return self.bits_at(self.places(first, values))

    def sums(self, bits: Bits) -> Floats:
        """Sums of the trees' values, shape (rows,).

        Args:
            bits: What all features together leave, shape (rows, trees).
        """
        # Below the lowest bit that is left: as many as the leaf's number.
        leaf = np.bitwise_count(~bits & (bits - np.uint32(1)))
        values: Floats = self.leaves.take(leaf + self._begins, mode="clip").sum(axis=1)
        return values

    def first(self, trees: int) -> Forest:
        """The first trees alone: of boosted ones, a coarse prediction."""
        return Forest(self.nodes[self.nodes[:, 0] < trees], self.thresholds, self.starts, self.leaves[:trees])

    def predict(self, rows: Floats) -> Floats:
        """Values of rows of all features, shape (rows, features)."""
        return self.sums(self.bits(0, np.asarray(rows, dtype=float).T))


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


def grow(rows: Floats, targets: Sequence[Floats], weight: Floats, how: Growth, seed: int) -> Forest:
    """Gradient-boosted trees for a squared error, the same with any number of threads (``OMP_NUM_THREADS``).

    Args:
        rows: Shape (rows, features).
        targets: Each of shape (rows,); each has trees of its own, which take turns, and their mean counts.
        weight: Shape (rows,).
        how: How.
        seed: Of the samples of the first; the others' follow.

    Raises:
        TunerError: LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise TunerError(
            f"fitting a model needs LightGBM, which is not installed; {remedy('model')}"
        ) from error
    settings = {
        "objective": "regression", "num_leaves": how.leaves, "learning_rate": how.rate,
        "min_data_in_leaf": how.least, "bagging_fraction": 0.8, "bagging_freq": 1,
        "feature_fraction": how.share, "max_bin": 127, "verbose": -1, "deterministic": True,
        "force_row_wise": True,
    }  # fmt: skip
    grown = []
    for number, target in enumerate(targets):
        data = lightgbm.Dataset(rows, target, weight=weight)
        booster = lightgbm.train({**settings, "seed": seed + number}, data, how.trees)
        grown.append([tree["tree_structure"] for tree in booster.dump_model()["tree_info"]])
    # A target with fewer trees, because nothing was left to be learned, adds nothing at its turns.
    turns = itertools.zip_longest(*grown, fillvalue={"leaf_value": 0.0})
    return forest_of(list(itertools.chain.from_iterable(turns)), rows.shape[1], 1 / len(grown))


def forest_of(trees: Sequence[Mapping[str, Any]], features: int, share: float = 1.0) -> Forest:
    """LightGBM's trees as arrays; it goes left where a value is at most the threshold.

    Args:
        trees: Their structures.
        features: Of a row.
        share: Of each tree's value in the sum.
    """
    leaves = np.zeros((len(trees), MOST_LEAVES))
    questions: list[tuple[int, int, float, int, int]] = []

    def walk(tree: int, node: Mapping[str, Any], first: int) -> int:
        """Numbers the leaves from `first` on; returns the number after the last."""
        if "split_feature" not in node:
            leaves[tree, first] = round(node["leaf_value"] / LEAF_STEP) * LEAF_STEP * share
            return first + 1
        middle = walk(tree, node["left_child"], first)
        questions.append((tree, node["split_feature"], node["threshold"], first, middle))
        return walk(tree, node["right_child"], middle)

    for number, tree in enumerate(trees):
        walk(number, tree, 0)
    thresholds = [
        np.unique([value for _, feature, value, *_ in questions if feature == of]) for of in range(features)
    ]
    nodes = [
        (tree, feature, thresholds[feature].searchsorted(value), low, high)
        for tree, feature, value, low, high in questions
    ]
    starts = np.cumsum([0, *map(len, thresholds)]).astype(np.int32)
    return Forest(
        np.array(nodes, np.int32).reshape(-1, 5), np.concatenate(thresholds).astype(float), starts, leaves
    )

"""Regression trees as arrays, and networks, evaluated for many rows at once with NumPy alone.

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
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TunerError
from tuner.extras import remedy
from tuner.results import distance
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

    def bits(self, first: int, values: Floats) -> Bits:
        """Leaves that rows may still reach by some features.

        Args:
            first: Number of the first of the features.
            values: Shape (features, rows); those beyond the forest's features do not count, since models of
                earlier versions know fewer.

        Returns:
            Shape (rows, trees); to be joined with ``&``.
        """
        of_features = list(zip(self._of_features[first:], values, strict=False))
        places = [known.searchsorted(row) + begin for (known, begin), row in of_features if len(known)]
        if values.shape[1] == 1:
            of_row = self._table.take(np.array(places, np.intp).ravel(), axis=0)
            return np.asarray(np.bitwise_and.reduce(of_row, axis=0, initial=ALL)[None], np.uint32)
        left = np.full((values.shape[1], len(self.leaves)), ALL, np.uint32)
        for begin in range(0, len(left), AT_ONCE):
            some = left[begin : begin + AT_ONCE]
            for rows in places:
                some &= self._table[rows[begin : begin + AT_ONCE]]
        return left

    def sums(self, bits: Bits) -> Floats:
        """Sums of the trees' values, shape (rows,).

        Args:
            bits: What all features together leave, shape (rows, trees).
        """
        # Below the lowest bit that is left: as many as the leaf's number.
        leaf = np.bitwise_count(~bits & (bits - np.uint32(1)))
        return cast(Floats, self.leaves.take(leaf + self._begins, mode="clip").sum(axis=1))

    def predict(self, rows: Floats) -> Floats:
        """Values of rows of all features, shape (rows, features)."""
        return self.sums(self.bits(0, np.asarray(rows, dtype=float).T))


#: Log of time to which leaves are rounded: sums are far more precise than times are, and files smaller.
LEAF_STEP = 2.0**-14


def grow(rows: Floats, targets: Sequence[Floats], weight: Floats, how: Mapping[str, Any], seed: int) -> Forest:
    """Gradient-boosted trees for a squared error, the same with any number of threads (``OMP_NUM_THREADS``).

    Args:
        rows: Shape (rows, features).
        targets: Each of shape (rows,); each has trees of its own, which take turns, and their mean counts.
        weight: Shape (rows,).
        how: Settings of LightGBM.
        seed: Of the samples of the first; the others' follow.

    Raises:
        TunerError: LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise TunerError(f"a fit needs LightGBM, which is not installed; {remedy('model')}") from error
    settings = {
        "objective": "regression", "learning_rate": 0.08, "bagging_fraction": 0.8, "bagging_freq": 1,
        "max_bin": 127, "verbose": -1, "deterministic": True, "force_row_wise": True, **how,
    }  # fmt: skip
    grown = []
    for number, target in enumerate(targets):
        data = lightgbm.Dataset(rows, target, weight=weight)
        booster = lightgbm.train({**settings, "seed": seed + number}, data)
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


# --- networks of a published model ------------------------------

#: A feature that is so many standard deviations from the mean, or further, looks the same.
FURTHEST = 4.0
#: Multiply-adds of a product from which on OpenBLAS shares it among threads, which wait for each other and keep
#: cores of the program busy that asks.
SHARED = 1 << 18


@dataclass(frozen=True)
class Network:
    """Networks of the same size, whose mean counts. No model is fitted with them any more.

    Rows of features become inputs: each feature by its deviation from the mean, and by its rank.

    Attributes:
        kinds: Values of the first feature, which is a number of a kind: 0 to this, each an input of its own.
        centre: Means of the features, shape (features,).
        spread: Their standard deviations, shape (features,); infinite for a feature that never changed.
        knots: Quantiles of each feature, ascending, shape (features, knots); the last is repeated where fewer
            differ.
        heights: What knots stand for, shape (features, knots).
        share: Weight of what they say, beside trees.
        weight: Of how a config stood near by, beside the time that they predict.
        sizes: Of the layers, from inputs to the one output.
        weights: Of the layers' matrices, one layer after the other, shape (networks, weights), in steps.
        steps: Of each output's weights, one layer after the other, shape (networks, outputs).
        offsets: Of each output, in the same order.
    """

    kinds: int
    centre: Floats
    spread: Floats
    knots: Floats
    heights: Floats
    share: float
    weight: float
    sizes: distance.Numbers
    weights: distance.Numbers
    steps: Floats
    offsets: Floats

    @cached_property
    def _layers(self) -> list[tuple[Any, Any]]:
        """Of each layer the matrices of all networks, (networks, inputs, outputs), and the offsets."""
        shapes, ends = list(itertools.pairwise(self.sizes.tolist())), np.cumsum(self.sizes[1:])[:-1]
        matrices = np.split(self.weights, np.cumsum([a * b for a, b in shapes])[:-1], axis=1)
        steps, offsets = (np.split(of[:, None], ends, axis=2) for of in (self.steps, self.offsets))
        return [
            ((matrix.reshape(-1, *shape) * step).astype(np.float32), offset.astype(np.float32))
            for matrix, shape, step, offset in zip(matrices, shapes, steps, offsets, strict=True)
        ]

    def _inputs(self, rows: Floats) -> Any:
        """Inputs of rows of features, shape (rows, inputs)."""
        count = len(self.centre)
        inputs = np.empty((len(rows), self.kinds + 2 * count), np.float32)
        inputs[:, : self.kinds] = rows[:, :1] == np.arange(self.kinds)
        deviations, ranks = np.split(inputs[:, self.kinds :], 2, axis=1)
        # A model of an earlier version knows fewer features.
        np.clip((rows[:, :count] - self.centre) / self.spread, -FURTHEST, FURTHEST, out=deviations)
        for at in range(count):
            ranks[:, at] = np.interp(rows[:, at], self.knots[at], self.heights[at])
        return inputs

    def predict(self, rows: Floats) -> Floats:
        """Values of rows of all features, shape (rows,)."""
        block = max(SHARED // int((self.sizes[:-1] * self.sizes[1:]).max()), 1)
        padded = np.pad(self._inputs(rows), ((0, -len(rows) % block), (0, 0)))
        values = padded.reshape(-1, 1, block, padded.shape[1])
        for matrix, offsets in self._layers[:-1]:
            values = values @ matrix + offsets
            values /= 1 + np.exp(-values)  # SiLU
        matrix, offsets = self._layers[-1]
        outputs: Floats = (values @ matrix + offsets)[..., 0].mean(axis=1, dtype=float).ravel()
        return outputs[: len(rows)]

    def joined(self, of_trees: Floats, rows: Floats) -> Floats:
        """What trees and networks say together of rows."""
        return (1 - self.share) * of_trees + self.share * self.predict(rows)

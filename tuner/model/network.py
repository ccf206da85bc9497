"""Neural networks, which models of an earlier version have beside trees; NumPy alone evaluates them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.results.distance import Floats

Singles = NDArray[np.float32]
#: Of each layer the matrices of all networks, shape (networks, inputs, outputs), and the offsets,
#: shape (networks, 1, outputs).
Layers = list[tuple[Any, Any]]

#: A feature that is so many standard deviations from the mean, or further, looks the same.
FURTHEST = 4.0
#: Where a feature's quantiles are put: from minus this to this.
OUTERMOST = 1.7
#: Multiply-adds of a product from which on OpenBLAS shares it among threads, which wait for each other and keep
#: cores of the program busy that asks; rows up to which blocks of fewer are made.
SHARED, FEW = 1 << 18, 1024


@dataclass(frozen=True)
class Encoding:
    """How rows of features become inputs: each by its deviation from the mean, and by its rank.

    Attributes:
        kinds: Values of the first feature, which is a number of a kind: 0 to this, each an input of its own.
        centre: Means, shape (features,).
        spread: Standard deviations, shape (features,); infinite for a feature that never changed.
        knots: Quantiles of each feature, ascending, shape (features, knots); the last is repeated where fewer
            differ.
    """

    kinds: int
    centre: Floats
    spread: Floats
    knots: Floats

    @property
    def inputs(self) -> int:
        """Inputs of a row."""
        return self.kinds + 2 * len(self.centre)

    @cached_property
    def _heights(self) -> Floats:
        """What knots stand for, shape (features, knots)."""
        steps = np.diff(self.knots, axis=1) > 0
        places = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
        most = places[:, -1:]
        heights: Floats = OUTERMOST * np.where(most > 0, 2 * places / np.maximum(most, 1) - 1, 0.0)
        return heights

    def inputs_of(self, rows: Floats) -> Singles:
        """Inputs of rows of features, shape (rows, inputs)."""
        inputs, count = np.empty((len(rows), self.inputs), np.float32), len(self.centre)
        inputs[:, : self.kinds] = rows[:, :1] == np.arange(self.kinds)
        deviations, ranks = np.split(inputs[:, self.kinds :], 2, axis=1)
        # A model of an earlier version knows fewer features.
        np.clip((rows[:, :count] - self.centre) / self.spread, -FURTHEST, FURTHEST, out=deviations)
        for at in range(count):
            ranks[:, at] = np.interp(rows[:, at], self.knots[at], self._heights[at])
        return inputs


@dataclass(frozen=True)
class Network:
    """Networks of the same size, whose mean counts.

    Attributes:
        encoding: Makes inputs of rows.
        share: Weight of what they say, beside trees.
        sizes: Of the layers, from inputs to the one output.
        weights: Of the layers' matrices, one layer after the other, shape (networks, weights), in steps.
        steps: Of each output's weights, one layer after the other, shape (networks, outputs).
        offsets: Of each output, in the same order.
    """

    encoding: Encoding
    share: float
    sizes: tuple[int, ...]
    weights: NDArray[np.int32]
    steps: Floats
    offsets: Floats

    @cached_property
    def _layers(self) -> Layers:
        layers, count, first, begin = [], len(self.weights), 0, 0
        for inputs, outputs in pairwise(self.sizes):
            some, these = slice(first, first + inputs * outputs), slice(begin, begin + outputs)
            matrix = self.weights[:, some].reshape(count, inputs, outputs) * self.steps[:, None, these]
            layers.append((matrix.astype(np.float32), self.offsets[:, None, these].astype(np.float32)))
            first, begin = some.stop, these.stop
        return layers

    def predict(self, rows: Floats) -> Floats:
        """Values of rows of all features, shape (rows,)."""
        inputs = self.encoding.inputs_of(rows)
        most = max(SHARED // max(a * b for a, b in pairwise(self.sizes)), 1)
        block = min(most, max(len(rows), 1)) if len(rows) <= FEW else len(rows)
        padded = np.pad(inputs, ((0, -len(rows) % block), (0, 0)))
        values = padded.reshape(-1, block, self.encoding.inputs)[:, None]
        for matrix, offsets in self._layers[:-1]:
            values = values @ matrix + offsets
            values /= 1 + np.exp(-values)  # SiLU
        matrix, offsets = self._layers[-1]
        outputs: Floats = (values @ matrix + offsets)[..., 0].mean(axis=1, dtype=float).ravel()
        return outputs[: len(rows)]

    def joined(self, of_trees: Floats, rows: Floats) -> Floats:
        """What trees and networks say together of rows."""
        return (1 - self.share) * of_trees + self.share * self.predict(rows)

"""The neural networks of a published model, which has them beside trees; NumPy alone evaluates them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.results.distance import Floats, Numbers

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
    sizes: Numbers
    weights: Numbers
    steps: Floats
    offsets: Floats

    @cached_property
    def _layers(self) -> list[tuple[Any, Any]]:
        """Of each layer the matrices of all networks, (networks, inputs, outputs), and the offsets."""
        shapes, ends = list(pairwise(self.sizes.tolist())), np.cumsum(self.sizes[1:])[:-1]
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

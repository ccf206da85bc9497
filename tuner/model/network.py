"""Neural networks over a model's features, evaluated with NumPy alone and trained by it or by CuPy.

Trees answer in steps; times change smoothly with most of what they depend on. Together they err less than
either. Training is Adam on a squared error that pulls no harder where errors are large.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.results.distance import Floats

if TYPE_CHECKING:
    from tuner.devices.cuda.process import Gpu

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
#: Steps of a weight to either side of zero.
STEPS = 127


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

    @classmethod
    def of(cls, encoding: Encoding, share: float, layers: Layers) -> Network:
        """Networks with some layers, rounded."""
        steps = [np.maximum(abs(matrix).max(axis=1), 1e-9) / STEPS for matrix, _ in layers]
        weights = [np.rint(matrix / step[:, None]) for (matrix, _), step in zip(layers, steps, strict=True)]
        count, sizes = len(layers[0][0]), (encoding.inputs, *(matrix.shape[2] for matrix, _ in layers))
        figures = np.hstack(steps), np.hstack([values[:, 0] for _, values in layers])
        whole = np.hstack([values.reshape(count, -1) for values in weights]).astype(np.int32)
        return cls(
            encoding, share, sizes, whole, *(values.astype(np.float32).astype(float) for values in figures)
        )

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


#: Quantiles of each feature.
KNOTS = 65
#: Error, a log of time, beyond which a row pulls no harder.
HUBER = 0.7
#: Share of the steps in which the rate rises to its highest.
WARM_UP = 0.02
#: Adam's means, and what keeps it from dividing by zero.
FIRST, SECOND, LEAST = 0.9, 0.999, 1e-8
#: Rows of a step at the most and at the least; between them as many as make this number of steps an epoch.
MOST_ROWS, LEAST_ROWS, EPOCH_STEPS = 2048, 32, 64


@dataclass(frozen=True)
class Training:
    """How networks are trained.

    Attributes:
        hidden: Sizes of the hidden layers.
        networks: How many, each from other random weights.
        epochs: Times that each row is seen.
        rate: Highest rate; it falls to zero along a cosine.
        decay: Share of the rate by which weights shrink.
        least: Timings from which on a survey has networks at all: for fewer, trees do.
    """

    hidden: tuple[int, ...] = (192, 96)
    networks: int = 4
    epochs: int = 80
    rate: float = 3e-3
    decay: float = 1e-4
    least: int = 50_000


TRAINING = Training()


def trained(
    rows: Floats, target: Floats, weight: Floats, how: Training, seed: int, gpu: Gpu | None = None
) -> Network:
    """Networks for a target, as `train` makes them, on a GPU, or where that is None on the CPU.

    Where the GPU fails, the CPU does it.
    """
    if gpu is not None:
        from tuner.devices.cuda.process import on_gpu  # which takes long to load, and answers do without

        try:
            return on_gpu(gpu, train, rows, target, weight, how, seed)
        except Exception as error:  # whatever a GPU, its driver or CuPy come up with
            warnings.warn(f"networks are trained on the CPU, as the GPU failed: {error}", stacklevel=2)
    return train(rows, target, weight, how, seed)


def train(rows: Floats, target: Floats, weight: Floats, how: Training, seed: int, xp: Any = np) -> Network:
    """Networks for a target, all at once: a step is as many calls for several as for one.

    Args:
        rows: Features, shape (rows, features); the first is the number of a kind.
        target: Shape (rows,).
        weight: Shape (rows,).
        how: How.
        seed: Of first weights and batches.
        xp: NumPy, or CuPy to train on the current GPU.
    """
    encoding, rng = encoding_of(rows), np.random.default_rng(seed)
    data = encoding.inputs_of(rows), target.astype(np.float32), (weight / weight.mean()).astype(np.float32)
    inputs, truth, pulls = map(xp.asarray, data)
    weights = [xp.asarray(matrix) for matrix in _first_weights((encoding.inputs, *how.hidden, 1), how, rng)]
    means, squares = ([xp.zeros_like(matrix) for matrix in weights] for _ in range(2))
    batch = min(max(len(rows) // EPOCH_STEPS, LEAST_ROWS), MOST_ROWS)
    an_epoch = max(len(rows) // batch, 1)
    steps = how.epochs * an_epoch
    for step in range(1, steps + 1):
        if step % an_epoch == 1 % an_epoch:
            order, begin = xp.asarray(rng.permutation(len(rows))), 0
        some = order[begin : begin + batch]
        begin += batch
        slopes = _slopes(weights, inputs[some], truth[some], pulls[some], xp)
        rate = how.rate * min(1.0, step / (WARM_UP * steps)) * 0.5 * (1 + np.cos(np.pi * step / steps))
        for matrix, slope, mean, square in zip(weights, slopes, means, squares, strict=True):
            mean += (1 - FIRST) * (slope - mean)
            square += (1 - SECOND) * (slope * slope - square)
            along = mean / (xp.sqrt(square) * (1 / np.sqrt(1 - SECOND**step)) + LEAST)
            matrix *= 1 - rate * how.decay
            matrix -= (rate / (1 - FIRST**step)) * along
    host = [matrix.get() if hasattr(matrix, "get") else matrix for matrix in weights]
    return Network.of(encoding, 1.0, list(zip(host[::2], host[1::2], strict=True)))


def _first_weights(sizes: Sequence[int], how: Training, rng: np.random.Generator) -> Iterator[Singles]:
    """Of each layer the matrices of all networks, and the offsets."""
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        scale = (0.1 if number == len(sizes) - 2 else 1.0) / np.sqrt(inputs)
        yield (scale * rng.standard_normal((how.networks, inputs, outputs))).astype(np.float32)
        yield np.zeros((how.networks, 1, outputs), np.float32)


def _slopes(weights: Sequence[Any], values: Any, target: Any, pulls: Any, xp: Any) -> list[Any]:
    """The slopes of the error at some rows by every weight."""
    layers, kept = list(zip(weights[::2], weights[1::2], strict=True)), []
    for matrix, offsets in layers[:-1]:
        before = values @ matrix + offsets
        share = 1 / (1 + xp.exp(-before))
        kept.append((values, share * (1 + before * (1 - share))))
        values = before * share
    matrix, offsets = layers[-1]
    off = (values @ matrix + offsets)[:, :, 0] - target
    back = (xp.clip(off, -HUBER, HUBER) * (pulls / len(target)))[:, :, None]
    slopes: list[Any] = []
    for matrix, _ in reversed(layers):
        slopes[:0] = xp.swapaxes(values, -1, -2) @ back, back.sum(axis=1, keepdims=True)
        if kept:
            values, slope = kept.pop()
            back = (back @ xp.swapaxes(matrix, -1, -2)) * slope
    return slopes


def encoding_of(rows: Floats) -> Encoding:
    """What makes inputs of such rows."""
    spread, knots = rows.std(axis=0), np.empty((rows.shape[1], KNOTS), np.float32)
    for at, quantiles in enumerate(np.quantile(rows, np.linspace(0, 1, KNOTS), axis=0).T):
        some = np.unique(quantiles.astype(np.float32))
        knots[at] = np.pad(some, (0, KNOTS - len(some)), mode="edge")
    figures = rows.mean(axis=0), np.where(spread > 0, spread, np.inf), knots
    # Models are kept in single precision.
    return Encoding(int(rows[:, 0].max()) + 1, *(values.astype(np.float32).astype(float) for values in figures))


def share_of(of_trees: Floats, of_network: Floats, target: Floats, weight: Floats) -> float:
    """The weight of networks beside trees that errs least at rows which neither was fitted to."""
    apart, off = of_network - of_trees, target - of_trees
    apart, off = np.clip(apart, -HUBER, HUBER), np.clip(off, -HUBER, HUBER)
    return float(np.clip((weight * off * apart).sum() / max((weight * apart**2).sum(), 1e-12), 0, 1))

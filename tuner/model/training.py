"""Trains the networks of a model: Adam, on a squared error that pulls no harder where errors are large."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.devices.cuda.process import Gpu, on_gpu
from tuner.model.network import Encoding, Network, Singles
from tuner.results.distance import Floats

#: Quantiles of each feature.
KNOTS = 65
#: Error, a log of time, beyond which a row pulls no harder.
HUBER = 0.7
#: Share of the steps in which the rate rises to its highest.
WARM_UP = 0.02
#: Adam's means, and what keeps it from dividing by zero.
FIRST, SECOND, LEAST = 0.9, 0.999, 1e-8
#: Rows of a step at the most and at the least; between them as many as make this number of steps an epoch.
MOST_ROWS, LEAST_ROWS, STEPS = 2048, 32, 64


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
    batch = min(max(len(rows) // STEPS, LEAST_ROWS), MOST_ROWS)
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
    return Encoding(int(rows[:, 0].max()) + 1, *(each.astype(np.float32).astype(float) for each in figures))


def share_of(of_trees: Floats, of_network: Floats, target: Floats, weight: Floats) -> float:
    """The weight of networks beside trees that errs least at rows which neither was fitted to."""
    apart, off = of_network - of_trees, target - of_trees
    apart, off = np.clip(apart, -HUBER, HUBER), np.clip(off, -HUBER, HUBER)
    return float(np.clip((weight * off * apart).sum() / max((weight * apart**2).sum(), 1e-12), 0, 1))

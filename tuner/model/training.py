"""Trains the networks of a model: Adam, on a squared error that pulls no harder where errors are large."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.devices.cuda.process import Gpu, on_gpu
from tuner.model.network import Encoding, Layers, Network, Singles
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
    """Networks for a target.

    Args:
        rows: Features, shape (rows, features); the first is the number of a kind.
        target: Shape (rows,).
        weight: Shape (rows,).
        how: How.
        seed: Of first weights and batches.
        xp: NumPy, or CuPy to train on the current GPU.
    """
    encoding = encoding_of(rows)
    data = encoding.inputs_of(rows), target.astype(np.float32), (weight / weight.mean()).astype(np.float32)
    layers = _Trainer(tuple(map(xp.asarray, data)), how, seed, xp).layers()
    return Network.of(encoding, 1.0, [(_on_host(matrix), _on_host(offsets)) for matrix, offsets in layers])


def _on_host(array: Any) -> Singles:
    found: Singles = array.get() if hasattr(array, "get") else array
    return found


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


class _Trainer:
    """All networks at once: a step is as many calls for several as for one."""

    def __init__(self, data: tuple[Any, Any, Any], how: Training, seed: int, xp: Any) -> None:
        self._inputs, self._target, self._pulls = data
        self._how, self._xp, self._rng = how, xp, np.random.default_rng(seed)
        self._sizes = (self._inputs.shape[1], *how.hidden, 1)
        self._weights, self._slopes = xp.asarray(self._start()), xp.asarray(np.zeros_like(self._start()))
        self._network, self._by = self._views(self._weights), self._views(self._slopes)

    def _start(self) -> Singles:
        pieces: list[NDArray[np.float32]] = []
        for number, (inputs, outputs) in enumerate(pairwise(self._sizes)):
            scale = (0.1 if number == len(self._sizes) - 2 else 1.0) / np.sqrt(inputs)
            matrices = scale * self._rng.standard_normal((self._how.networks, inputs, outputs))
            pieces += [matrices.astype(np.float32).ravel(), np.zeros(self._how.networks * outputs, np.float32)]
        return np.concatenate(pieces)

    def _views(self, weights: Any) -> Layers:
        found, first, count = [], 0, self._how.networks
        for inputs, outputs in pairwise(self._sizes):
            middle, end = first + count * inputs * outputs, first + count * (inputs + 1) * outputs
            matrix = weights[first:middle].reshape(count, inputs, outputs)
            found.append((matrix, weights[middle:end].reshape(count, 1, outputs)))
            first = end
        return found

    def layers(self) -> Layers:
        """Trains; returns the layers."""
        how, xp, weights, slopes = self._how, self._xp, self._weights, self._slopes
        mean, square = xp.zeros_like(weights), xp.zeros_like(weights)
        rows = min(max(len(self._inputs) // STEPS, LEAST_ROWS), MOST_ROWS)
        each = max(len(self._inputs) // rows, 1)
        steps, step = how.epochs * each, 0
        for _ in range(how.epochs):
            order = xp.asarray(self._rng.permutation(len(self._inputs)))
            for batch in range(each):
                self._slope(order[batch * rows : (batch + 1) * rows])
                step += 1
                mean += (1 - FIRST) * (slopes - mean)
                square += (1 - SECOND) * (slopes * slopes - square)
                warm = min(1.0, step / (WARM_UP * steps))
                rate = how.rate * warm * 0.5 * (1 + np.cos(np.pi * step / steps))
                along = mean / (xp.sqrt(square) * (1 / np.sqrt(1 - SECOND**step)) + LEAST)
                weights *= 1 - rate * how.decay
                weights -= (rate / (1 - FIRST**step)) * along
        return self._network

    def _slope(self, some: Any) -> None:
        """Writes the slopes of the error at some rows by every weight."""
        xp, values, kept = self._xp, self._inputs[some], []
        for matrix, offsets in self._network[:-1]:
            before = values @ matrix + offsets
            share = 1 / (1 + xp.exp(-before))
            kept.append((values, share * (1 + before * (1 - share))))
            values = before * share
        matrix, offsets = self._network[-1]
        off = (values @ matrix + offsets)[:, :, 0] - self._target[some]
        back = (xp.clip(off, -HUBER, HUBER) * (self._pulls[some] / len(some)))[:, :, None]
        for number in range(len(self._by) - 1, -1, -1):
            self._by[number][0][:] = xp.swapaxes(values, -1, -2) @ back
            self._by[number][1][:] = back.sum(axis=1, keepdims=True)
            if number:
                values, slope = kept[number - 1]
                back = (back @ xp.swapaxes(self._network[number][0], -1, -2)) * slope

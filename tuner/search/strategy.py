"""Strategies that choose the next config, by positions in spaces; independent of Optuna."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from tuner.results.measurement import Outcome
from tuner.search.history import History


class Strategy(Protocol):
    """Chooses the next config to try.

    Attributes:
        stopped: Reason why no more configs are chosen; empty if there are more.
    """

    stopped: str

    def choose(self) -> tuple[str, int] | None:
        """Kernel and position of an untried legal config; None (with `stopped` set) at the end."""

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Learns a result after the history did; `values`: objectives; none if failed, the time if PRUNED."""

    def leaderboard(self) -> dict[tuple[str, int], float]:
        """Estimated seconds of each measured config, by kernel and position."""


def observed(history: History) -> dict[tuple[str, int], float]:
    """Leaderboard of a strategy without a model: the observed times."""
    return {
        (name, row): math.exp(value)
        for name, observations in history.kernels.items()
        for row, value in observations.log_times.items()
    }


class RandomStrategy:
    """Untried legal configs, all equally likely. Other strategies fall back on it."""

    def __init__(self, history: History, seed: int) -> None:
        self.stopped = ""
        self._history = history
        self._rng = np.random.default_rng(seed)

    def choose(self) -> tuple[str, int] | None:
        """See `Strategy`."""
        left = {name: each.left for name, each in self._history.kernels.items()}
        total = sum(left.values())
        if not total:
            self.stopped = "space covered"
            return None
        number = int(self._rng.integers(total))
        for name, count in left.items():
            if number < count:
                return name, self.choose_of(name)
            number -= count
        raise AssertionError("counts add up")

    def choose_of(self, kernel: str) -> int:
        """Position of an untried config of a kernel that has one."""
        observations = self._history.kernels[kernel]
        for _ in range(20):
            index = int(self._rng.integers(len(observations.space)))
            if index not in observations.asked:
                return index
        rest = np.setdiff1d(np.arange(len(observations.space)), np.fromiter(observations.asked, np.int64))
        return int(self._rng.choice(rest))

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Does nothing: random choice does not learn."""

    def leaderboard(self) -> dict[tuple[str, int], float]:
        """See `Strategy`."""
        return observed(self._history)


class SequenceStrategy:
    """Every legal config, kernel by kernel and in the order of the spaces."""

    def __init__(self, history: History) -> None:
        self.stopped = ""
        self._history = history
        self._next = dict.fromkeys(history.kernels, 0)

    def choose(self) -> tuple[str, int] | None:
        """See `Strategy`."""
        for name, observations in self._history.kernels.items():
            while self._next[name] < len(observations.space):
                index = self._next[name]
                self._next[name] += 1
                if index not in observations.asked:
                    return name, index
        self.stopped = "space covered"
        return None

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Does nothing: the order is fixed."""

    def leaderboard(self) -> dict[tuple[str, int], float]:
        """See `Strategy`."""
        return observed(self._history)

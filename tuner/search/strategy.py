"""Strategies that choose the next config, by positions in spaces; independent of Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from tuner.declare.space import Config, Space
from tuner.results.measurement import Outcome


class Observation(NamedTuple):
    """One config and its result.

    Attributes:
        kernel: Name of the kernel.
        config: The config that was tried.
        outcome: How it ended.
        time_s: Time in seconds; if PRUNED, from the few samples taken; None for a failure.
        others: Values of the objectives after the time, if a study has several.
    """

    kernel: str
    config: Config
    outcome: Outcome
    time_s: float | None
    others: tuple[float, ...] = ()


class Observations:
    """Observations of one kernel.

    Attributes:
        space: The kernel's legal configs.
        asked: Requested positions in order, including those in flight; never requested again.
        log_times: Position -> log of the measured time in seconds.
        log_pruned: Position -> the same for configs that were stopped early, from few samples.
        failed: Positions of configs that failed.
        dropped: True if no more of its configs are requested.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.asked: dict[int, None] = {}
        self.log_times: dict[int, float] = {}
        self.log_pruned: dict[int, float] = {}
        self.failed: set[int] = set()
        self.dropped = False

    @property
    def in_flight(self) -> set[int]:
        """Requested positions without a result."""
        return self.asked.keys() - self.log_times.keys() - self.log_pruned.keys() - self.failed

    @property
    def known(self) -> dict[int, float]:
        """Position -> log of the time in seconds, from few samples or many."""
        return self.log_times | self.log_pruned

    @property
    def contenders(self) -> dict[int, float]:
        """Those of `known` that may be the fastest: completely measured ones, if there are any."""
        return self.log_times or self.log_pruned

    @property
    def left(self) -> int:
        """Number of legal configs not yet requested."""
        return 0 if self.dropped else max(len(self.space) - len(self.asked), 0)

    @property
    def covered(self) -> bool:
        """True if none of its configs will be requested any more."""
        return self.left == 0

    def learn(self, index: int, outcome: Outcome, time_s: float | None) -> None:
        """Records the result of a config."""
        self.asked[index] = None
        if outcome.failed or time_s is None or not time_s > 0:
            self.failed.add(index)
        elif outcome is Outcome.PRUNED:
            self.log_pruned[index] = math.log(time_s)
        else:
            self.log_times[index] = math.log(time_s)


class History:
    """Observations of every kernel of a study."""

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self.kernels = {name: Observations(space) for name, space in spaces.items()}

    def view(self) -> History:
        """Returns a history of the same spaces with the same requested positions, but its own results."""
        view = History({name: observations.space for name, observations in self.kernels.items()})
        for name, observations in self.kernels.items():
            view.kernels[name].asked = observations.asked
        return view

    @property
    def best(self) -> tuple[str, int, float] | None:
        """Kernel, position and log time of the fastest config; None if none was measured yet."""
        return min(
            (
                (kernel, index, value)
                for kernel, observations in self.kernels.items()
                for index, value in observations.log_times.items()
            ),
            key=lambda each: each[2],
            default=None,
        )

    @property
    def trials(self) -> int:
        """Number of requested configs."""
        return sum(len(observations.asked) for observations in self.kernels.values())

    @property
    def covered(self) -> bool:
        """True if nothing is left to request."""
        return all(observations.covered for observations in self.kernels.values())


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

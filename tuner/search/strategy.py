"""Strategies that choose the next config, by positions in spaces, and the history that they read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuner.declare.space import Config, Space
from tuner.results.measurement import Outcome

#: Kernel and position of a config in its space.
Place = tuple[str, int]


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


@dataclass(frozen=True)
class Known:
    """Knowledge from before a search begins.

    Attributes:
        starts: Configs to try first; illegal ones are left out.
        past: Earlier trials of this study; never requested again.
        elsewhere: Results of the same kernels on another device or for the nearest shape; used by ``tile``
            only.
        foretold: Whether these are predictions for this very problem.
    """

    starts: Sequence[tuple[str, Config]] = ()
    past: Sequence[Observation] = ()
    elsewhere: Sequence[Observation] = ()
    foretold: bool = False


#: Knowledge of a search that begins from nothing.
NOTHING = Known()


class Observations:
    """Observations of one kernel.

    Attributes:
        space: The kernel's legal configs.
        requested: Requested positions in order, including those in flight; never requested again.
        log_times: Position -> log of the measured time in seconds.
        log_pruned: Position -> the same for configs that were stopped early, from few samples.
        failed: Positions of configs that failed.
        dropped: True if no more of its configs are requested.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.requested: dict[int, None] = {}
        self.log_times: dict[int, float] = {}
        self.log_pruned: dict[int, float] = {}
        self.failed: set[int] = set()
        self.dropped = False

    @property
    def in_flight(self) -> set[int]:
        """Requested positions without a result."""
        return self.requested.keys() - self.log_times.keys() - self.log_pruned.keys() - self.failed

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
        """Number of legal configs that may still be requested."""
        return 0 if self.dropped else max(len(self.space) - len(self.requested), 0)

    def learn(self, index: int, outcome: Outcome, time_s: float | None) -> None:
        """Records the result of a config."""
        self.requested[index] = None
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
            view.kernels[name].requested = observations.requested
        return view

    @property
    def left(self) -> int:
        """Number of legal configs that may still be requested."""
        return sum(observations.left for observations in self.kernels.values())


class Strategy:
    """Chooses the next config to try: by itself those of a list, in order. Others derive from it.

    Attributes:
        stopped: Reason why no more configs are chosen; empty if there are more.
    """

    def __init__(self, history: History, starts: Iterable[Place] = ()) -> None:
        """Begins.

        Args:
            history: Everything known so far; others write to it.
            starts: (kernel, position) pairs to try first.
        """
        self.stopped = ""
        self._history = history
        self._queue = iter(starts)

    def choose(self) -> Place | None:
        """Kernel and position of an untried legal config; None (with `stopped` set) at the end."""
        queued = self._queued()
        self.stopped = "" if queued else "space covered"
        return queued

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Learns a result after the history did; `values`: objectives; none if failed, the time if PRUNED."""

    def _queued(self) -> Place | None:
        """The next config of the queue that may still be requested."""
        for kernel, index in self._queue:
            observations = self._history.kernels[kernel]
            if index not in observations.requested and not observations.dropped:
                return kernel, index
        return None


class RandomStrategy(Strategy):
    """Untried legal configs, all equally likely. Other strategies fall back on it."""

    def __init__(self, history: History, seed: int) -> None:
        super().__init__(history)
        self._rng = np.random.default_rng(seed)

    def choose(self) -> Place | None:
        """See `Strategy`."""
        left = self._history.left
        self.stopped = "" if left else "space covered"
        if not left:
            return None
        ends = np.cumsum([observations.left for observations in self._history.kernels.values()])
        kernel = list(self._history.kernels)[int(np.searchsorted(ends, self._rng.integers(left), "right"))]
        return kernel, self.choose_of(kernel)

    def choose_of(self, kernel: str) -> int:
        """Position of an untried config of a kernel that has one."""
        observations = self._history.kernels[kernel]
        for _ in range(20):
            index = int(self._rng.integers(len(observations.space)))
            if index not in observations.requested:
                return index
        rest = np.setdiff1d(np.arange(len(observations.space)), np.fromiter(observations.requested, np.int64))
        return int(self._rng.choice(rest))

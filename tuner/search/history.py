"""Configs that a study has requested, and their results, by kernel and position in its space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

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

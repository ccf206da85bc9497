"""What a study has asked and learnt so far, by kernel and by position in the kernel's space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tuner.declare.space import Config, Space
from tuner.results.measurement import Outcome


class Observation(NamedTuple):
    """One config and what came of it.

    Attributes:
        kernel: Name of the kernel.
        config: What was tried.
        outcome: How it ended.
        time_s: Seconds; of the few samples that were taken when PRUNED; None for a failure.
        others: Values of the objectives after the time, where a study has several.
    """

    kernel: str
    config: Config
    outcome: Outcome
    time_s: float | None
    others: tuple[float, ...] = ()


class Observations:
    """What is known of one kernel.

    Attributes:
        space: The kernel's legal configs.
        asked: Positions that were asked, in flight included, in that order; never asked again.
        log_times: Position -> log of the measured time in seconds.
        log_pruned: Position -> the same of what was stopped early, from few samples.
        failed: Positions that have no time.
        dropped: True where nothing more of it is asked.
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
        """Positions that were asked and not told."""
        return self.asked.keys() - self.log_times.keys() - self.log_pruned.keys() - self.failed

    @property
    def known(self) -> dict[int, float]:
        """Position -> log of the time in seconds, of few samples or of many."""
        return self.log_times | self.log_pruned

    @property
    def contenders(self) -> dict[int, float]:
        """Those of `known` that may be the fastest: what was measured to the end, once anything was."""
        return self.log_times or self.log_pruned

    @property
    def left(self) -> int:
        """Legal configs that are still to be asked."""
        return 0 if self.dropped else max(len(self.space) - len(self.asked), 0)

    @property
    def covered(self) -> bool:
        """True where nothing more of it is asked."""
        return self.left == 0

    def learn(self, index: int, outcome: Outcome, time_s: float | None) -> None:
        """Takes in what came of a config."""
        self.asked[index] = None
        if outcome.failed or time_s is None or not time_s > 0:
            self.failed.add(index)
        elif outcome is Outcome.PRUNED:
            self.log_pruned[index] = math.log(time_s)
        else:
            self.log_times[index] = math.log(time_s)


class History:
    """What is known of every kernel of a study."""

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self.kernels = {name: Observations(space) for name, space in spaces.items()}

    def view(self) -> History:
        """Another history of the same spaces that shares what was asked, and learns for itself."""
        view = History({name: observations.space for name, observations in self.kernels.items()})
        for name, observations in self.kernels.items():
            view.kernels[name].asked = observations.asked
        return view

    @property
    def best(self) -> tuple[str, int, float] | None:
        """Kernel, position and log time of the fastest config; None before one was measured."""
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
        """Configs that were asked."""
        return sum(len(observations.asked) for observations in self.kernels.values())

    @property
    def covered(self) -> bool:
        """True where nothing is left to ask."""
        return all(observations.covered for observations in self.kernels.values())

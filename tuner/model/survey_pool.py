"""The configs of a survey: numbered as they come up, made from good ones, and at random from the spaces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.lookup.legality import Points
from tuner.model.table import Choices
from tuner.results.distance import OTHER_ARITHMETIC, OTHER_LAYOUT, Floats, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.results.record import ProblemKey

#: Kernel and config.
Named = tuple[str, Config]

#: Configs that others are made of for a problem, parameters that differ, and combinations that are looked at.
ORIGINS, RADIUS, TRIES = 4, 2, 24
#: Spaces that random configs of a kernel are from at the least, and configs of each.
SPACES, OF_SPACE = 4, 64
#: Combinations of a space that are looked at for configs at random.
SAMPLED = 300_000
#: A kernel of which fewer known configs are legal at a problem gets some of its own there; it keeps so many.
ENOUGH, KEPT = 8, 4096


class Pool:
    """Configs of a survey.

    Attributes:
        configs: Kernels and configs, by number.
        kernels: By name.
    """

    def __init__(self, kernels: Sequence[Kernel], device: DeviceInfo, most: int) -> None:
        """Begins empty.

        Args:
            kernels: What competes.
            device: Where.
            most: Configs that get numbers, at the most.
        """
        self.configs: list[Named] = []
        self.kernels, self._device, self._most = {kernel.name: kernel for kernel in kernels}, device, most
        self._numbers = dict[Named, int]()
        # By kernel, configs at random, the same ready to be checked, and of how many spaces they are.
        self._random: dict[str, tuple[list[Config], Points, int]] = {
            kernel.name: ([], Points(kernel, []), 0) for kernel in kernels
        }

    def number(self, named: Named, take_in: bool = True) -> int | None:
        """Number of a config. One without is taken in if that is wanted and there is room; else it has None."""
        is_new = named not in self._numbers and named[0] in self.kernels
        if is_new and take_in and len(self.configs) < self._most:
            self._numbers[named] = len(self.configs)
            self.configs.append(named)
        return self._numbers.get(named)

    def legal(self, named: Iterable[Named], problem: Problem) -> list[Named]:
        """Those worth trying at a problem, in their order and once each; if none is, those that are legal."""
        every = list(dict.fromkeys(named))
        numbers = Choices(every, self.kernels.values()).legal(problem, self._device)
        return [every[at] for at in numbers.tolist()]

    def children(self, parents: Sequence[Named], problem: Problem, rng: np.random.Generator) -> list[Named]:
        """Legal configs that differ from others in two parameters.

        Args:
            parents: The best first, which are taken more often; legal or not.
            problem: Where they are to be legal.
            rng: Draws them.
        """
        ranks = 1 / (1 + np.arange(len(parents)))
        count = min(ORIGINS, len(parents))
        made: list[Named] = []
        for at in rng.choice(len(parents), count, False, ranks / ranks.sum()) if count else ():
            name, config = parents[at]
            kernel = self.kernels[name]
            space = Space.at(kernel.parameters, kernel.constraints, problem, self._device, config)
            made += [(name, space[number]) for number in space.around(0, RADIUS, TRIES, rng)]
        return [made[at] for at in rng.permutation(len(made))]

    def draw(
        self, problem: Problem, count: int, rng: np.random.Generator, timed: Mapping[str, int]
    ) -> list[Named]:
        """Legal configs at random, of seldom timed kernels rather than others: a model must know what is slow.

        Args:
            problem: Where.
            count: How many.
            rng: Draws them.
            timed: Timings by kernel.
        """
        waits: list[tuple[float, Named]] = []
        for name in self.kernels:
            legal = self._legal_at_random(name, problem, rng)
            # Each kernel's first comes after a time that is exponential, so that rates are as wanted.
            times = rng.exponential(1 + timed.get(name, 0), len(legal)) * len(legal)
            waits += zip(times.tolist(), ((name, config) for config in legal), strict=True)
        return [named for _, named in sorted(waits, key=lambda wait: wait[0])[:count]]

    def _legal_at_random(self, name: str, problem: Problem, rng: np.random.Generator) -> list[Config]:
        """Random configs of a kernel that are legal at a problem.

        To build a space takes longer than a survey has for a problem, so they come from a few spaces.
        Constraints may tie a config to the shape: its tile covers a side, its copies are as wide as rows allow.
        What is legal at some problems is then illegal at most others, and nothing made of it helps. So a kernel
        of which few known configs are legal at a problem gets some from its own space there.
        """
        drawn, points, spaces = self._random[name]
        legal = np.flatnonzero(points.flags(problem, self._device)[1])
        if (len(legal) < ENOUGH or spaces < SPACES) and len(space := self._space(name, problem)):
            some = (space[int(at)] for at in rng.permutation(len(space))[:OF_SPACE])
            drawn = list(dict.fromkeys([*drawn, *some]))[-KEPT:]
            points = Points(self.kernels[name], drawn)
            self._random[name] = drawn, points, spaces + 1
            legal = np.flatnonzero(points.flags(problem, self._device)[1])
        return [drawn[at] for at in legal.tolist()]

    def _space(self, name: str, problem: Problem) -> Space:
        kernel = self.kernels[name]
        return Space.build(kernel.parameters, kernel.constraints, problem, self._device, limit=SAMPLED)


#: Problems that speak for a config.
NEAREST = 16


class KnownTimes:
    """Times of configs, by their numbers, at problems."""

    def __init__(self) -> None:
        """Begins empty."""
        self._times_s: dict[ProblemKey, dict[int, float]] = {}
        self._places: list[Floats] = []

    def add(self, problem: ProblemKey, times_s: Mapping[int, float]) -> None:
        """Takes in the times of configs at a problem, beside those that it has."""
        if times_s and problem not in self._times_s:
            self._places.append(log_dims(problem.shape))
        if times_s:
            self._times_s.setdefault(problem, {}).update(times_s)

    def promising(self, problem: ProblemKey) -> tuple[list[int], float]:
        """Configs that were timed near a problem, the most promising first.

        Returns:
            Their numbers, and the seconds that the best is expected to take by the nearest problem; 0 if
            nothing was timed.
        """
        if not self._places:
            return [], 0.0
        known, scores, here = list(self._times_s), dict[int, float](), log_dims(problem.shape)
        unlike = [
            OTHER_ARITHMETIC * (key.arithmetic != problem.arithmetic)
            + OTHER_LAYOUT * (key.layout != problem.layout)
            for key in known
        ]
        apart = distances(np.array(self._places), here, np.array(unlike))
        nearest = np.argsort(apart, kind="stable")[:NEAREST].tolist()
        for at in nearest:
            times_s = self._times_s[known[at]]
            best_s = min(times_s.values())
            for number, time_s in times_s.items():
                score = math.log(time_s / best_s) + FALLS_BEHIND * float(apart[at])
                scores[number] = min(score, scores.get(number, math.inf))
        doublings = max(float((here - self._places[nearest[0]]).sum()), 0.0)
        expected_s = min(self._times_s[known[nearest[0]]].values()) * 2.0**doublings
        return sorted(scores, key=lambda number: (scores[number], number)), expected_s

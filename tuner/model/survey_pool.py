"""The configs of a survey: numbered as they come up, made from good ones, and at random from the spaces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Parameter, Space, Value
from tuner.lookup.legality import Points, is_point
from tuner.results.distance import OTHER_ARITHMETIC, OTHER_LAYOUT, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.results.record import ProblemKey

#: Kernel and config.
Named = tuple[str, Config]

#: Share of children that take parameters of two configs.
CROSSED = 0.3
#: A step goes up to this share of a parameter's values.
REACH = 0.25
#: Problems whose spaces random configs of a kernel are from, those looked at for them, and configs of each.
SPACES, LOOKED_AT, OF_SPACE = 4, 48, 64
#: Combinations of a space that are looked at for configs at random.
SAMPLED = 300_000
#: A kernel of which fewer known configs are legal at a problem gets some of its own there; it keeps so many.
ENOUGH, KEPT = 8, 4096


class Pool:
    """Configs by number.

    Attributes:
        configs: Kernels and configs, by number.
        asked: Number, dtype and layout of what has been asked for, and is compiled or will be.
    """

    def __init__(self, kernels: Sequence[Kernel], most: int) -> None:
        """Begins empty.

        Args:
            kernels: What competes.
            most: Configs at the most.
        """
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.configs: list[tuple[Kernel, Config]] = []
        self.asked: set[tuple[int, str, str]] = set()
        self._most, self._numbers = most, dict[Named, int]()

    def number(self, named: Named, take_in: bool = True) -> int | None:
        """Number of a config. One without is taken in if that is asked and there is room; else it has None."""
        number = self._numbers.get(named)
        if number is None and take_in and len(self.configs) < self._most and named[0] in self.kernels:
            kernel = self.kernels[named[0]]
            if not is_point(kernel.parameters, named[1]):
                return None
            ordered = Config({parameter.name: named[1][parameter.name] for parameter in kernel.parameters})
            number = self._numbers[named[0], ordered] = len(self.configs)
            self.configs.append((kernel, ordered))
        return number

    def named(self, number: int) -> Named:
        """Kernel's name and config."""
        kernel, config = self.configs[number]
        return kernel.name, config

    def worth_trying(self, named: Iterable[Named], problem: Problem, device: DeviceInfo) -> list[Named]:
        """Those that obey every constraint at a problem, in their order and once each."""
        every = list(dict.fromkeys(named))
        legal: set[Named] = set()
        for name, kernel in self.kernels.items():
            if mine := [config for of, config in every if of == name]:
                flags = Points(kernel, mine).flags(problem, device)[1]
                legal.update((name, config) for config, fits in zip(mine, flags, strict=True) if fits)
        return [config for config in every if config in legal]

    def children(self, parents: Sequence[Named], count: int, rng: np.random.Generator) -> list[Named]:
        """Configs made from others, legal or not: of two of them, or with one or two parameters moved.

        Args:
            parents: The best first; they are taken more often.
            count: How many.
            rng: Draws them.
        """
        ranks = 1 / (1 + np.arange(len(parents)))
        chosen = rng.choice(len(parents), count, p=ranks / ranks.sum()) if len(parents) else ()
        return [
            self._child(parents[at], parents, rng) for at in chosen if self.kernels[parents[at][0]].parameters
        ]

    def _child(self, parent: Named, parents: Sequence[Named], rng: np.random.Generator) -> Named:
        name, values = parent[0], dict(parent[1])
        like = [config for of, config in parents if of == name]
        if len(like) > 1 and rng.random() < CROSSED:
            other = like[int(rng.integers(len(like)))]
            values |= {parameter: other[parameter] for parameter in values if rng.random() < 0.5}
        else:
            parameters = self.kernels[name].parameters
            changed = min(int(rng.integers(1, 3)), len(parameters))
            for at in rng.choice(len(parameters), changed, replace=False):
                values[parameters[at].name] = moved(parameters[at], values[parameters[at].name], rng)
        return name, Config(values)


def moved(parameter: Parameter, value: Value, rng: np.random.Generator) -> Value:
    """Another value of a parameter: a near one if they have an order, seldom one farther away."""
    values = parameter.values
    if len(values) < 2:
        return value
    at = values.index(value)
    if parameter.scale == "categorical":
        return values[(at + int(rng.integers(1, len(values)))) % len(values)]
    size = round(math.exp(rng.uniform(0, math.log(max(REACH * len(values), 1.6)))))
    to = at + (size if rng.random() < 0.5 else -size)
    # Beyond an end it goes the other way.
    return values[to] if 0 <= to < len(values) else values[min(max(2 * at - to, 0), len(values) - 1)]


class RandomConfigs:
    """Legal configs at random of every kernel: a model has to learn what is slow, too.

    A kernel's constraints may tie a config to the shape: its tile covers a side, its copies are as wide as
    rows allow. What is legal at some problems is then illegal at most others, and no child of it helps. So a
    kernel of which few known configs are legal at a problem gets some from its own space there.
    """

    def __init__(
        self, kernels: Sequence[Kernel], problems: Sequence[Problem], device: DeviceInfo, seed: int
    ) -> None:
        """Takes some configs of the spaces of a few problems at which a kernel has any.

        Args:
            kernels: What competes.
            problems: Where to look.
            device: Where.
            seed: Of the choice.
        """
        rng = np.random.default_rng(seed)
        self._device, self._kernels = device, {kernel.name: kernel for kernel in kernels}
        self._configs: dict[str, list[Config]] = {name: [] for name in self._kernels}
        self._points = {name: Points(kernel, []) for name, kernel in self._kernels.items()}
        for name in self._kernels:
            spaces = 0
            for problem in problems[:LOOKED_AT]:
                spaces += self._take(name, problem, rng)
                if spaces == SPACES:
                    break

    def draw(
        self, problem: Problem, count: int, rng: np.random.Generator, timed: Mapping[str, int]
    ) -> list[Named]:
        """Configs that obey every constraint at a problem, of seldom timed kernels rather than others.

        Args:
            problem: Where.
            count: How many.
            rng: Draws them.
            timed: Timings by kernel.
        """
        legal: list[Named] = []
        waits: list[NDArray[np.float64]] = []
        for name in self._kernels:
            fits = self._legal(name, problem)
            if len(fits) < ENOUGH and self._take(name, problem, rng):
                fits = self._legal(name, problem)
            legal += [(name, self._configs[name][at]) for at in fits.tolist()]
            # Each kernel's first comes after a time that is exponential, so that rates are as wanted.
            waits.append(rng.exponential(1 + timed.get(name, 0), len(fits)) * len(fits))
        return [legal[at] for at in np.argsort(np.concatenate(waits), kind="stable")[:count].tolist()]

    def fitted(self, wanted: Sequence[Named], problem: Problem) -> list[Named]:
        """In the place of configs that are illegal at a problem, the legal ones most like them."""
        fitting: dict[Named, None] = {}
        for name in self._kernels:
            if mine := [config for of, config in wanted if of == name]:
                fitting |= {(name, config): None for config in self._space(name, problem).nearest(mine)}
        return [config for config in fitting if config not in wanted]

    def _space(self, name: str, problem: Problem) -> Space:
        kernel = self._kernels[name]
        return Space.build(kernel.parameters, kernel.constraints, problem, self._device, limit=SAMPLED)

    def _legal(self, name: str, problem: Problem) -> NDArray[np.intp]:
        return np.flatnonzero(self._points[name].flags(problem, self._device)[1])

    def _take(self, name: str, problem: Problem, rng: np.random.Generator) -> bool:
        """Takes in configs of the kernel's space at a problem; whether it has any."""
        space = self._space(name, problem)
        if len(space):
            drawn = [space[int(at)] for at in rng.permutation(len(space))[:OF_SPACE]]
            self._configs[name] = list(dict.fromkeys([*self._configs[name], *drawn]))[-KEPT:]
            self._points[name] = Points(self._kernels[name], self._configs[name])
        return len(space) > 0


#: Problems that speak for a config.
NEAREST = 16


class KnownTimes:
    """Times of configs, by their numbers, at problems."""

    def __init__(self) -> None:
        """Begins empty."""
        self._times_s: dict[ProblemKey, dict[int, float]] = {}
        self._places: list[NDArray[np.float64]] = []

    def __len__(self) -> int:
        return len(self._times_s)

    def add(self, problem: ProblemKey, times_s: Mapping[int, float]) -> None:
        """Takes in the times of configs at a problem, beside those that it has."""
        if times_s and problem not in self._times_s:
            self._places.append(log_dims(problem.shape))
        if times_s:
            self._times_s.setdefault(problem, {}).update(times_s)

    def at(self, problem: ProblemKey) -> Mapping[int, float]:
        """Times at a problem itself."""
        return self._times_s.get(problem, {})

    def near(self, problem: ProblemKey) -> list[tuple[ProblemKey, float]]:
        """The nearest problems, and how far they are, in doublings of dims."""
        if not self._places:
            return []
        known = list(self._times_s)
        unlike = [
            OTHER_ARITHMETIC * (key.dtype != problem.dtype) + OTHER_LAYOUT * (key.layout != problem.layout)
            for key in known
        ]
        apart = distances(np.array(self._places), log_dims(problem.shape), np.array(unlike))
        return [(known[at], float(apart[at])) for at in np.argsort(apart, kind="stable")[:NEAREST].tolist()]

    def promising(self, problem: ProblemKey) -> list[int]:
        """Configs that were timed near a problem, the most promising first."""
        scores: dict[int, float] = {}
        for near, apart in self.near(problem):
            times_s = self._times_s[near]
            best_s = min(times_s.values())
            for number, time_s in times_s.items():
                score = math.log(time_s / best_s) + FALLS_BEHIND * apart
                scores[number] = min(score, scores.get(number, math.inf))
        return sorted(scores, key=lambda number: (scores[number], number))

    def expected_s(self, problem: ProblemKey) -> float:
        """Seconds that the best config is expected to take, by the nearest problem; 0 if nothing was timed."""
        for near, _ in self.near(problem)[:1]:
            longer = float((log_dims(problem.shape) - log_dims(near.shape)).sum())
            return float(min(self._times_s[near].values()) * 2.0 ** max(longer, 0.0))
        return 0.0

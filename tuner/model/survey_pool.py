"""The configs of a survey: they are numbered as they come up, and new ones are made from good ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Parameter, Space
from tuner.lookup.legality import Points, is_point
from tuner.results.measurement import FALLS_BEHIND

#: Kernel and config.
Named = tuple[str, Config]

#: Share of children that take parameters of two configs.
CROSSED = 0.3
#: Parameters that are changed in a child of one config, at the most.
CHANGED = 2
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
        most: So many are taken.
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
        self.most = most
        self.asked: set[tuple[int, str, str]] = set()
        self._numbers: dict[Named, int] = {}

    def number(self, named: Named, take_in: bool = True) -> int | None:
        """Number of a config. One without is taken in if that is asked and there is room; else it has None."""
        found = self._numbers.get(named)
        if found is None and take_in and len(self.configs) < self.most and named[0] in self.kernels:
            kernel = self.kernels[named[0]]
            if not is_point(kernel.parameters, named[1]):
                return None
            ordered = Config({each.name: named[1][each.name] for each in kernel.parameters})
            found = self._numbers[named[0], ordered] = len(self.configs)
            self.configs.append((kernel, ordered))
        return found

    def named(self, number: int) -> Named:
        """Kernel's name and config."""
        kernel, config = self.configs[number]
        return kernel.name, config

    def worth_trying(self, named: Iterable[Named], problem: Problem, device: DeviceInfo) -> list[Named]:
        """Those that obey every constraint at a problem, in their order and once each."""
        every = list(dict.fromkeys(named))
        legal: set[Named] = set()
        for name, kernel in self.kernels.items():
            mine = [config for of, config in every if of == name]
            if mine:
                flags = Points(kernel, mine).flags(problem, device)[1]
                legal.update((name, config) for config, fits in zip(mine, flags, strict=True) if fits)
        return [each for each in every if each in legal]

    def children(self, parents: Sequence[Named], count: int, rng: np.random.Generator) -> list[Named]:
        """Configs made from others, legal or not: of two of them, or with one or two parameters moved.

        Args:
            parents: The best first; they are taken more often.
            count: How many.
            rng: Draws them.
        """
        if not parents:
            return []
        found = []
        like = {name: [config for of, config in parents if of == name] for name, _ in parents}
        ranks = 1 / (1 + np.arange(len(parents)))
        for at in rng.choice(len(parents), count, p=ranks / ranks.sum()):
            name, config = parents[at]
            parameters = self.kernels[name].parameters
            if not parameters:
                continue
            values = dict(config)
            others = like[name]
            if len(others) > 1 and rng.random() < CROSSED:
                other = others[int(rng.integers(len(others)))]
                values |= {each: other[each] for each in values if rng.random() < 0.5}
            else:
                changed = min(int(rng.integers(1, CHANGED + 1)), len(parameters))
                for which in rng.choice(len(parameters), changed, replace=False):
                    each = parameters[which]
                    values[each.name] = moved(each, values[each.name], rng)
            found.append((name, Config(values)))
        return found


def moved(parameter: Parameter, value: object, rng: np.random.Generator) -> object:
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


class Strangers:
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
        self._points: dict[str, tuple[list[Config], Points]] = {}
        for kernel in kernels:
            spaces = 0
            for problem in problems[:LOOKED_AT]:
                spaces += self._take(kernel, problem, rng) > 0
                if spaces == SPACES:
                    break

    def some(
        self, problem: Problem, count: int, rng: np.random.Generator, timed: Mapping[str, int] | None = None
    ) -> list[Named]:
        """Configs that obey every constraint at a problem, of seldom timed kernels rather than others.

        Args:
            problem: Where.
            count: How many.
            rng: Draws them.
            timed: Timings by kernel; all kernels count the same when None.
        """
        names = list(self._kernels)
        found: list[NDArray[np.intp]] = []
        waits: list[NDArray[np.float64]] = []
        for name, kernel in self._kernels.items():
            fits = self._legal(name, problem)
            if len(fits) < ENOUGH and self._take(kernel, problem, rng):
                fits = self._legal(name, problem)
            found.append(np.stack([np.full(len(fits), len(found)), fits], axis=1))
            # Each kernel's first comes after a time that is exponential, so that rates are as wanted.
            waits.append(rng.exponential(1 + (timed or {}).get(name, 0), len(fits)) * len(fits))
        first = np.argsort(np.concatenate(waits), kind="stable")[:count]
        return [(names[of], self._points[names[of]][0][at]) for of, at in np.concatenate(found)[first].tolist()]

    def fitted(self, wanted: Sequence[Named], problem: Problem) -> list[Named]:
        """In the place of configs that are illegal at a problem, the legal ones most like them."""
        found: dict[Named, None] = {}
        for name, kernel in self._kernels.items():
            mine = [config for of, config in wanted if of == name]
            if mine:
                found |= {(name, each): None for each in self._space(kernel, problem).nearest(mine)}
        return [each for each in found if each not in wanted]

    def _space(self, kernel: Kernel, problem: Problem) -> Space:
        return Space.build(kernel.parameters, kernel.constraints, problem, self._device, limit=SAMPLED)

    def _legal(self, name: str, problem: Problem) -> NDArray[np.intp]:
        if name not in self._points:
            return np.zeros(0, np.intp)
        return np.flatnonzero(self._points[name][1].flags(problem, self._device)[1])

    def _take(self, kernel: Kernel, problem: Problem, rng: np.random.Generator) -> int:
        """Takes in configs of the kernel's space at a problem; returns how many that has."""
        space = self._space(kernel, problem)
        if len(space):
            known = self._points[kernel.name][0] if kernel.name in self._points else []
            drawn = [space[int(at)] for at in rng.permutation(len(space))[:OF_SPACE]]
            found = list(dict.fromkeys([*known, *drawn]))[-KEPT:]
            self._points[kernel.name] = found, Points(kernel, found)
        return len(space)


class Placed(Protocol):
    """A problem, or the key of one."""

    @property
    def shape(self) -> Sequence[tuple[str, int]]:
        """Dims and their sizes."""
        ...

    @property
    def dtype(self) -> str:
        """Element type."""
        ...

    @property
    def layout(self) -> str:
        """Order of elements."""
        ...


#: Problems that speak for a config.
NEAREST = 16
#: log2 of sizes that another layout, and another dtype, counts as.
OTHER_LAYOUT, OTHER_DTYPE = 1.5, 3.0


class Seen:
    """Times of configs at problems."""

    def __init__(self) -> None:
        """Begins empty."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._places: list[list[float]] = []
        self._kinds: list[tuple[str, str]] = []
        self._times_s: list[dict[int, float]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, problem: Placed, times_s: Mapping[int, float]) -> None:
        """Takes in the times of configs, by their numbers, at a problem, beside those that it has."""
        if not times_s:
            return
        key = tuple(problem.shape), problem.dtype, problem.layout
        if key not in self._numbers:
            self._numbers[key] = len(self)
            self._places.append(_place(problem))
            self._kinds.append((problem.dtype, problem.layout))
            self._times_s.append({})
        self._times_s[self._numbers[key]].update(times_s)

    def at(self, problem: Placed) -> Mapping[int, float]:
        """Times at a problem itself, by the configs' numbers."""
        number = self._numbers.get((tuple(problem.shape), problem.dtype, problem.layout))
        return {} if number is None else self._times_s[number]

    def near(self, problem: Placed) -> tuple[list[int], NDArray[np.float64]]:
        """The nearest problems by number, and how far they are, in doublings of dims."""
        if not self._places:
            return [], np.zeros(0)
        apart = np.sqrt(((np.array(self._places) - _place(problem)) ** 2).sum(axis=1))
        apart += [
            OTHER_DTYPE * (dtype != problem.dtype) + OTHER_LAYOUT * (layout != problem.layout)
            for dtype, layout in self._kinds
        ]
        order = np.argsort(apart, kind="stable")[:NEAREST]
        return order.tolist(), apart[order]

    def promising(self, problem: Placed) -> list[int]:
        """Configs that were timed near a problem, by number, the most promising first."""
        scores: dict[int, float] = {}
        for at, apart in zip(*self.near(problem), strict=True):
            best_s = min(self._times_s[at].values())
            for number, time_s in self._times_s[at].items():
                score = math.log(time_s / best_s) + FALLS_BEHIND * apart
                scores[number] = min(score, scores.get(number, math.inf))
        return sorted(scores, key=lambda number: (scores[number], number))

    def expected_s(self, problem: Placed) -> float:
        """Seconds that the best config is expected to take, by the nearest problem; 0 if nothing was timed."""
        near, _ = self.near(problem)
        if not near:
            return 0.0
        here, there = sum(_place(problem)), sum(self._places[near[0]])
        return min(self._times_s[near[0]].values()) * 2 ** max(here - there, 0.0)


def _place(problem: Placed) -> list[float]:
    return [math.log2(size) for _, size in problem.shape]

"""What was timed so far: the configs that were fast near a problem are worth trying there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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
#: log of time that a config is expected to fall behind for each doubling of a dim from where it was timed.
FALLS_BEHIND = 0.05


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

"""When samples are enough, and who is stopped early: on a device that plays back a script."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from tuner.workers import sampling
from tuner.workers.sampling import interleave, screen_by


class Scripted:
    """A run that takes what its script says."""

    def __init__(self, times_s: Iterable[float]) -> None:
        self.script: Iterator[float] = iter(times_s)
        self.taken = 0

    def take_s(self, count: int) -> list[float]:
        """Plays back so many."""
        self.taken += count
        return list(itertools.islice(self.script, count))


def steady(time_s: float, spread: float = 0.0, seed: int = 1) -> Scripted:
    draw = random.Random(seed)
    return Scripted(time_s * (1 + spread * draw.uniform(-1, 1)) for _ in itertools.count())


def screened(run: Scripted, incumbent_s: float | None) -> sampling.Screened:
    return screen_by(run.take_s, incumbent_s)


@given(st.floats(1e-6, 1e-1), st.floats(sampling.HOPELESS * 1.01, 100.0), st.integers(0, 999))
def test_what_is_far_slower_is_pruned_and_says_so(best_s: float, factor: float, seed: int) -> None:
    found = screened(steady(best_s * factor, spread=0.005, seed=seed), best_s)
    assert "cannot win" in found.pruned
    assert min(found.samples_s) > sampling.CANNOT_WIN * best_s


@given(st.floats(1e-6, 1e-1), st.floats(0.01, 1.0), st.floats(0.0, 0.5), st.integers(0, 999))
def test_what_is_best_is_never_pruned(best_s: float, factor: float, spread: float, seed: int) -> None:
    run = steady(best_s * factor, spread=spread, seed=seed)
    found = screened(run, best_s)
    assert found.pruned == "" or min(found.samples_s) > sampling.CANNOT_WIN * best_s
    assert found.pruned == "" or spread > 0.08


# --- finals ---------------------------------------------------------------------------------------------------


def test_blocks_go_forth_and_back_and_begin_one_further() -> None:
    order: list[int] = []

    def player(number: int) -> Callable[[int], list[float]]:
        def take_s(count: int) -> list[float]:
            order.append(number)
            return [1e-3 * (number + 1)] * count

        return take_s

    times = interleave([player(number) for number in range(3)], 1e9)
    assert [len(each) for each in times] == [2 * sampling.MAX_BLOCKS] * 3
    assert order[:18] == [0, 1, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1, 2, 0, 1, 1, 0, 2]


def test_blocks_that_cost_far_more_than_the_budget_are_few_and_short() -> None:
    run = steady(1e-3)
    (times,) = interleave([run.take_s], 0.0)
    assert len(times) == run.taken == 2 * sampling.LEAST_BLOCKS

"""When samples are enough, and who is stopped early: on a device that plays back a script."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.workers import sampling
from tuner.workers.sampling import interleave, screen_by


def takes(time_s: float, spread: float = 0.0, seed: int = 1) -> Callable[[int], list[float]]:
    """Takes samples about a time."""
    draw = random.Random(seed)
    return lambda count: [time_s * (1 + spread * draw.uniform(-1, 1)) for _ in range(count)]


@given(st.floats(1e-6, 1e-1), st.floats(sampling.HOPELESS * 1.01, 100.0), st.integers(0, 999))
def test_what_is_far_slower_is_pruned_and_says_so(best_s: float, factor: float, seed: int) -> None:
    found = screen_by(takes(best_s * factor, 0.005, seed), best_s)
    assert "cannot win" in found.pruned
    assert len(found.samples_s) == 2


@given(st.floats(1e-6, 1e-1), st.floats(0.01, 1.0), st.floats(0.0, 0.07), st.integers(0, 999))
def test_what_is_best_is_never_pruned(best_s: float, factor: float, spread: float, seed: int) -> None:
    assert screen_by(takes(best_s * factor, spread, seed), best_s).pruned == ""


@pytest.mark.parametrize(("wall_s", "samples"), [((), 8), ((0.3,), 3)], ids=["usual", "a short study's"])
def test_flushes_take_time(wall_s: tuple[float, ...], samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, noisy = [0.0], takes(1e-3, 0.2)

    def flushed(count: int) -> list[float]:
        now_s[0] += 0.2 * count
        return noisy(count)

    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert len(screen_by(flushed, None, *wall_s).samples_s) == samples, "not 40 samples with their flushes"


@pytest.mark.parametrize(("incumbent_s", "samples"), [(None, 5), (2e-4, 3)])
def test_the_median_that_others_are_compared_with_is_not_a_disturbed_one(
    incumbent_s: float | None, samples: int
) -> None:
    times_s = iter([2e-4, 5e-3, 6e-3, 2e-4, 2e-4])
    screened = screen_by(lambda count: [next(times_s) for _ in range(count)], incumbent_s, 0.0)
    assert len(screened.samples_s) == samples


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

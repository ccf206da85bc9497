"""When a champion is provisional, by numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.results.measurement import (
    CORE_TYPE,
    EARLIER,
    NOISE,
    SEARCH,
    TAKEN,
    LibraryTime,
    contradictions,
    doubts,
)

FINAL = LibraryTime("NumPy", "Haswell", "2", "now", 50e-3)
TIMES = st.floats(1e-9, 1e3)


def library(time_s: float, core_type: str = "Haswell", threads: str = "2", session: str = "now") -> LibraryTime:
    return LibraryTime("NumPy", core_type, threads, session, time_s)


def test_a_library_that_is_far_from_its_best_core_type_is_no_baseline() -> None:
    seen = contradictions(FINAL, [library(50e-3), library(0.785e-3, "SkylakeX")])
    assert seen == {SEARCH: pytest.approx(1.0), CORE_TYPE: pytest.approx(63.7, rel=1e-3)}
    (why,) = doubts(seen)
    assert why == "the library's times as it runs by itself and with another core type are 63.7 x apart"


def test_vectors_of_half_the_width_are_no_contradiction() -> None:
    assert doubts(contradictions(FINAL, [library(50e-3 / 1.88, "SkylakeX")])) == ()


@pytest.mark.parametrize(
    ("search_s", "doubtful"), [(24e-3, True), (26e-3, False), (99e-3, False), (101e-3, True)]
)
def test_before_the_search_and_in_the_finals_the_library_takes_as_long(search_s: float, doubtful: bool) -> None:
    assert bool(doubts(contradictions(FINAL, [library(search_s)]))) is doubtful


@pytest.mark.parametrize(("earlier_s", "doubtful"), [(24e-3, True), (26e-3, False), (1.0, False)])
def test_an_earlier_run_that_was_slower_says_nothing(earlier_s: float, doubtful: bool) -> None:
    others = [library(earlier_s, session="before"), library(2.0, session="long ago")]
    seen = contradictions(FINAL, others)
    assert seen.keys() == {EARLIER}
    assert bool(doubts(seen)) is doubtful


def test_other_numbers_of_threads_and_other_libraries_are_not_compared() -> None:
    others = [library(1e-6, threads="1"), LibraryTime("CuPy", "Haswell", "2", "now", 1e-6)]
    assert contradictions(FINAL, others) == {}


def test_noise_above_ten_percent_is_a_doubt() -> None:
    assert doubts({NOISE: 0.10}) == ()
    assert doubts({NOISE: 0.14}) == ("its times have a noise of 14%, more than 10%",)


def test_a_library_on_taken_cores_may_be_slow_without_noise() -> None:
    assert doubts({TAKEN: 0.10}) == ()
    assert doubts({TAKEN: 0.5}) == ("other processes used 50% of the cores during the finals, more than 10%",)


def test_records_from_before_are_not_in_doubt() -> None:
    assert doubts({"load_1min": 9.0, "clock_hz": 2e9}) == ()


NEAR = st.tuples(st.floats(0.51, 1.99), st.sampled_from(["now", "before"]), st.sampled_from(["Haswell", "Zen"]))


@given(TIMES, st.lists(NEAR))
def test_times_within_the_factor_are_never_a_doubt(time_s: float, others: list[tuple[float, str, str]]) -> None:
    final = library(time_s)
    near = [library(time_s * factor, core, "2", session) for factor, session, core in others]
    assert doubts(contradictions(final, near)) == ()

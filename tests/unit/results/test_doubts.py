"""When a champion is provisional, by numbers."""

import pytest
from fixtures.records import record, square

from tuner.results.measurement import CORE_TYPE, NOISE, SEARCH, TAKEN, doubts
from tuner.results.record import Record, Role
from tuner.results.verdict import contradictions


def library(
    time_s: float, core_type: str = "Haswell", threads: str = "2", session: str = "now", kernel: str = "NumPy"
) -> Record:
    versions = {"blas_core_type": core_type, "blas_threads": threads}
    named = {"role": Role.BASELINE, "kernel": kernel, "session": session, "versions": versions}
    return record(square(64), time_s, **named)


FINAL = library(50e-3)


def test_a_library_that_is_far_from_its_best_core_type_is_no_baseline() -> None:
    seen = contradictions(FINAL, [library(50e-3), library(0.785e-3, "SkylakeX")])
    assert seen == {SEARCH: pytest.approx(1.0), CORE_TYPE: pytest.approx(63.7, rel=1e-3)}
    (why,) = doubts(seen)
    assert why == "the library's times as it runs by itself and with another core type are 63.7 x apart"


@pytest.mark.parametrize(
    ("time_s", "session", "doubtful"),
    [
        (24e-3, "now", True), (26e-3, "now", False), (99e-3, "now", False), (101e-3, "now", True),
        (24e-3, "before", True), (26e-3, "before", False), (1.0, "before", False),
    ],
)  # fmt: skip
def test_the_library_takes_as_long_before_the_search_and_no_less_in_earlier_sessions(
    time_s: float, session: str, doubtful: bool
) -> None:
    others = [library(time_s, session=session), library(2.0, session="long ago")]
    assert bool(doubts(contradictions(FINAL, others))) is doubtful


def test_other_numbers_of_threads_and_other_libraries_are_not_compared() -> None:
    others = [library(1e-6, threads="1"), library(1e-6, kernel="CuPy")]
    assert contradictions(FINAL, others) == {}


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        ({NOISE: 0.10, TAKEN: 0.10, "load_1min": 9.0}, ()),
        ({NOISE: 0.14}, ("its times have a noise of 14%, more than 10%",)),
        ({TAKEN: 0.5}, ("other processes used 50% of the cores during the finals, more than 10%",)),
    ],
)
def test_noise_and_taken_cores_are_doubts(seen: dict[str, float], reasons: tuple[str, ...]) -> None:
    assert doubts(seen) == reasons

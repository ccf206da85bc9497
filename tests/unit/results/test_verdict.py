"""Who plays the finals, and who wins them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome
from tuner.results.verdict import FINALIST_WITHIN, FINALISTS, judge, pairs_of, shortlist

ROUNDS = 10
FAILED = Measurement(Outcome.CRASHED, "killed")


def named(number: int) -> tuple[str, Config]:
    return "blocks", Config({"BLOCK": number})


def took(*samples_s: float) -> Measurement:
    return Measurement(Outcome.MEASURED, samples_s=samples_s * (ROUNDS // len(samples_s)))


leaderboard_drawn = st.dictionaries(
    st.integers(0, 99).map(named), st.floats(1e-6, 1.0), min_size=1, max_size=30
)


@given(leaderboard_drawn, st.none() | st.integers(0, 120).map(named))
def test_the_shortlist_is_the_holder_and_the_best_that_are_near(
    leaderboard: dict[tuple[str, Config], float], holder: tuple[str, Config] | None
) -> None:
    listed = shortlist(leaderboard, holder)
    challengers = [each for each in listed if each != holder]
    best_s = min(leaderboard.values())
    assert len(set(listed)) == len(listed)
    assert len(challengers) <= FINALISTS
    assert (holder is None) or listed[0] == holder
    assert all(leaderboard[each] <= FINALIST_WITHIN * best_s for each in challengers)
    left_out = min((time_s for each, time_s in leaderboard.items() if each not in listed), default=1e9)
    assert all(leaderboard[each] <= left_out for each in challengers)
    assert min(leaderboard, key=lambda each: leaderboard[each]) in listed


@pytest.mark.parametrize(
    ("measured", "reigns", "winner", "verdict"),
    [
        ([took(2.0), took(1.0)], False, 1, "first"),
        ([took(2.0), took(1.0)], True, 1, "faster"),
        ([took(1.0), took(2.0)], True, 0, "slower"),
        ([took(1.0), took(1.001)], True, 0, "same"),
        ([took(1.0), took(0.999)], True, 0, "same"),
        ([took(1.0), took(0.8, 1.1)], True, 0, "ambiguous"),
        ([took(1.0)], True, 0, "same"),
        ([took(1.0), FAILED], True, 0, "same"),
        ([FAILED, took(3.0), took(2.0)], True, 2, "faster"),
        ([FAILED, took(3.0)], False, 1, "first"),
    ],
)
def test_the_crown(measured: list[Measurement], reigns: bool, winner: int, verdict: str) -> None:
    judged = judge(measured, reigns, [0.0] * len(measured))
    assert (judged.winner, judged.verdict) == (winner, verdict)


@pytest.mark.parametrize(
    ("burdens", "winner"), [([3.0, 2.0, 1.0], 1), ([2.0, 3.0, 1.0], 0), ([1.0, 1.0, 0.0], 1)]
)
def test_of_those_that_are_the_same_the_simplest_is_crowned(burdens: list[float], winner: int) -> None:
    judged = judge([took(1.001), took(1.0), took(1.5)], False, burdens)
    assert judged.winner == winner


def test_every_two_that_have_times_are_compared_the_winner_first() -> None:
    played = [("best", took(1.0)), ("near", took(1.001)), ("failed", FAILED), ("library", took(0.5))]
    assert [(pair.one, pair.other, pair.time_s, pair.comparison.verdict) for pair in pairs_of(played)] == [
        ("best", "near", 1.001, "same"),
        ("best", "library", 0.5, "slower"),
        ("near", "library", 0.5, "slower"),
    ]

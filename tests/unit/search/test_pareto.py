"""Several objectives: fronts, their weightings and their worth."""

import pytest
from fixtures.landscape import SPACE, time_of
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.space import Config
from tuner.results.measurement import Outcome
from tuner.search import Search, SearchOptions, front_value
from tuner.search.tile import front


def test_several_objectives_keep_a_front() -> None:
    search = Search({"k": SPACE}, SearchOptions(seed=1, objectives=("time", "energy"), budget=60))

    def energy(config: Config) -> float:
        return time_of(config) ** 0.2 * config.X**0.5

    seen = []
    for _ in range(60):
        (each,) = search.ask()
        seen.append((time_of(each.config), energy(each.config)))
        search.tell(each, Outcome.MEASURED, seen[-1][0], (seen[-1][1],))
    assert len({seen[at] for at in front(seen)}) >= 3
    assert min(seen)[0] < 1.1 * min(time_of(config) for config in SPACE)
    assert min(value for _, value in seen) < 1.2 * min(energy(config) for config in SPACE)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    on_front = {points[at] for at in front(points)}
    for point in points:
        beaten = any(p[0] <= point[0] and p[1] <= point[1] and p != point for p in points)
        assert (point in on_front) is not beaten


def test_one_number_tells_how_good_a_front_is() -> None:
    assert front_value([(3.0,), (2.0,)]) == pytest.approx(2.0)
    points = [(1.0, 8.0), (4.0, 2.0)]
    better = front_value([*points, (1.0, 4.0)])
    assert better < front_value(points) == pytest.approx(front_value([*points, (5.0, 9.0)]))
    assert front_value([(0.5 * x, 0.5 * y) for x, y in points]) == pytest.approx(0.5 * front_value(points))

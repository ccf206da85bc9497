"""How a night is shared, on a clock of the test's own: no study is run, each problem gains as it is told to."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import TOY, write_device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.devices.detect import find
from tuner.night import night
from tuner.night.night import Night
from tuner.night.plan import read_plan
from tuner.night.scheduler import NightItem
from tuner.night.work import Done, Finished, Part, Work
from tuner.results.record import ProblemKey

#: Seconds of search -> best time in seconds, and why the search has ended, if it has.
Curve = Callable[[float], tuple[float, str]]


#: A store without a champion.
NOTHING_STORED: Any = SimpleNamespace(crowned=lambda device: set())


def falling(share: float, every_s: float = 20.0) -> Curve:
    """Gains this share in so many seconds, for ever."""
    return lambda searched_s: ((1 - share) ** (searched_s / every_s), "")


@dataclass
class Clock:
    """The time of a test, and what was done at which time."""

    now_s: float = 1000.0
    opening_s: float = 4.0
    curves: list[Curve] = field(default_factory=list)
    log: list[tuple[str, int]] = field(default_factory=list)
    searched_s: dict[int, float] = field(default_factory=dict)

    def stage(self, store: Any, found: Any, view: Any) -> Stage:
        """Stands in for the night's stage."""
        return Stage(self)


class Stage:
    """Passes time as a stage does."""

    def __init__(self, clock: Clock) -> None:
        self.done = Done()
        self._clock = clock
        self._open: tuple[str, int] = ("", 0)

    def _pass(self, seconds: float, what: str, item: Any) -> None:
        self._clock.now_s += seconds
        self.done.spent_s += seconds
        self._clock.log.append((what, number(item)))

    def run(self, work: Work) -> Done:
        self.done = done = Done()
        if self._open != (work.name, work.turn):
            self._left_s = math.inf if work.seconds is None else work.seconds
            self._left_s -= self._clock.opening_s + work.finals_s
            self._pass(self._clock.opening_s, "open", work.item)
            done.opening_s = self._clock.opening_s
        for seconds in work.parts:
            done.parts.append(self._searched(work, seconds))
            if done.parts[-1].why:
                break
        self._open = work.name, work.turn + 1
        if not work.parts:
            self._pass(work.finals_s, "finals", work.item)
            champion: Any = SimpleNamespace(doubts=())
            done.finished = Finished(champion, {})
            self.close()
        return done

    def _searched(self, work: Work, seconds: float) -> Part:
        assert seconds < math.inf or self._left_s < math.inf, "a search without an end"
        taken_s = max(min(seconds, self._left_s), 0.0)
        self._left_s -= taken_s
        mine = number(work.item)
        self._pass(taken_s, "slice", work.item)
        total_s = self._clock.searched_s[mine] = self._clock.searched_s.get(mine, 0.0) + taken_s
        best, why = self._clock.curves[mine](total_s)
        why = why or ("time is up" if self._left_s <= 0 else "")
        return Part(best, 30 * len(self._clock.log), why, taken_s)

    def close(self) -> None:
        self._open = ("", 0)


def number(item: Any) -> int:
    """Place of a problem in the plan."""
    return int(item.problem.dims["n"]) - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy and its board."""
    made = tmp_path_factory.mktemp("night")
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), made)
    write_device(made / "device.json")
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(night, "Stage", made.stage)
    monkeypatch.setattr(night.time, "monotonic", lambda: made.now_s)
    yield made
    monkeypatch.undo()


def spend(
    clock: Clock, folder: Path, seconds: float | None, limit_s: float | None, curves: list[Curve]
) -> list[NightItem]:
    """A night of so many seconds, in which each problem may take so many."""
    clock.curves, clock.log, clock.searched_s = curves, [], {}
    limit = f"seconds = {limit_s}" if limit_s else "trials = 1000000"
    sizes = list(range(1, len(curves) + 1))
    (folder / "plan.toml").write_text(f'[[problems]]\nfile = "toy.py"\nn = {sizes}\n{limit}\n')
    deadline_s = None if seconds is None else clock.now_s + seconds
    found = find(f"fake:{folder}/device.json")
    ended = list(Night(read_plan(folder / "plan.toml"), NOTHING_STORED, (found,), 1, deadline_s).run())
    return sorted(ended, key=lambda each: number(each.item))


def covered(searched_s: float) -> tuple[float, str]:
    """Gains nothing, and has tried all after half a minute."""
    return 1.0, "space covered" if searched_s >= 30 else ""


def test_time_goes_where_the_gain_is_and_each_end_has_its_reason(clock: Clock, folder: Path) -> None:
    items = spend(clock, folder, 1500, 600, [falling(0.0), falling(0.2), covered, falling(0.03)])
    assert [each.state for each in items] == ["tuned"] * 4
    flat, steep, short, gentle = items
    assert flat.why.startswith("converged: 3 slices in a row, of ")
    assert short.why == "space covered"
    # The plan allows the steep one no more.
    assert steep.why == "time is up"
    assert steep.spent_s == pytest.approx(600)
    assert gentle.why in ("time is up", "the night's time is up")
    assert gentle.spent_s > flat.spent_s > short.spent_s
    assert clock.now_s - 1000 <= 1500
    # Everybody has a first slice; then the one that gains most is worked on.
    assert [mine for what, mine in clock.log if what == "open"][:5] == [0, 1, 2, 3, 1]
    assert sorted(mine for what, mine in clock.log if what == "finals") == [0, 1, 2, 3]


def test_a_short_night_goes_to_those_that_gain(clock: Clock, folder: Path) -> None:
    items = spend(clock, folder, 500, 300, [falling(gain) for gain in (0.001, 0.2, 0.001, 0.1, 0.001, 0.001)])
    assert [each.state for each in items] == ["tuned"] * 6
    assert {each.why for each in items} == {"time is up", "the night's time is up"}
    searched_s = [clock.searched_s[number(each.item)] for each in items]
    assert searched_s[1] > searched_s[3] > 0
    assert all(searched_s[1] > 4 * searched_s[at] for at in (0, 2, 4, 5))


def test_a_night_with_time_enough_opens_each_problem_once(clock: Clock, folder: Path) -> None:
    items = spend(clock, folder, 700, 200, [falling(0.1), falling(0.0), falling(0.1)])
    assert [mine for what, mine in clock.log if what == "open"] == [0, 1, 2]
    assert [each.why.partition(":")[0] for each in items] == ["time is up", "converged", "time is up"]
    assert items[1].spent_s < items[0].spent_s == pytest.approx(200)
    assert all(each.slices > 1 for each in items)


def test_without_any_end_problems_stop_when_they_converge(clock: Clock, folder: Path) -> None:
    items = spend(clock, folder, None, None, [falling(0.0), lambda s: (max(0.5, 1 - s / 1000), "")])
    assert all(each.why.startswith("converged: 3 slices in a row") for each in items)
    assert items[1].slices > items[0].slices == 4


def test_a_night_too_short_for_all_says_what_was_not_reached(clock: Clock, folder: Path) -> None:
    items = spend(clock, folder, 120, 60, [falling(0.1)] * 20)
    states = [each.state for each in items]
    reached = states.count("tuned")
    assert reached >= 3
    assert states == ["tuned"] * reached + ["not reached"] * (20 - reached)
    assert {each.why for each in items[reached:]} == {"the deadline came first"}
    assert 100 < clock.now_s - 1000 <= 120


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seconds=st.floats(1, 5000),
    limit_s=st.none() | st.floats(1, 1000),
    opening_s=st.floats(0.1, 20),
    gains=st.lists(st.floats(0, 0.5), min_size=1, max_size=8),
)
def test_no_night_takes_longer_than_it_has(
    clock: Clock, folder: Path, seconds: float, limit_s: float | None, opening_s: float, gains: list[float]
) -> None:
    clock.opening_s = opening_s
    begun_s = clock.now_s
    items = spend(clock, folder, seconds, limit_s, [falling(gain) for gain in gains])
    assert [number(each.item) for each in items] == list(range(len(gains)))
    tuned = [number(each.item) for each in items if each.state == "tuned"]
    assert sorted(mine for what, mine in clock.log if what == "finals") == tuned
    assert all(each.slices > 0 for each in items if each.state == "tuned")
    # What opening costs is known after the first time only; the finals last a second at least.
    late_s = max(opening_s - 4.0, 0.0) + 1.0
    assert clock.now_s - begun_s <= max(seconds, 0) + late_s + 1e-6
    for each in items:
        opened = sum(what == "open" and mine == number(each.item) for what, mine in clock.log)
        assert each.spent_s <= (limit_s or math.inf) + opened * opening_s + late_s + 1e-6


def calls_of_a_night(clock: Clock, folder: Path, problems: int) -> int:
    """Calls of functions of ours that a night takes which is too short for nearly all of its problems."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call" and "/tuner/" in frame.f_code.co_filename

    clock.curves, clock.log, clock.searched_s = [falling(0.1)] * problems, [], {}
    sizes = list(range(1, problems + 1))
    (folder / "plan.toml").write_text(f'[[problems]]\nfile = "toy.py"\nn = {sizes}\nseconds = 20\n')
    plan, found = read_plan(folder / "plan.toml"), find(f"fake:{folder}/device.json")
    night = Night(plan, NOTHING_STORED, (found,), 1, clock.now_s + 100)
    sys.setprofile(count)
    try:
        states = [each.state for each in night.run()]
    finally:
        sys.setprofile(None)
    assert states.count("not reached") > problems - 10
    return counted


def test_four_times_the_problems_take_four_times_the_work(clock: Clock, folder: Path) -> None:
    """So that a deadline holds with thousands of them."""
    assert calls_of_a_night(clock, folder, 800) < 6 * calls_of_a_night(clock, folder, 200)


def test_a_night_that_is_over_looks_nothing_up(clock: Clock, folder: Path) -> None:
    """Each look at what was done before takes milliseconds of the store."""
    (folder / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = [1, 2, 3]\nseconds = 20\n')
    plan, found = read_plan(folder / "plan.toml"), find(f"fake:{folder}/device.json")

    def champion(problem: Any, device: Any, regime: str) -> None:
        clock.now_s += 60

    every = {(ProblemKey.of(item.problem), "cold") for item in plan.items}
    store: Any = SimpleNamespace(crowned=lambda device: every, champion=champion)
    begun_s = clock.now_s
    ended = list(Night(plan, store, (found,), 1, clock.now_s + 70).run())
    assert [each.why for each in ended] == ["the deadline came first"] * 3
    assert clock.now_s - begun_s == 120, "the second look ended after the deadline, and there is no third"


def test_a_plan_beyond_the_night_is_told_before_anything_is_tuned(clock: Clock, folder: Path) -> None:
    clock.curves = [falling(0.1)] * 30
    (folder / "plan.toml").write_text(
        f'[[problems]]\nfile = "toy.py"\nn = {list(range(1, 31))}\nseconds = 60\n'
    )
    plan, found = read_plan(folder / "plan.toml"), find(f"fake:{folder}/device.json")
    told: list[tuple[str, int]] = []
    for seconds in (100, 3600):
        night = Night(
            plan, NOTHING_STORED, (found,), 1, clock.now_s + seconds,
            warned=lambda text: told.append((text, len(clock.log))),
        )  # fmt: skip
        list(night.run())
    ((text, done),) = told
    assert text.startswith("30 problems are to be tuned, and 100 s hold about 6 of them: each needs")
    assert done == 0


def test_what_no_device_could_hold_fails_without_opening_it(clock: Clock, folder: Path) -> None:
    (folder / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = [2_000_000_000]\nseconds = 60\n')
    plan, found = read_plan(folder / "plan.toml"), find(f"fake:{folder}/device.json")
    (ended,) = Night(plan, NOTHING_STORED, (found,), 1, clock.now_s + 100).run()
    assert ended.state == "failed"
    assert "must fit into free memory (16 GiB on Fake board)" in ended.why
    assert clock.log == []

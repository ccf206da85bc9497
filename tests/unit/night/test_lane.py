"""What a lane hands out to several places, in simulated time: no study is run, and no time is waited."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.simulated_places import Simulated, places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.devices.detect import find
from tuner.night.plan import read_plan
from tuner.night.scheduler import MOST_LOST, Lane, NightItem, NightRules, play
from tuner.night.standing import Standing
from tuner.night.work import Work

NOTHING_STORED: Any = SimpleNamespace(crowned=lambda device: set())
Spend = Callable[..., tuple[list[NightItem], Simulated]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy and its board."""
    made = tmp_path_factory.mktemp("lane")
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), made)
    write_device(made / "device.json")
    return made


def gaining(name: str, searched_s: float) -> tuple[float, str]:
    """Every other problem gains a tenth in 20 s for ever, the others nothing."""
    return (0.9 ** (searched_s / 20) if int(name) % 2 else 1.0), ""


@pytest.fixture
def spend(folder: Path) -> Spend:
    """A night of so many problems, places and seconds: its results, and what the places did."""

    def spent(
        problems: int, count: int, seconds: float, limit_s: float = 60.0, **more: Any
    ) -> tuple[list[NightItem], Simulated]:
        sizes = list(range(1, problems + 1))
        plan = folder / "plan.toml"
        plan.write_text(f'[[problems]]\nfile = "toy.py"\nn = {sizes}\nseconds = {limit_s}\n')
        info = find(f"fake:{folder}/device.json").info
        runner = Simulated(places(count, info), more.pop("curve", gaining), **more)
        end_s = runner.now_s + seconds
        lane = Lane(NightRules(lambda: end_s - runner.now_s, 1, "random"), lambda: count)
        standing = Standing(NOTHING_STORED, info)
        for number, item in enumerate(read_plan(plan).items):
            assert lane.enlist(str(number), item, info, standing) is None
        lane.begin(standing)
        items = list(play(lambda place: lane, lambda: [lane], runner))
        return sorted(items, key=lambda each: each.item.problem.dims["n"]), runner

    return spent


def test_places_share_a_plan_and_each_problem_is_at_one_place_at_a_time(spend: Spend) -> None:
    items, runner = spend(20, 4, 4000)
    assert [each.state for each in items] == ["tuned"] * 20
    # There is time for all, so each is opened once and stays where it is.
    assert all(len(each.spells) == 1 for each in items)
    assert {place for place, _, _ in runner.log} == {f"node{number}" for number in range(4)}
    assert runner.now_s - 1000 < 20 * 60 / 4 + 60
    assert {spell.board for each in items for spell in each.spells.values()} == {
        f"BOARD-{at}" for at in range(4)
    }


def test_twice_the_places_finish_a_plan_in_half_the_time(spend: Spend) -> None:
    took_s = [spend(32, count, 10_000)[1].now_s - 1000 for count in (1, 2, 4, 8)]
    assert all(1.8 < before / after <= 2.1 for before, after in itertools.pairwise(took_s))


def test_a_short_night_keeps_its_places_busy_to_the_end(spend: Spend) -> None:
    items, runner = spend(60, 8, 900, limit_s=600)
    assert [each.state for each in items] == ["tuned"] * 60
    assert runner.now_s - 1000 <= 900
    assert runner.busy_s > 0.93 * 8 * 900
    gained = [sum(s.seconds for s in each.spells.values()) for each in items]
    assert sum(gained[1::2]) > 2 * sum(gained[0::2])


def test_a_study_that_was_worked_on_elsewhere_is_opened_anew(spend: Spend) -> None:
    _, runner = spend(12, 3, 600, limit_s=300)
    turns: dict[str, list[int]] = {}
    for _, work, _ in runner.log:
        turns.setdefault(work.name, []).append(work.turn)
    assert all(each == list(range(len(each))) for each in turns.values())
    assert any(len(each.spells) > 1 for each in spend(12, 3, 600, limit_s=300)[0])


def test_what_a_lost_place_had_is_done_by_another(spend: Spend) -> None:
    seen: set[str] = set()

    def fails(work: Work) -> bool:
        first = work.name not in seen and int(work.name) % 3 == 0
        seen.add(work.name)
        return first

    items, runner = spend(12, 4, 4000, fails=fails)
    assert [each.state for each in items] == ["tuned"] * 12
    assert runner.lost == 4


def test_a_problem_that_no_place_survives_is_given_up(spend: Spend) -> None:
    items, runner = spend(6, 3, 4000, fails=lambda work: work.name == "2")
    assert [each.state for each in items] == ["tuned", "tuned", "failed", "tuned", "tuned", "tuned"]
    assert items[2].why == f"{MOST_LOST} places in a row were lost on it, the last: it was killed"
    assert runner.lost == MOST_LOST


def test_finals_of_a_lost_place_are_played_on_another(spend: Spend) -> None:
    killed: list[str] = []

    def fails(work: Work) -> bool:
        if work.parts or work.name in killed:
            return False
        killed.append(work.name)
        return True

    items, runner = spend(6, 2, 4000, fails=fails)
    assert [each.state for each in items] == ["tuned"] * 6
    finals = [work.name for _, work, _ in runner.log if not work.parts]
    assert sorted(finals) == sorted(2 * list("012345"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    problems=st.integers(1, 20),
    count=st.integers(1, 9),
    seconds=st.floats(1, 3000),
    limit_s=st.floats(1, 600),
    faults=st.sets(st.integers(0, 60)),
)
def test_no_night_of_many_places_takes_longer_than_it_has(
    spend: Spend, problems: int, count: int, seconds: float, limit_s: float, faults: set[int]
) -> None:
    runner_log: list[Work] = []

    def fails(work: Work) -> bool:
        runner_log.append(work)
        return len(runner_log) in faults

    items, runner = spend(problems, count, seconds, limit_s, fails=fails)
    assert len(items) == problems
    assert all(each.state in ("tuned", "not reached", "failed") for each in items)
    # A lost place costs what it was given; the finals last a second at least.
    late_s = 1.0 + (math.inf if runner.lost else 0.0)
    assert runner.now_s - 1000 <= seconds + late_s + 0.5


@pytest.mark.parametrize("beyond_s", [0.0, 1.4])
def test_finals_that_take_longer_than_their_share_have_their_time_put_aside(
    spend: Spend, beyond_s: float
) -> None:
    items, runner = spend(10, 1, 125, 30.0, beyond_s=beyond_s)
    assert sum(each.state == "tuned" for each in items) >= 3
    assert runner.now_s - 1000 <= 125

"""How a night is shared among problems and places, in simulated time: no study runs, and nobody waits."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import BEST, TOY, copy_toy, rule, write_device
from fixtures.simulated_places import Curve, Simulated, number_of, places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.night.plan import read_plan
from tuner.night.scheduler import MOST_LOST, Night
from tuner.night.sentinels import Contender, Pass, Watched
from tuner.night.stored import Sentinel
from tuner.night.work import Assignment, NightItem
from tuner.results import codec
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY

NOTHING_STORED: Any = SimpleNamespace(champion=lambda *which: None)
Spend = Callable[..., tuple[list[NightItem], Simulated]]
MANY = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def falling(*shares: float) -> Curve:
    """Each problem gains its share in 20 s, for ever."""
    return lambda number, searched_s: ((1 - shares[number % len(shares)]) ** (searched_s / 20), "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy and its board."""
    made = tmp_path_factory.mktemp("night")
    copy_toy(made)
    write_device(made / "device.json")
    return made


def night_of(
    folder: Path, problems: int, limit: str, seconds: float | None, runner: Simulated, **more: Any
) -> Night:
    """A night of so many problems and seconds on the clock of a runner."""
    plan = folder / "plan.toml"
    plan.write_text(f'[[problems]]\nfile = "toy.py"\nn = {list(range(1, problems + 1))}\n{limit}\n')
    end_s = None if seconds is None else runner.now_s + seconds
    store = more.pop("store", NOTHING_STORED)
    return Night(read_plan(plan), store, 1, end_s, clock=lambda: runner.now_s, **more)


@pytest.fixture
def spend(folder: Path) -> Spend:
    """A night of so many problems, places and seconds: its results in the plan's order, and what places did."""
    info = find(f"fake:{folder}/device.json").info

    def spent(
        problems: int, count: int, seconds: float | None, limit_s: float | None = 60.0,
        curve: Curve | None = None, **more: Any,
    ) -> tuple[list[NightItem], Simulated]:  # fmt: skip
        runner = Simulated(places(count, info), curve or falling(0.0, 0.1), **more)
        limit = f"seconds = {limit_s}" if limit_s else "trials = 1000000"
        night = night_of(folder, problems, limit, seconds, runner)
        items = list(night.run(runner))
        assert len(items) == problems
        return sorted(items, key=lambda item: item.item.problem.dims["n"]), runner

    return spent


def opened(runner: Simulated) -> list[int]:
    return [number_of(work) for _, work, opens in runner.log if opens]


def finals(runner: Simulated) -> list[int]:
    return sorted(number_of(work) for _, work, _ in runner.log if not work.parts)


# --- one place -----------------------------------------


def test_time_goes_where_the_gain_is_and_each_end_has_its_reason(spend: Spend) -> None:
    curves = [falling(0.0), falling(0.2), None, falling(0.03)]

    def curve(number: int, searched_s: float) -> tuple[float, str]:
        own = curves[number]
        return own(0, searched_s) if own else (1.0, "space covered" if searched_s >= 30 else "")

    items, runner = spend(4, 1, 1500, 600, curve)
    assert [item.state for item in items] == ["tuned"] * 4
    flat, steep, short, gentle = items
    assert flat.why.startswith("converged: 3 slices in a row, of ")
    assert short.why == "space covered"
    assert steep.why == "time is up", "the plan allows the steep one no more"
    assert steep.spent_s == pytest.approx(600)
    assert gentle.why in ("time is up", "the night's time is up")
    assert gentle.spent_s > flat.spent_s > short.spent_s
    assert runner.now_s <= 1500
    # Everybody has a first slice; then the one that gains most is worked on.
    assert opened(runner)[:5] == [0, 1, 2, 3, 1]
    assert finals(runner) == [0, 1, 2, 3]


@pytest.mark.parametrize("beyond_s", [0.0, 1.4])
def test_time_is_put_aside_for_finals_that_take_longer_than_their_share(spend: Spend, beyond_s: float) -> None:
    items, runner = spend(10, 1, 125, 30.0, beyond_s=beyond_s)
    assert sum(item.state == "tuned" for item in items) >= 3
    assert runner.now_s <= 125


def test_a_night_too_short_for_all_says_what_was_not_reached(spend: Spend) -> None:
    items, runner = spend(20, 1, 120, 60, falling(0.1))
    reached = [item.state for item in items].count("tuned")
    assert reached >= 3
    assert {(item.state, item.why) for item in items[reached:]} == {("not reached", "the deadline came first")}
    assert 100 < runner.now_s <= 120


def test_a_problem_that_may_take_ten_seconds_is_tuned_in_a_night_of_ten(spend: Spend) -> None:
    (item,), runner = spend(1, 1, 10, 10)
    assert item.state == "tuned"
    assert runner.now_s <= 10


def calls_of_a_night(folder: Path, problems: int) -> int:
    """Calls of functions of ours that a night takes which is too short for nearly all of its problems."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call" and "/tuner/" in frame.f_code.co_filename

    runner = Simulated(places(1, find(f"fake:{folder}/device.json").info), falling(0.1))
    night = night_of(folder, problems, "seconds = 20", 100, runner)
    sys.setprofile(count)
    try:
        states = [item.state for item in night.run(runner)]
    finally:
        sys.setprofile(None)
    assert states.count("not reached") > problems - 10
    return counted


def test_four_times_the_problems_take_four_times_the_work(folder: Path) -> None:
    """So that a deadline holds with thousands of them."""
    assert calls_of_a_night(folder, 800) < 6 * calls_of_a_night(folder, 200)


# --- many places ---------------------------------------


@pytest.mark.parametrize("in_finals", [False, True])
def test_what_a_lost_place_had_is_done_by_another(spend: Spend, in_finals: bool) -> None:
    lost: set[str] = set()

    def fails(work: Assignment) -> bool:
        first = work.name not in lost and number_of(work) % 3 == 0 and bool(work.parts) != in_finals
        lost.update({work.name} if first else ())
        return first

    items, runner = spend(12, 4, 4000, fails=fails)
    assert [item.state for item in items] == ["tuned"] * 12
    assert runner.lost == 4
    assert len(finals(runner)) == 12 + 4 * in_finals


def test_a_problem_that_no_place_survives_is_given_up(spend: Spend) -> None:
    items, runner = spend(6, 3, 4000, fails=lambda work: number_of(work) == 2)
    assert [item.state for item in items] == ["tuned", "tuned", "failed", "tuned", "tuned", "tuned"]
    assert items[2].why == f"{MOST_LOST} places in a row were lost on it, the last: it was killed"
    assert runner.lost == MOST_LOST


@MANY
@given(
    problems=st.integers(1, 20), count=st.integers(1, 9), seconds=st.floats(1, 3000),
    limit_s=st.floats(1, 600), faults=st.sets(st.integers(0, 60)),
)  # fmt: skip
def test_no_night_of_many_places_takes_longer_than_it_has(
    spend: Spend, problems: int, count: int, seconds: float, limit_s: float, faults: set[int]
) -> None:
    numbers = itertools.count(1)
    items, runner = spend(problems, count, seconds, limit_s, fails=lambda work: next(numbers) in faults)
    assert all(item.state in ("tuned", "not reached", "failed") for item in items)
    # A lost place costs what it was given; the finals last a second at least.
    assert runner.lost or runner.now_s <= seconds + 1.5


# --- sentinels on a fake board ----------------------------------------


OTHER = {"BLOCK": 128, "ITEMS": 4, "ORDER": "blocked"}
#: Seconds of a sentinel's rounds.
BUDGET_S = 0.1


def toy(*configs: dict[str, object]) -> Watched:
    """The toy problem with its champion, and the one before it."""
    declared = catalogue.from_file(TOY)
    (kernel, *_) = declared.of("toy", "cuda")
    names = (CHAMPION, BEFORE)[: len(configs)]
    contenders = tuple(
        Contender(name, kernel, Config(config)) for name, config in zip(names, configs, strict=True)
    )
    return Watched(declared.operation("toy").problem({"n": 1000}), "cold", contenders)


def timed(spec: str, *configs: dict[str, object]) -> Sentinel:
    """The toy's sentinel in a fresh process."""
    found = find(spec)
    (sentinel,) = Pass("night", 1, BUDGET_S).over(found, {}, [toy(*configs)])
    return sentinel


def test_champion_the_one_before_and_the_library_are_timed_in_turns(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=1e-3), rule(OTHER, latency_s=1.1e-3)]
    spec = write_device(tmp_path / "d.json", rules=rules, baseline_s=2e-3)
    found = timed(spec, BEST, OTHER)
    assert [each.name for each in found.players] == [CHAMPION, BEFORE, LIBRARY]
    assert len({len(each.rounds_s) for each in found.players}) == 1
    assert found.verdict(BEFORE) == "faster"
    shift = found.shift(CHAMPION, LIBRARY)
    assert shift.log_ratio == pytest.approx(-0.69, abs=0.02)
    champion = found.player(CHAMPION)
    assert champion.binary_hash != found.players[1].binary_hash
    assert found.circumstances["sm_clock_hz"][0] == 1e9
    assert found.versions["driver"] == "1.0"
    assert codec.from_json(Sentinel, codec.to_json(found)) == found


@pytest.mark.parametrize(("device", "told"), [
    ({"free_bytes": 1000}, "must fit into free memory"),
    ({"rules": [rule(BEST, fault="wrong_result")]}, "times what rounding explains"),
    ({"rules": [rule(BEST, fault="crash")]}, "SIGSEGV"),
    ({"rules": [rule(BEST, fault="compile_failed")]}, "injected"),
])  # fmt: skip
def test_a_champion_that_fails_says_how(tmp_path: Path, device: dict[str, Any], told: str) -> None:
    spec = write_device(tmp_path / "d.json", baseline_s=2e-3, **device)
    found = timed(spec, BEST)
    assert found.player(CHAMPION) is None
    assert told in found.players[0].wrong
    assert found.verdict(LIBRARY) == ""

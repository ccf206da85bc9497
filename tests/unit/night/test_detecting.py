"""Changes are found, and nights without one are left alone."""

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.night.changes import CAUSES, Finding, ProblemNight, alerts_of, causes_of, examine
from tuner.night.stored import Player, Sentinel
from tuner.results.distance import Floats
from tuner.results.measurement import OTHERS_PROCESSES
from tuner.results.record import ProblemKey
from tuner.results.sentinel import CHAMPION

LEVELS = np.log([3e-4, 3.1e-4, 4e-4])


def nights(count: int, seed: int = 1, sigma: float = 0.001) -> Floats:
    """Nights of a board in which nothing changes."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 0.002, (count, 1))
    return LEVELS + common + random.normal(0, sigma, (count, 3))


@pytest.mark.parametrize(
    ("change", "moved"), [((0.02, 0, 0), "champion"), ((0, 0, 0.03), "library"), ((0.04, 0.04, 0.04), "all")]
)
@pytest.mark.parametrize("has_before", [True, False])
def test_what_moved_is_named(change: tuple[float, float, float], moved: str, has_before: bool) -> None:
    rows = nights(14)
    if not has_before:
        rows[:, 1] = np.nan
    tonight, again = rows[-4] + change, rows[-3:-1] + change
    first = examine(rows[:10], tonight)
    assert first.suspect
    found = examine(rows[:10], tonight, again)
    assert (found.moved, found.nights, found.is_told) == (moved, 1, True)
    assert found.change == pytest.approx(max(change), abs=0.006)
    low, high = found.interval
    assert low - 0.003 < max(change) < high + 0.003


def test_a_repeat_that_points_the_other_way_takes_it_back() -> None:
    rows = nights(12)
    tonight = rows[10] + (0.02, 0, 0)
    assert examine(rows[:10], tonight, rows[11:12] - (0.02, 0, 0)) is None


def test_creep_is_told_by_the_nights_together() -> None:
    rows = nights(24)
    told = 0
    for night in range(1, 11):
        rows[13 + night, 0] += 0.002 * night
        found = examine(rows[: 13 + night], rows[13 + night])
        told = told or (night if found.is_told and found.nights > 1 and found.change > 0 else 0)
    assert 1 < told <= 10


# --- Recorded nights of three H200s in which nothing changed: none is told; changes put in are found

RECORDED = Path(__file__).parents[2] / "fixtures/recorded_nights.json"


@pytest.fixture(scope="module")
def series() -> dict[tuple[str, str], Floats]:
    """Board and problem -> a row of logarithms of times for each night."""
    rows: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for each in json.loads(RECORDED.read_text()):
        rows[each["board"], each["problem"]].append(each["levels"])
    return {key: np.array(each) for key, each in rows.items()}


def is_told_twice(rows: Floats, change: tuple[float, float, float]) -> bool:
    """Whether the last night but one is is_told_twice, with the last as its repeat."""
    past, tonight, again = rows[:-2], rows[-2] + change, rows[-1:] + change
    found = examine(past, tonight)
    if found is None or not found.suspect:
        return False
    twice = examine(past, tonight, again)
    return twice is not None and twice.is_told


def rotated(series: dict[tuple[str, str], Floats]) -> list[Floats]:
    """Each night once as the present one: nothing changed, so that the order of the others does not matter."""
    return [np.roll(rows, shift, axis=0) for rows in series.values() for shift in range(len(rows))]


def test_none_of_the_recorded_nights_is_told(series: dict[tuple[str, str], Floats]) -> None:
    assert sum(is_told_twice(rows, (0.0, 0.0, 0.0)) for rows in rotated(series)) == 0


def test_changes_of_five_percent_are_found_from_five_nights_on(series: dict[tuple[str, str], Floats]) -> None:
    every = rotated(series)
    assert sum(is_told_twice(rows, (0.05, 0.0, 0.0)) for rows in every) / len(every) > 0.9


# --- causes ----------------------------------------


LIBRARY, THROTTLED = {"library": "B 2"}, {"throttle_reasons": [0x20]}


class Night(ProblemNight):
    """A night whose change is given."""

    change: Finding | None = None


def sentinel(
    problem: str = "gemm", board: str = "GPU-1", code: str = "a", compiler: str = "NVRTC 13.0", block: int = 1,
    wrong: str = "", versions: dict[str, str] | None = None, clock_hz: float = 1e9, **more: Any,
) -> Sentinel:  # fmt: skip
    player = Player(
        CHAMPION, "tiled", {"BLOCK": block}, () if wrong else (1e-3,) * 8, code, compiler, wrong=wrong
    )
    more["circumstances"] = {"sm_clock_hz": [clock_hz], **more.get("circumstances", {})}
    known = {"driver": "580.1", "library": "B 1", **(versions or {})}
    key = ProblemKey(problem, (("n", 64),), "float32", "plain")
    device = DeviceInfo("NVIDIA H200", "cuda", uuid=board)
    return Sentinel(key, device, "cold", "night", 1, (player,), versions=known, **more)


def night(moved: str, change: float = 0.03, **more: Any) -> Night:
    """A night in which something moved by a share; keywords say what else is other than before."""
    same = {name: more[name] for name in ("problem", "board") if name in more}
    made = Night([sentinel(**same)] * 6, sentinel(**more), [sentinel(**more)])
    made.change = Finding(moved, math.log1p(change), 0.001, 1)
    return made


@pytest.mark.parametrize(("moved", "more", "cause", "told"), [
    ("library", {}, "vendor", "although its version is the same"),
    ("library", {"versions": LIBRARY, "change": -0.03}, "vendor", "B 1 and is B 2"),
    ("champion", {"code": "b"}, "compiler", "machine code is new"),
    ("champion", {"code": "b", "compiler": "NVRTC 13.1"}, "compiler", "NVRTC 13.0 and is NVRTC 13.1"),
    ("champion", {"block": 2, "code": "b"}, "config", "another config or source"),
    ("champion", {"versions": {"driver": "590.2"}}, "driver", "580.1 and is 590.2"),
    ("champion", {}, "board", "the same"),
    ("all", {"seen": {OTHERS_PROCESSES: 1.0}}, "neighbour", "others were seen"),
    ("all", {"circumstances": THROTTLED}, "clocks", "throttled"),
    ("all", {"clock_hz": 0.96e9}, "clocks", "-4.0%"),
    # A clock that rose explains nothing that became slower.
    ("all", {"clock_hz": 1.04e9}, "node", "same driver and clocks"),
    ("all", {"versions": {"driver": "590.2"}}, "driver", "590.2"),
])  # fmt: skip
def test_a_cause_and_what_led_to_it(moved: str, more: dict[str, Any], cause: str, told: str) -> None:
    made = night(moved, **more)
    named, why = next(causes_of(made, power=0.0))
    assert named == cause
    assert told in why
    assert cause in CAUSES


def test_power_at_other_problems_tells_of_a_neighbour_and_a_wrong_result_of_itself() -> None:
    made = night("all")
    assert next(causes_of(made, power=0.3))[0] == "neighbour"
    assert next(causes_of(made, power=0.05))[0] == "node"
    made = night("champion", code="b", wrong="differs by 3 times")
    made.change = None
    assert next(causes_of(made, power=0.0))[0] == "wrong"


def test_one_alert_for_a_cause_however_many_problems() -> None:
    problems = [night("all", 0.02 + n / 1000, problem=f"gemm{n}", clock_hz=0.97e9) for n in range(5)]
    first, second = alerts_of([[night("library", -0.05, problem="gemv"), *problems]])
    assert (first["cause"], len(first["problems"]), first["slower"]) == ("clocks", 5, True)
    assert first["change"] == pytest.approx(0.022)
    assert first["problems"][0]["problem"].startswith("gemm4")
    assert first["command"] == "tuner watch explain gemm4 64 --layout plain"
    assert (second["cause"], second["slower"]) == ("vendor", False)


def test_boards_have_alerts_of_their_own_and_a_compiler_has_one() -> None:
    boards = [
        [night("champion", board=board, code=code) for code in ("a", "b")] for board in ("GPU-1", "GPU-2")
    ]
    alerts = sorted((alert["cause"], len(alert["problems"])) for alert in alerts_of(boards))
    assert alerts == [("board", 1), ("board", 1), ("compiler", 2)]


# --- Nights on H200s in which something real was swapped: the judge, which sees no label, names what it was

ROOT = Path(__file__).parents[3]
SWAPS = ROOT / "tests/fixtures/recorded_swaps"


@pytest.mark.parametrize(("recording", "wrong"), [("first", {"neighbour": 1}), ("second", {})])
def test_real_swaps_are_named(recording: str, wrong: dict[str, int], tmp_path: Path) -> None:
    out, script = tmp_path / "rows.json", ROOT / "scripts/bench/watch_causes"
    command = [sys.executable, script, SWAPS / recording, "--json", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    swaps = [row for row in json.loads(out.read_text()) if row["counts"] and row["label"] != "none"]
    assert {row["label"] for row in swaps} == {"config", "compiler", "vendor", "neighbour"}
    assert len(swaps) >= 14
    assert Counter(row["label"] for row in swaps if not row["right"]) == wrong

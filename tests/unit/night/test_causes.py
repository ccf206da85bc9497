"""Causes by their evidence, and one alert for each."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.night.changes import CAUSES, ChangeEvidence, alerts, judge

DRIVER, LIBRARY = {"driver": ("580.1", "590.2")}, {"library": ("B 1", "B 2")}


def evidence(
    moved: str, problem: str = "gemm 64 x 64 x 64", change: float = 0.03, **more: Any
) -> ChangeEvidence:
    at = {"since": "2026-01-05T00:00:00", "arguments": "gemm 64 64 64"}
    return ChangeEvidence(problem, "GPU-1", moved, change, (change - 0.01, change + 0.01), **(at | more))


@pytest.mark.parametrize(
    ("found", "cause", "told"),
    [
        (evidence("library"), "vendor", "although its version is the same"),
        (evidence("champion", new_code=True), "compiler", "machine code is new"),
        (
            evidence("champion", new_code=True, versions={"compiler": ("NVRTC 13.0", "NVRTC 13.1")}),
            "compiler", "NVRTC 13.0 and is NVRTC 13.1",
        ),
        (evidence("champion", new_config=True, new_code=True), "config", "another config or source"),
        (evidence("champion", versions=DRIVER), "driver", "580.1 and is 590.2"),
        (evidence("champion"), "board", "the same"),
        (evidence("all", others=1.0), "neighbour", "others were seen"),
        (evidence("all", power_change=0.3), "neighbour", "30% more power"),
        (evidence("library", change=-0.03, power_change=0.3, versions=LIBRARY), "vendor", "B 1 and is B 2"),
        (evidence("all", power_change=0.05), "node", "same driver"),
        (evidence("all", throttled=True), "clocks", "throttled"),
        (evidence("all", clock_change=-0.04), "clocks", "-4.0%"),
        # A clock that rose explains nothing that became slower.
        (evidence("all", clock_change=0.04), "node", "same driver and clocks"),
        (evidence("all", versions=DRIVER), "driver", "590.2"),
        (evidence("champion", wrong="differs by 3 times", new_code=True), "wrong", "3 times"),
    ],
)  # fmt: skip
def test_a_cause_and_what_led_to_it(found: ChangeEvidence, cause: str, told: str) -> None:
    named, why = judge(found)
    assert named == cause
    assert told in why
    assert cause in CAUSES


def test_one_alert_for_a_cause_however_many_problems() -> None:
    problems = [evidence("all", f"gemm {n}", 0.02 + n / 1000, clock_change=-0.03) for n in range(5)]
    library = evidence("library", "gemv 64", -0.05)
    first, second = alerts([library, *problems])
    assert (first.cause, len(first.problems), first.slower) == ("clocks", 5, True)
    assert first.change == pytest.approx(0.022)
    assert first.problems[0].problem == "gemm 4"
    assert first.command == "tuner watch explain gemm 64 64 64"
    assert (second.cause, second.slower) == ("vendor", False)
    assert first.to_json()["told"] == CAUSES["clocks"]


def test_boards_have_alerts_of_their_own_and_a_compiler_has_one() -> None:
    both = [
        ChangeEvidence("gemm", board, "champion", 0.03, (0.02, 0.04), new_code=new_code)
        for board in ("GPU-1", "GPU-2")
        for new_code in (True, False)
    ]
    found = alerts(both)
    assert sorted((each.cause, len(each.problems)) for each in found) == [
        ("board", 1),
        ("board", 1),
        ("compiler", 2),
    ]

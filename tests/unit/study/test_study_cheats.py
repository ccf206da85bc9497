"""Kernels that only seem to compute: found, told, and no harm to those that do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, database, rule, stored, study, write_device

from tuner.declare import catalogue
from tuner.declare.space import choice
from tuner.devices.detect import find
from tuner.results.measurement import Outcome
from tuner.results.record import VERIFICATION, Role
from tuner.store import Store
from tuner.study import session
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study

CHEATING = Path(__file__).parents[2] / "fixtures" / "cheating_cpu.py"
HONEST = {"none", "also_none"}
#: Cheat -> why it is wrong. Those of `BY_STATE` look at what a timed run finds, which differs by regime.
REASONS = {
    "zeroes": "^wrote into the input x, which kernels only read$",
    "writes": "^wrote into the input x, which kernels only read$",
    "remembers": "^in a timed run: ", "returns": "^in a timed run: ",
    # Right over NaN alone; takes a number for a result; out of bounds beside a result.
    "fmax": ".", "beyond": ".",
    # The check before the timed runs tells it over some poisons, a timed run over the others.
    "is_there": "where y held|in a timed run: left elements unwritten",
    # A spoilt clock tells times that no core reaches, or that are not those of the study's.
    "clock": "^its time cannot be: ", "slow_clock": "^its clock says ",
}  # fmt: skip
BY_STATE = ("none", "remembers", "returns", "glances", "tenth", "also_none")


@pytest.mark.parametrize(("regime", "cheats"), [("cold", BY_STATE), ("hot", (*REASONS, *BY_STATE))])
def test_kernels_that_seem_to_compute_are_wrong(tmp_path: Path, regime: str, cheats: Sequence[str]) -> None:
    declared = catalogue.from_file(CHEATING)
    (kernel,) = declared.of("cheating_cpu")
    kernel = replace(
        kernel, parameters=(choice("CHEAT", *dict.fromkeys(cheats)),), starts=({"CHEAT": cheats[0]},)
    )
    problem = declared.operation("cheating_cpu").problem({"n": 100_000})
    # With a second objective no config is stopped early, however slow a busy machine makes its first runs: each
    # is timed to the end, and so is checked.
    asked = StudyRequest(
        problem, [kernel], (find("cpu"),), regime, seconds=None, seed=1, sampler="random",
        objectives=("time", "error"), finals_s=0.5,
    )  # fmt: skip
    with Store.open(database(tmp_path)) as store:
        result = run_study(asked, store)
        trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["CHEAT"]: record.measurement for record in trials}
    assert set(found) == set(cheats)
    reasons = {cheat: each.reason for cheat, each in found.items() if each.outcome is Outcome.WRONG_RESULT}
    for cheat in REASONS.keys() & found:
        assert re.search(REASONS[cheat], reasons.pop(cheat)), cheat
    # Garbage in every tenth call may miss the runs that are compared, until the finals. Where inputs are placed
    # anew, one that looks whether they are computes unless they are the same again.
    assert {"glances"} - ({"glances"} if regime == "cold" else set()) <= set(reasons) <= {"glances", "tenth"}
    assert {found[each].outcome for each in HONEST} == {Outcome.MEASURED}
    assert result.champion.record.config["CHEAT"] in HONEST | ({"glances"} if regime == "cold" else set())


# --- finalists that turn out wrong ---------------------------------------------------------------------------

#: On the fake board nothing else comes near: beside it others are stopped early, or too slow for the finals.
BOGUS, BOGUS_S = {"BLOCK": 64, "ITEMS": 4, "ORDER": "striped"}, BEST_S / 50


def bogus_device(path: Path, **how: Any) -> str:
    """A device on which `BOGUS` seems to be the fastest, and `BEST` is."""
    return write_device(path, rules=[rule(BOGUS, latency_s=BOGUS_S, **how), rule(BEST, latency_s=BEST_S)])


@pytest.mark.parametrize(("how", "reason"), [
    ({"fault": "wrong_result", "only_at": 1}, "at toy 1 float32 plain: largest error"),
    ({"fault": "stale", "after": 60}, "returned a stale result"),
    ({"fault": "writes_input", "after": 60}, "wrote into the input x"),
])  # fmt: skip
def test_a_wrong_best_leaves_the_next_one(tmp_path: Path, how: Mapping[str, Any], reason: str) -> None:
    device = bogus_device(tmp_path / "device.json", **how)
    result = study(tmp_path, device)
    assert dict(result.champion.record.config) == BEST
    assert result.champion.verdict == "first"
    trials = {tuple(each.config.values()): each.measurement for each in stored(tmp_path)}
    assert trials[tuple(BOGUS.values())].outcome is Outcome.MEASURED
    finals = [each.measurement for each in stored(tmp_path, Role.FINAL) if dict(each.config) == BOGUS]
    assert [each.outcome for each in finals] == [Outcome.WRONG_RESULT]
    assert reason in finals[0].reason


def test_a_champion_that_reigns_meets_the_next_best_where_the_best_turns_out_wrong(tmp_path: Path) -> None:
    first = study(tmp_path, write_device(tmp_path / "device.json", rules=[]), trials=1)
    slow = dict(first.champion.record.config)
    assert slow not in (BOGUS, BEST)
    rules = [
        rule(BOGUS, latency_s=BOGUS_S, fault="stale", after=60), rule(BEST, latency_s=BEST_S),
        rule(slow, latency_s=4 * BEST_S),
    ]  # fmt: skip
    again = study(tmp_path, write_device(tmp_path / "device.json", rules=rules))
    assert dict(again.champion.record.config) == BEST
    assert again.champion.verdict == "faster"


def test_finals_without_time_go_on_until_a_config_is_right(tmp_path: Path) -> None:
    device = bogus_device(tmp_path / "device.json", fault="wrong_result", only_at=1)
    result = study(tmp_path, device, finals_s=0.0)
    assert result.champion is not None
    assert dict(result.champion.record.config) == BEST


def test_what_older_rules_judged_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By these BEST was wrong, as it had another's inputs, and a config that computes nothing is the champion.
    rules = [rule(BEST, fault="wrong_result"), rule(BOGUS, latency_s=BOGUS_S)]
    with monkeypatch.context() as older:
        older.setattr(session, "VERIFICATION", VERIFICATION - 1)
        bogus = study(tmp_path, write_device(tmp_path / "device.json", rules=rules))
    assert dict(bogus.champion.record.config) == BOGUS
    device = bogus_device(tmp_path / "device.json", fault="writes_input")
    result = study(tmp_path, device)
    assert dict(result.champion.record.config) == BEST
    assert result.champion.verdict == "first"
    assert result.progress.outcomes["WRONG_RESULT"] == 1

"""Kernels that only seem to compute: found, told, and no harm to those that do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, request, rule, stored, study, write_device

from tuner.declare import catalogue
from tuner.declare.space import choice
from tuner.devices.detect import find
from tuner.results.measurement import Outcome
from tuner.results.record import VERIFICATION, Role
from tuner.store import Store
from tuner.study import session
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study
from tuner.workers import compile_pool, device_worker
from tuner.workers.process import MEMORY_VARIABLE

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
def test_kernels_that_seem_to_compute_are_wrong(store: Store, regime: str, cheats: Sequence[str]) -> None:
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


# --- real faults on this CPU ----------------------------------------


FAULTY = Path(__file__).parents[2] / "fixtures" / "faulty_cpu.py"
#: What workers may take here: enough for what is sound, and soon used up.
SCANT_BYTES = 256 << 20
ENDS = {
    "none": ("MEASURED", ""),
    "segfault": ("CRASHED", "SIGSEGV"),
    "endless": ("TIMED_OUT", "in time"),
    "hog": ("LAUNCH_FAILED", "out of memory: Unable to allocate 8.00 MiB"),
    "explode": ("COMPILE_FAILED", "out of memory"),
    "wrong": ("WRONG_RESULT", "times what rounding explains"),
}


def test_real_faults_are_outcomes_and_sound_ones_win(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker, "FIRST_LIMIT_FLOOR_S", 6.0)
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", SCANT_BYTES)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty_cpu").problem({"n": 100_000})
    scant = replace(find("cpu"), environment=((MEMORY_VARIABLE, str(SCANT_BYTES)),))
    asked = StudyRequest(
        problem, declared.of("faulty_cpu"), (scant,), "hot", seconds=None, seed=1, sampler="random",
        finals_s=0.5,
    )  # fmt: skip
    result = run_study(asked, store)
    trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found)
    for fault, (outcome, reason) in ENDS.items():
        assert (found[fault].outcome.value, reason in found[fault].reason) == (outcome, True), found[fault]
    assert dict(result.champion.record.config) == {"FAULT": "none"}


#: Width of the CPU's vectors -> an older core type, and the one that suits it.
CORE_TYPES = {64: ("Haswell", "SkylakeX"), 32: ("Nehalem", "Haswell")}


def test_a_blas_that_mistakes_the_cpu_is_measured_as_what_it_is_too(tmp_path: Path, store: Store) -> None:
    cpu = find("cpu")
    if cpu.info.vector_bytes not in CORE_TYPES:
        pytest.skip("OpenBLAS has one core type for this CPU")
    older, best = CORE_TYPES[cpu.info.vector_bytes]
    mistaken = replace(cpu, environment=(("OPENBLAS_CORETYPE", older),))
    asked = request("cpu", found=(mistaken,), regime="hot", trials=1, finals_s=0.1)
    result = run_study(asked, store)
    first, own, last = stored(tmp_path, Role.BASELINE)
    # Before the search with either, then with its own choice in the finals.
    assert [each.versions["blas_core_type"] for each in (first, own, last)] == [older, best, older]
    assert result.progress.baseline_s == min(first.measurement.time_s or 9, own.measurement.time_s or 9)
    assert {each.versions["blas_threads"] for each in (first, own, last)} == {
        str(int(each.measurement.circumstances["threads"])) for each in (first, own, last)
    }
    assert result.champion.baseline == last

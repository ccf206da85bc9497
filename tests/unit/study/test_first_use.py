"""A problem at its first use, on the fake device: few configs, a champion, faults that cost only themselves."""

import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, FAULTS, TOY, database, rule, study, write_device

from tuner import lookup
from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import find, kind_of
from tuner.devices.device_lock import device_lock
from tuner.lookup import answer
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store
from tuner.study import first_use as module
from tuner.study.first_use import answered, close_all, measure, serve
from tuner.study.requests import StudyRequest
from tuner.workers.device_worker import Crew

DECLARED = catalogue.from_file(TOY)
KERNELS = DECLARED.of("toy", "cuda")
PROBLEM = DECLARED.operation("toy").problem({"n": 1000})
SLOW = {"BLOCK": 32, "ITEMS": 1, "ORDER": "blocked"}
OTHER = {"BLOCK": 128, "ITEMS": 2, "ORDER": "blocked"}


class Predicting:
    """Stands for a model's word, which changes with each round."""

    def __init__(self, *configs: dict[str, Any], after: Sequence[Sequence[dict[str, Any]]] = ()) -> None:
        self.starts = [("blocks", Config(config)) for config in configs]
        self.heard: list[dict[tuple[str, Config], float]] = []
        self._after = list(after)

    def beside(self, timed: Mapping[tuple[str, Config], float]) -> list[tuple[str, Config]]:
        self.heard.append(dict(timed))
        return [("blocks", Config(config)) for config in self._after.pop(0)] if self._after else []


def first_use(folder: Path, spec: str, seconds: float = 0.3) -> tuple[Champion | None, Sequence[Record]]:
    found = find(spec)
    with Store.open(database(folder)) as store, Crew([found]) as crew:
        champion = measure(StudyRequest(PROBLEM, KERNELS, (found,), seconds=seconds), store, crew)
        return champion, store.records()


def test_the_best_prediction_is_crowned_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)
    monkeypatch.setattr(module, "Predictions", lambda *_: Predicting(SLOW, BEST, OTHER))
    champion, records = first_use(tmp_path, spec)
    assert dict(champion.record.config) == BEST
    assert champion.speedup == pytest.approx(2.0, rel=0.2)
    trials = [each for each in records if each.role is Role.TRIAL]
    assert len(trials) <= module.CONFIGS
    assert [dict(each.config) for each in trials[:3]] == [SLOW, BEST, OTHER]
    assert {each.role for each in records} == {Role.TRIAL, Role.FINAL, Role.BASELINE}
    with Store.open(database(tmp_path), read_only=True) as store:
        found = answer(store, ProblemKey.of(PROBLEM), find(spec).info, catalogue=DECLARED)
    assert (found.match, dict(found.config)) == ("exact", BEST)


def test_a_study_goes_on_from_a_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_device(tmp_path / "device.json")
    monkeypatch.setattr(module, "Predictions", lambda *_: Predicting(SLOW, OTHER))
    _, records = first_use(tmp_path, spec)
    before = sum(each.role is Role.TRIAL for each in records)
    result = study(tmp_path, spec, trials=before + 5)
    assert result.progress.trials == before + 5
    with Store.open(database(tmp_path), read_only=True) as store:
        trials = store.records(role=Role.TRIAL)
    assert len({tuple(each.config.values()) for each in trials}) == len(trials) == before + 5


def test_rounds_go_on_while_they_find_faster_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = rule(OTHER, fault="wrong_result", latency_s=BEST_S / 9)
    spec = write_device(tmp_path / "device.json", rules=[bad, rule(BEST, latency_s=BEST_S)])
    # The second round finds the best; the third finds nothing faster, and is the last.
    further = {**SLOW, "BLOCK": 64}
    said = Predicting(SLOW, after=[[OTHER, BEST], [further], [{**SLOW, "ITEMS": 2}]])
    monkeypatch.setattr(module, "Predictions", lambda *_: said)
    monkeypatch.setattr(module, "CONFIGS", 1)
    champion, records = first_use(tmp_path, spec, seconds=2.0)
    assert dict(champion.record.config) == BEST
    tried = [dict(each.config) for each in records if each.role is Role.TRIAL]
    assert tried == [SLOW, OTHER, BEST, further]
    assert [len(each) for each in said.heard] == [1, 3]
    failed = [dict(config) for (_, config), time_s in said.heard[-1].items() if math.isinf(time_s)]
    assert failed == [OTHER]


def test_on_a_host_all_work_counts_as_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No config takes long to run, and each takes a fifth of a second to verify.
    spec = write_device(tmp_path / "device.json", rules=[{"where": {}, "latency_s": BEST_S, "first_s": 0.2}])
    further = [{**SLOW, "BLOCK": block, "ITEMS": items} for block in (32, 64, 128) for items in (2, 4)]
    monkeypatch.setattr(module, "Predictions", lambda *_: Predicting(SLOW, *further))
    monkeypatch.setattr(type(kind_of("cuda")), "is_host", True)
    champion, records = first_use(tmp_path, spec, seconds=1.0)
    assert champion is not None
    assert sum(each.role is Role.TRIAL for each in records) < 1 + len(further)


@pytest.mark.parametrize("fault", ["unwell", "crash", "compile_failed"])
def test_a_fault_costs_its_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    bad = rule(OTHER, fault=fault, latency_s=BEST_S / 9)
    spec = write_device(tmp_path / "device.json", rules=[bad, rule(BEST, latency_s=BEST_S)])
    monkeypatch.setattr(module, "Predictions", lambda *_: Predicting(OTHER, BEST))
    champion, records = first_use(tmp_path, spec)
    assert dict(champion.record.config) == BEST
    outcomes = [each.measurement.outcome for each in records if dict(each.config) == OTHER]
    assert outcomes == [Outcome(FAULTS[fault][0])]


# --- in a process of its own ----------------------------------------


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is built in."""
    monkeypatch.setattr(module, "builtin_now", lambda: DECLARED)
    monkeypatch.setattr(lookup, "builtin_now", lambda: DECLARED)
    monkeypatch.setattr(module, "LOCK_S", 0.3)


@pytest.fixture
def devices(toy: None) -> Iterator[dict[str, Crew]]:
    own: dict[str, Crew] = {}
    yield own
    close_all(own)


def question(folder: Path, n: int = 1000, **more: Any) -> dict[str, Any]:
    spec = write_device(folder / "device.json", baseline_s=2 * BEST_S)
    which = {"dtype": "float32", "layout": "plain", "precision": "ieee"}
    problem = {"operation": "toy", "shape": {"n": n}, **which}
    return {"id": n, "problem": problem, "device": spec, "db": database(folder), "seconds": 0.2, **more}


def test_a_problem_is_measured_once_by_the_first_process(tmp_path: Path, devices: dict[str, Crew]) -> None:
    asked = question(tmp_path)
    assert answered(asked, devices) == ("measured", "")
    other: dict[str, Crew] = {}
    assert answered(asked, other) == ("known", "")
    close_all(other)
    with Store.open(database(tmp_path), read_only=True) as store:
        assert len(store.champions(operation="toy")) == 1
        assert len({each.session for each in store.records()}) == 1


def test_bits_are_kept_to(tmp_path: Path, devices: dict[str, Crew], monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [("blocks", Config(config)) for config in (BEST, BEST | {"BLOCK": 128})]
    predicting = SimpleNamespace(starts=starts, beside=lambda timed: [])
    monkeypatch.setattr(module, "Predictions", lambda *_: predicting)
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule({}, latency_s=1.5 * BEST_S, error_rel=1.2e-7)]
    board = write_device(
        tmp_path / "own.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1.2e-7, noise=1e-4
    )
    for n, bits in ((1000, ""), (1024, "library")):
        asked = question(tmp_path, n, device=board, bits=bits, seconds=2.0)
        assert answered(asked, devices) == ("measured", "")
    with Store.open(database(tmp_path), read_only=True) as store:
        crowned = {one.record.problem.dims["n"]: one for one in store.champions(operation="toy")}
    pairs = {n: (one.record, one.baseline) for n, one in crowned.items()}
    same = {n: own.measurement.bits == beside.measurement.bits for n, (own, beside) in pairs.items() if beside}
    assert same == {1000: False, 1024: True}


def test_a_device_that_stays_in_use_is_told(tmp_path: Path, devices: dict[str, Crew]) -> None:
    asked = question(tmp_path)
    with device_lock(find(asked["device"]).info, "another test"):
        outcome, why = answered(asked, devices)
    assert outcome == "busy"
    assert "another test" in why


@pytest.mark.parametrize(("more", "said"), [
    ({"db": "sqlite:////nowhere/studies.db"}, "nowhere"),
    ({"device": "fake:none.json"}, "none.json"),
    ({"problem": {"operation": "none"}}, "none"),
])  # fmt: skip
def test_troubles_are_told(tmp_path: Path, devices: dict[str, Crew], more: dict[str, Any], said: str) -> None:
    outcome, why = answered(question(tmp_path, **more), devices)
    assert outcome == "failed"
    assert said in why


@pytest.mark.usefixtures("toy")
def test_questions_are_answered_in_order_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.5)
    asked, replies = [question(tmp_path, n) for n in (1000, 33, 1000)], io.StringIO()
    reading, writing = os.pipe()
    os.write(writing, "".join(json.dumps(each) + "\n" for each in asked).encode())
    with os.fdopen(reading, "rb", buffering=0) as lines:
        serve(lines, replies)
    os.close(writing)
    told = [json.loads(line) for line in replies.getvalue().splitlines()]
    outcomes = [(each["id"], each["outcome"]) for each in told]
    assert outcomes == [(1000, "measured"), (33, "measured"), (1000, "known")]

"""What the process that measures answers: measured, known, busy or failed; on the fake device."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, database, rule, write_device

from tuner import lookup
from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock
from tuner.store import Store
from tuner.study import first_use as process
from tuner.study.first_use import answered, close_all, serve
from tuner.workers.device_worker import Crew

DECLARED = catalogue.from_file(TOY)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is built in."""
    monkeypatch.setattr(process, "builtin_now", lambda: DECLARED)
    monkeypatch.setattr(lookup, "builtin_now", lambda: DECLARED)
    monkeypatch.setattr(process, "LOCK_S", 0.3)


@pytest.fixture
def devices() -> Iterator[dict[str, Crew]]:
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
    monkeypatch.setattr(process, "Predictions", lambda *_: predicting)
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
def test_troubles_are_told_with_remedies(
    tmp_path: Path, devices: dict[str, Crew], more: dict[str, Any], said: str
) -> None:
    outcome, why = answered(question(tmp_path, **more), devices)
    assert outcome == "failed"
    assert said in why


def test_questions_are_answered_in_order_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IDLE_S", 0.5)
    asked, replies = [question(tmp_path, n) for n in (1000, 33, 1000)], io.StringIO()
    reading, writing = os.pipe()
    os.write(writing, "".join(json.dumps(each) + "\n" for each in asked).encode())
    with os.fdopen(reading, "rb", buffering=0) as lines:
        serve(lines, replies)
    os.close(writing)
    told = [json.loads(line) for line in replies.getvalue().splitlines()]
    outcomes = [(each["id"], each["outcome"]) for each in told]
    assert outcomes == [(1000, "measured"), (33, "measured"), (1000, "known")]

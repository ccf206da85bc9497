"""What the process that measures answers: measured, known, busy or failed; on the fake device."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST_S, TOY, database, write_device

from tuner import lookup
from tuner.declare import catalogue
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


def test_a_problem_is_measured_once_by_whichever_process_comes_first(
    tmp_path: Path, devices: dict[str, Crew]
) -> None:
    asked = question(tmp_path)
    assert answered(asked, devices) == ("measured", "")
    other: dict[str, Crew] = {}
    assert answered(asked, other) == ("known", "")
    close_all(other)
    with Store.open(database(tmp_path), read_only=True) as store:
        assert len(store.champions(operation="toy")) == 1
        assert len({each.session for each in store.records()}) == 1


def test_a_device_that_stays_in_use_is_told(tmp_path: Path, devices: dict[str, Crew]) -> None:
    asked = question(tmp_path)
    with device_lock(find(asked["device"]).info, "another test"):
        outcome, why = answered(asked, devices)
    assert outcome == "busy"
    assert "another test" in why


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"db": "sqlite:////nowhere/studies.db"}, "nowhere"),
        ({"device": "fake:none.json"}, "none.json"),
        ({"problem": {"operation": "none"}}, "none"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_remedy(
    tmp_path: Path, devices: dict[str, Crew], more: dict[str, Any], said: str
) -> None:
    outcome, why = answered(question(tmp_path, **more), devices)
    assert outcome == "failed"
    assert said in why


def test_questions_are_answered_in_order_until_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

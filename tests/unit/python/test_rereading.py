"""Running callables hear of a rollback."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fixtures.callable_records import crowned

from tuner.python.decisions import Rereading
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study import crowns

DIMS = {"m": 64, "n": 64, "k": 64}
pytestmark = pytest.mark.usefixtures("own_records")


def go_back(problem: ProblemKey) -> None:
    with Store.open(os.environ["TUNER_DB"]) as store:
        crowns.rollback(store, crowns.reign(store, problem), "slower", "me")


def test_what_was_prepared_is_forgotten_after_a_rollback_of_a_database_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    forgotten: list[None] = []
    looking = Rereading(every_s=0.05)
    looking.forget = lambda: forgotten.append(None)
    monkeypatch.setenv("TUNER_DB", "sqlite:///studies.db")
    crowned("gemm", DIMS, config={"TRANSPOSE_B": False}, time_s=2e-3)
    looking.begin()
    champion = crowned("gemm", DIMS, config={"TRANSPOSE_B": True}, time_s=1e-3)
    looking.look()
    assert not forgotten
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{here}/studies.db")
    go_back(champion.record.problem)
    monkeypatch.delenv("TUNER_DB")
    until_s = time.monotonic() + 20
    while not forgotten and time.monotonic() < until_s:
        time.sleep(0.02)
    looking.look()
    assert len(forgotten) == 1

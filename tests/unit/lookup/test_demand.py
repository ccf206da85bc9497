"""Demand is counted in memory and written beside the caller; where that fails it is kept for later."""

import importlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tuner
from tuner.declare.catalogue import builtin
from tuner.lookup import demand
from tuner.lookup.demand import Demand
from tuner.results.record import Wanted
from tuner.store import Store
from tuner.store.watched import demand as read

pytestmark = pytest.mark.usefixtures("own_records")
GEMM = builtin().operation("gemm")


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Demand]:
    """Counts of this test alone, written when it says so."""
    own = Demand()
    monkeypatch.setattr(demand, "WRITE_S", 3600.0)
    for module in ("tuner.python.calls", "tuner.lookup", "tuner.lookup.demand"):
        monkeypatch.setattr(importlib.import_module(module), "DEMAND", own)
    tuner.clear_caches()
    yield own
    tuner.clear_caches()


def stored() -> list[Wanted]:
    with Store.open(os.environ["TUNER_DB"], read_only=True) as store:
        return read(store)


def operands(m: int = 12, n: int = 7, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((m, k), np.float32), np.ones((k, n), np.float32)


def test_calls_without_an_exact_answer_are_counted_and_added_up(counts: Demand) -> None:
    a, b = operands()
    for _ in range(5):
        tuner.matmul(a, b)
    assert stored() == []
    assert counts.flush()
    tuner.matmul(a, b)
    tuner.matmul(a, b, out=np.empty((12, 7), np.float32))
    assert counts.flush()
    assert counts.flush()  # nothing is new
    (only,) = stored()
    assert only.problem.dims == {"m": 12, "n": 7, "k": 5}
    assert (only.kind, only.calls) == ("cpu", 7)
    assert only.saves_s > 0


def test_questions_to_best_are_counted_once_each(counts: Demand) -> None:
    for _ in range(3):
        tuner.best("gemm 640 640 640 float32 nt", "cpu")
    counts.flush()
    (only,) = stored()
    assert (only.problem.layout, only.calls) == ("nt", 3)


def test_it_can_be_switched_off(counts: Demand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DEMAND", "0")
    tuner.matmul(*operands())
    tuner.best("gemm 640 640 640 float32 nt", "cpu")
    counts.flush()
    assert stored() == []


def test_a_database_that_is_locked_gets_the_counts_later(counts: Demand) -> None:
    tuner.matmul(*operands())
    with sqlite3.connect(os.environ["TUNER_DB"].removeprefix("sqlite:///")) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not counts.flush(patience_s=0.05)
    other.close()
    assert counts.flush()
    assert [each.calls for each in stored()] == [1]


def test_counts_make_no_database(counts: Demand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/none.db")
    tuner.clear_caches()
    tuner.matmul(*operands())
    assert not counts.flush()
    assert not (tmp_path / "none.db").exists()


def test_the_end_of_a_process_writes_what_it_counted() -> None:
    program = "import numpy, tuner\ntuner.transpose(numpy.ones((9, 3), 'float32'))"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    assert [(each.problem.operation, each.calls) for each in stored()] == [("transpose", 1)]

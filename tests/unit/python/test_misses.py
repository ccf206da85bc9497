"""What happens at a problem that nobody tuned: library, prediction, or a measurement beside the calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned, declared, empty_database, own_records, ran
from fixtures.fake_gpu import CupyArray, Log, install, on_gpu

import tuner
from tuner.declare.space import Config
from tuner.errors import InputError, UnknownName
from tuner.lookup.answers import Answer, Loss, Predicted
from tuner.python import CallableWarning, arrays, calls, measuring, policy
from tuner.python.decisions import decide
from tuner.python.measuring import PendingMeasurement
from tuner.results.record import ProblemKey

__all__ = ["empty_database", "own_records", "ran"]
pytestmark = pytest.mark.usefixtures("own_records", "no_policy")
DIMS = {"m": 12, "n": 7, "k": 5}


@pytest.fixture
def no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_own", [None])


def operands() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((12, 5)).astype("float32"), rng.standard_normal((5, 7)).astype("float32")


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems without a champion are answered by a prediction that a kernel is faster."""

    def predicting(key: ProblemKey, device: Any) -> Any:
        found = decide(key, device)
        if found.answer is not None and found.answer.match == "exact":
            return found
        kernel = declared(key.operation, "cpu", "blocked")
        config = Config(kernel.default_config() or {})
        told = Answer(
            None, "predicted", Loss(0.1), predicted=Predicted(1e-6, 2e-6, None), default=("blocked", config)
        )
        return replace(found, answer=told, kernel=kernel, config=config, saves_s=1e-6, why="predicted")

    monkeypatch.setattr(calls, "decide", predicting)


@dataclass
class Bench:
    """Stands for the process that measures.

    Attributes:
        asked: What it was asked, in order.
        effect: Called before an answer.
        outcome: How it ends.
        at_once: True to answer at once, in another thread.
    """

    asked: list[PendingMeasurement] = field(default_factory=list)
    effect: Callable[[], object] = lambda: None
    outcome: tuple[str, str] = ("measured", "")
    at_once: bool = True
    known: dict[Any, PendingMeasurement] = field(default_factory=dict)

    def ask(
        self, problem: ProblemKey, device: str, seconds: float, changed: Callable[[], None]
    ) -> PendingMeasurement:
        if (problem, device) in self.known:
            return self.known[problem, device]
        new = self.known[problem, device] = PendingMeasurement(problem, device, seconds, changed)
        self.asked.append(new)
        if self.at_once:
            threading.Thread(target=self.answer).start()
        return new

    def answer(self) -> None:
        self.effect()
        self.asked[-1].end(self.outcome)

    def forget(self) -> None:
        self.known = {key: pending for key, pending in self.known.items() if not pending.done()}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    played = Bench(effect=lambda: crowned("gemm", DIMS, layout="nn"))
    monkeypatch.setattr(measuring, "PROCESS", played)
    return played


@pytest.mark.usefixtures("predicted")
def test_a_prediction_runs_unless_the_policy_is_the_library(ran: list[str]) -> None:
    a, b = operands()
    with tuner.on_miss("library"):
        np.testing.assert_array_equal(tuner.matmul(a, b), a @ b)
        assert tuner.explain(a, b).use == "NumPy"
        assert "the policy is 'library'" in tuner.explain(a, b).why
    assert ran == []
    np.testing.assert_allclose(tuner.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert ran == ["blocked"]
    with tuner.on_miss("library"):
        np.testing.assert_array_equal(tuner.matmul(a, b), a @ b)
    assert ran == ["blocked"]


@pytest.mark.usefixtures("predicted")
def test_a_policy_that_is_set_holds_for_calls_that_are_prepared_already(ran: list[str]) -> None:
    a, b = operands()
    tuner.matmul(a, b)
    tuner.on_miss("library")
    np.testing.assert_array_equal(tuner.matmul(a, b), a @ b)
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(tuner.explain(a, b).use))
    thread.start()
    thread.join()
    assert other == ["NumPy"]  # for the whole process
    tuner.on_miss("predict")
    assert tuner.explain(a, b).use == "kernel"


@pytest.mark.usefixtures("predicted")
def test_a_block_holds_in_its_own_thread_and_ends() -> None:
    a, b = operands()
    used: list[str] = []
    with tuner.on_miss("library"):
        thread = threading.Thread(target=lambda: used.append(tuner.explain(a, b).use))
        thread.start()
        thread.join()
        with tuner.on_miss("predict"):
            used.append(tuner.explain(a, b).use)
        used.append(tuner.explain(a, b).use)
    used.append(tuner.explain(a, b).use)
    assert used == ["kernel", "kernel", "NumPy", "kernel"]


def test_a_champion_runs_whatever_the_policy(ran: list[str], bench: Bench) -> None:
    crowned("gemm", DIMS, layout="nn")
    a, b = operands()
    for how in ("library", "measure"):
        with tuner.on_miss(how, wait=True):
            tuner.matmul(a, b)
        tuner.clear_caches()
    assert ran == ["blocked", "blocked"]
    assert bench.asked == []


def test_the_environment_says_what_holds_and_mistakes_are_told() -> None:
    program = "import numpy as n, tuner as t; a = n.ones((4, 4)); t.matmul(a, a); print(t.explain(a, a).use)"
    for name, said in (("library", "NumPy"), ("best", "policy in TUNER_ON_MISS 'best'")):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False,
            env={**os.environ, "TUNER_ON_MISS": name},
        )  # fmt: skip
        assert said in done.stdout + done.stderr
    with pytest.raises(UnknownName, match="policy 'best'"):
        tuner.on_miss("best")
    with pytest.raises(InputError, match="seconds are a number above 0, got -1"):
        tuner.on_miss("measure", seconds=-1)


def test_waiting_runs_what_was_measured(ran: list[str], bench: Bench) -> None:
    a, b = operands()
    with tuner.on_miss("measure", seconds=3, wait=True):
        tuner.matmul(a, b)
        tuner.matmul(a, b)
    assert ran == ["blocked"]
    (only,) = bench.asked
    assert (only.problem.dims, only.device, only.seconds) == (DIMS, "cpu", 3.0)
    assert tuner.explain(a, b).match == "exact"


def test_calls_go_on_until_it_is_measured_and_then_run_it(ran: list[str], bench: Bench) -> None:
    bench.at_once = False
    a, b = operands()
    with tuner.on_miss("measure"):
        for _ in range(3):
            np.testing.assert_array_equal(tuner.matmul(a, b), a @ b)
        assert (ran, len(bench.asked)) == ([], 1)
        bench.answer()
        np.testing.assert_allclose(tuner.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert ran == ["blocked"]
    tuner.matmul(a, b)  # outside of the block as well
    assert len(bench.asked) == 1


def test_what_cannot_be_measured_is_told_once_and_the_safe_answer_stays(bench: Bench) -> None:
    bench.effect, bench.outcome = lambda: None, ("failed", "it is read-only and has to be written")
    a, b = operands()
    tuner.on_miss("measure", wait=True)
    with pytest.warns(CallableWarning, match="could not be measured at its first use.*read-only"):
        np.testing.assert_array_equal(tuner.matmul(a, b), a @ b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuner.matmul(a, b)
        tuner.matmul(a, b, out=np.empty((12, 7), np.float32))
    assert len(bench.asked) == 1
    tuner.clear_caches()
    with pytest.warns(CallableWarning, match="could not be measured"):
        tuner.matmul(a, b)
    assert len(bench.asked) == 2


def test_nothing_happens_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    gpu: Log = install(monkeypatch)
    a, b = (CupyArray(on_gpu(each)) for each in operands())
    family = arrays.family_of(a)
    capturing = True
    monkeypatch.setattr(type(family), "capturing", lambda self, array: capturing)
    tuner.on_miss("measure")
    bench.at_once = False
    tuner.matmul(a, b)
    assert bench.asked == []
    tuner.clear_caches()
    capturing = False
    tuner.matmul(a, b)
    assert len(bench.asked) == 1
    before, capturing = list(gpu.loaded), True
    bench.effect = lambda: crowned(
        "gemm", DIMS, layout="nn", kernel="tiled", device=calls.device_info("cuda:0")
    )
    bench.answer()
    tuner.matmul(a, b)
    assert gpu.loaded == before  # what ran before still runs, as nothing may be loaded now
    capturing = False
    tuner.matmul(a, b)
    assert len(gpu.loaded) == len(before) + 1

"""What happens at a problem that nobody tuned: library, prediction, or a measurement beside the calls."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned, declared
from fixtures.fake_device import ROOT
from fixtures.fake_gpu import CupyArray, Log, on_gpu
from fixtures.operands import close, normal

import tuner
from tuner.declare.space import Config
from tuner.errors import InputError, UnknownName
from tuner.lookup.answers import Answer, Loss, Predicted
from tuner.python import CallableWarning, arrays, decisions, misses
from tuner.python.decisions import decide
from tuner.python.misses import MeasuringProcess
from tuner.results.record import ProblemKey
from tuner.store import Store

pytestmark = pytest.mark.usefixtures("own_records", "no_policy")
DIMS = {"m": 12, "n": 7, "k": 5}
A, B = normal(12, 5), normal(5, 7)


@pytest.fixture
def no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "_own", [None])


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems without a champion are answered by a prediction that a kernel is faster."""
    kernel = declared("gemm", "cpu", "blocked")
    config = Config(kernel.default_config() or {})
    faster = Predicted(1e-6, 2e-6, None)
    answer = Answer(None, "predicted", Loss(0.1), predicted=faster, default=("blocked", config))

    def predicting(key: Any, device: Any) -> Any:
        return replace(decide(key, device), answer=answer, kernel=kernel, config=config, saves_s=1e-6)

    monkeypatch.setattr(decisions, "decide", predicting)


class Bench(MeasuringProcess):
    """Stands for the process that measures; it answers once `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Any] = []
        self.effect: Callable[[], object] = lambda: crowned("gemm", DIMS)
        self.outcome, self.gate = ("measured", ""), threading.Event()
        self.gate.set()

    def ask(self, *asked: Any) -> Any:
        pending = super().ask(*asked)
        if pending not in self.pending:
            self.pending.append(pending)
        return pending

    def _answer(self, question: str) -> tuple[str, str]:
        self.question = json.loads(question)
        self.gate.wait()
        self.effect()
        return self.outcome

    def finish(self) -> None:
        self.gate.set()
        self.pending[-1].result(60)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    played = Bench()
    monkeypatch.setattr(misses, "PROCESS", played)
    return played


def elsewhere() -> str:
    """What runs in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: tuner.explain(A, B).use).result()


@pytest.mark.usefixtures("predicted")
def test_a_policy_holds_for_its_block_and_thread_or_the_process_for_prepared_calls_too(ran: list[str]) -> None:
    with tuner.on_miss("library"):
        close(tuner.matmul(A, B), A @ B)
        assert (tuner.explain(A, B).use, elsewhere()) == ("NumPy", "kernel")
        assert "the policy is 'library'" in tuner.explain(A, B).why
        with tuner.on_miss("predict"):
            assert tuner.explain(A, B).use == "kernel"
    assert ran == []
    close(tuner.matmul(A, B), A @ B)
    assert ran == ["blocked"]
    tuner.on_miss("library")
    np.testing.assert_array_equal(tuner.matmul(A, B), A @ B)
    assert (tuner.explain(A, B).use, elsewhere()) == ("NumPy", "NumPy")
    tuner.on_miss("predict")
    assert tuner.explain(A, B).use == "kernel"


def test_the_environment_says_what_holds_and_mistakes_are_told() -> None:
    program = (
        "import numpy as n, tuner as t; a = n.ones((4, 4), 'f'); t.matmul(a, a);"
        "print(t.explain('gemm', m=8, n=8, k=8, device='NVIDIA H200').problem)"
    )
    for name, said in (("library", "gemm 8 x 8 x 8 float32 nn emulated\n"), ("best", "TUNER_ON_MISS 'best'")):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False,
            env={**os.environ, "TUNER_ON_MISS": name, "TUNER_PRECISION": "emulated"},
        )  # fmt: skip
        assert said in done.stdout + done.stderr
    with pytest.raises(UnknownName, match="policy 'best'"):
        tuner.on_miss("best")
    with pytest.raises(InputError, match="seconds are a number above 0, got -1"):
        tuner.on_miss("measure", seconds=-1)


def test_waiting_runs_what_was_measured(ran: list[str], bench: Bench) -> None:
    with tuner.on_miss("measure", seconds=3, wait=True):
        tuner.matmul(A, B)
        tuner.matmul(A, B)
    assert ran == ["blocked"]
    assert len(bench.pending) == 1
    question = bench.question
    assert (question["problem"]["shape"], question["device"], question["seconds"]) == (DIMS, "cpu", 3.0)
    assert tuner.explain(A, B).match == "exact"


def test_the_librarys_bits_are_kept_by_measured_kernels_or_the_library(ran: list[str], bench: Bench) -> None:
    bench.effect = lambda: crowned("gemm", DIMS, bits="0123456789ab")
    with tuner.on_miss("measure", wait=True, bits="library"):
        tuner.matmul(A, B)
    assert (bench.question["bits"], ran) == ("library", ["blocked"])
    for own, kernels in (("0123456789ab", ["blocked"]), ("ba9876543210", [])):
        crowned("gemm", DIMS, bits=own, library_bits="0123456789ab")
        tuner.clear_caches()
        ran.clear()
        close(tuner.matmul(A, B, bits="library"), A @ B)
        assert ran == kernels
        tuner.matmul(A, B)
        assert ran == [*kernels, "blocked"]
    with pytest.raises(UnknownName, match="class of bits 'keep'"):
        tuner.on_miss("measure", bits="keep")


@pytest.mark.usefixtures("predicted")
def test_a_kernel_of_unknown_bits_does_not_run_where_the_librarys_are_kept(ran: list[str]) -> None:
    with tuner.on_miss("predict", bits="library"):
        np.testing.assert_array_equal(tuner.matmul(A, B), A @ B)
        assert "to give the bits of NumPy" in tuner.explain(A, B).why
    assert ran == []


def test_calls_go_on_until_it_is_measured_and_then_run_it(ran: list[str], bench: Bench) -> None:
    bench.gate.clear()
    with tuner.on_miss("measure"):
        for _ in range(3):
            np.testing.assert_array_equal(tuner.matmul(A, B), A @ B)
        assert (ran, len(bench.pending)) == ([], 1)
        bench.finish()
        close(tuner.matmul(A, B), A @ B)
    assert ran == ["blocked"]
    tuner.matmul(A, B)  # outside of the block as well
    assert len(bench.pending) == 1


def test_what_cannot_be_measured_is_told_once_and_the_safe_answer_stays(bench: Bench) -> None:
    bench.effect, bench.outcome = lambda: None, ("failed", "it is read-only and has to be written")
    tuner.on_miss("measure", wait=True)
    for _ in range(2):
        with pytest.warns(CallableWarning, match="could not be measured at its first use.*read-only"):
            np.testing.assert_array_equal(tuner.matmul(A, B), A @ B)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tuner.matmul(A, B, out=np.empty((12, 7), np.float32))
        tuner.clear_caches()
    assert len(bench.pending) == 2


def test_nothing_happens_during_a_capture(monkeypatch: pytest.MonkeyPatch, gpu: Log, bench: Bench) -> None:
    a, b = CupyArray(on_gpu(A)), CupyArray(on_gpu(B))
    capturing = [True]
    monkeypatch.setattr(type(arrays.family_of(a)), "capturing", lambda self, array: capturing[0])
    tuner.on_miss("measure")
    bench.gate.clear()
    tuner.matmul(a, b)
    assert bench.pending == []
    tuner.clear_caches()
    capturing[0] = False
    tuner.matmul(a, b)
    before, capturing[0], h200 = list(gpu.loaded), True, decisions.device_info("cuda:0")
    bench.effect = lambda: crowned("gemm", DIMS, layout="nn", kernel="tiled", device=h200)
    bench.finish()
    tuner.matmul(a, b)
    assert gpu.loaded == before  # what ran before still runs, as nothing may be loaded now
    capturing[0] = False
    tuner.matmul(a, b)
    assert len(gpu.loaded) == len(before) + 1


#: Answers a question as its n says, like the real one: a line for a line.
PLAYED = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    n = asked["problem"]["shape"]["n"]
    if n == 13:
        os._exit(3)
    print(json.dumps({"id": asked["id"], "outcome": "measured", "why": f"{n} {asked['db']}"}), flush=True)
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, here: Path) -> Iterator[MeasuringProcess]:
    (here / "played.py").write_text(PLAYED)

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "played.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here
        )

    monkeypatch.setattr(misses, "_started", started)
    own = MeasuringProcess()
    yield own
    own.release()


def ask(process: MeasuringProcess, n: int) -> Any:
    key = ProblemKey("transpose", (("m", 1), ("n", n)), "float32", "")
    return process.ask(key, "cpu", 1.0, lambda: None)


def test_a_process_that_dies_or_cannot_be_started_fails_what_it_was_asked_and_is_replaced(
    process: MeasuringProcess, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> subprocess.Popen[str]:
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(misses, "_started", none)
        why = "the process that measures cannot be started: no more processes"
        assert ask(process, 1).result(60) == ("failed", why)
    assert ask(process, 13).result(60) == ("failed", "the process that measures ended with exit code 3")
    # The database is that which answers, whatever folder the process is in later.
    monkeypatch.setenv("TUNER_DB", "sqlite:///mine.db")
    asked = ask(process, 9)
    assert ask(process, 9) is asked, "a question is asked once"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert asked.result(60) == ("measured", f"9 sqlite:///{here}/mine.db")


PROGRAM = """
import sys, numpy, tuner
tuner.on_miss("measure", seconds=0.2, wait=sys.argv[1] == "wait")
a = numpy.ones((64, 48), "float32")
tuner.transpose(a)
print(tuner.explain(a).match)
"""


def run(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, how], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_program_that_ends_does_not_wait_and_nothing_of_it_is_lost() -> None:
    """Two processes ask at once: one measures, both find the result, and the first does not wait for it."""
    left, waiting = run("go on"), run("wait")
    out, error = left.communicate(timeout=60)
    assert (left.returncode, error) == (0, "")
    assert out.strip() != "exact"
    out, error = waiting.communicate(timeout=120)
    assert (waiting.returncode, out.strip(), error) == (0, "exact", "")
    with Store.open(os.environ["TUNER_DB"], read_only=True) as store:
        [champion] = store.champions(operation="transpose")
        assert len({record.session for record in store.records()}) == 1
    assert champion.record.problem.dims == {"m": 64, "n": 48}

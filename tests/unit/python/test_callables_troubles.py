"""Callables in trouble and in company: wrong operands, threads, processes, broken databases, rollbacks."""

import json
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.operands import close, normal

import tuner
from tuner.devices.cpu import numba
from tuner.python import running
from tuner.python.decisions import Rereading
from tuner.store import Store
from tuner.study import crowns

pytestmark = pytest.mark.usefixtures("own_records")
A, B, X = normal(3, 4), normal(5, 6), normal(7)
FIXED = np.empty((3, 3), np.float32)
FIXED.flags.writeable = False


@pytest.mark.parametrize(("function", "arrays", "out", "kind", "words"), [
    (tuner.matmul, (A, B), None, ValueError, r"core dimensions .* got \(3, 4\) and \(5, 6\)"),
    (tuner.gemv, (A, X), None, ValueError, r"\(m, n\) and \(n,\), .* got"),
    (tuner.gemv, (A, A.T), None, ValueError, r"got \(3, 4\) and \(4, 3\)"),
    (tuner.matmul, (A, A.T), B, ValueError, r"shape of the result, \(3, 3\)"),
    (tuner.matmul, (A, A.T), FIXED, ValueError, "read-only"),
    (tuner.matmul, (A, "b"), None, TypeError, "b is an array.*got str"),
    (tuner.transpose, (None,), None, TypeError, "a is an array.*got NoneType"),
    (tuner.matmul, (A, A.T), np.empty((3, 3), np.int32), TypeError, "cannot cast|Cannot cast"),
])  # fmt: skip
def test_mistakes_are_told(function: Any, arrays: Any, out: Any, kind: type[Exception], words: str) -> None:
    for _ in range(2):  # an error is not remembered
        with pytest.raises(kind, match=words):
            function(*arrays, out=out)


def test_many_threads_get_what_one_gets(ran: list[str]) -> None:
    cases = [(normal(m, 20), normal(20, 12)) for m in (16, 17)]
    for m in (16, 17):
        crowned("gemm", {"m": m, "n": 12, "k": 20}, config={"BLOCK": 16, "THREADS": 2})

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, len(cases), 50):
            a, b = cases[place]
            close(tuner.matmul(a, b), a @ b)
            close(tuner.matmul(a, b, out=np.empty_like(a @ b)), a @ b)

    with ThreadPoolExecutor(8) as threads:
        running = list(map(threads.submit, [work] * 8, range(8)))
        tuner.clear_caches()
        for thread in running:
            thread.result()
    assert set(ran) == {"blocked"}


def test_a_problem_is_looked_up_once_until_caches_are_cleared(ran: list[str]) -> None:
    a, b = normal(4, 6), normal(6, 5)
    tuner.matmul(a, b)
    crowned("gemm", {"m": 4, "n": 5, "k": 6})
    tuner.matmul(a, b)
    assert ran == []
    tuner.clear_caches()
    for _ in range(2):
        tuner.matmul(a, b)
    assert ran == ["blocked"]


def test_a_broken_database_is_said_once_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "studies.db").write_bytes(b"rubbish" * 1000)
    a, b = normal(4, 6), normal(6, 5)
    with pytest.warns(tuner.python.CallableWarning, match="are left out"):
        close(tuner.matmul(a, b), a @ b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(tuner.matmul(a[:3], b), a[:3] @ b)


def test_a_forked_process_opens_the_database_itself(ran: list[str]) -> None:
    for m in (5, 6):
        crowned("gemm", {"m": m, "n": 4, "k": 3})
    a, b = normal(6, 3), normal(3, 4)
    tuner.matmul(a[:5], b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads are asleep
        child = os.fork()
    if child == 0:
        right = np.allclose(tuner.matmul(a, b), a @ b, rtol=1e-4) and ran == ["blocked"] * 2
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_whose_kernel_does_not_compile_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the cache folder is full")

    monkeypatch.setattr(numba, "ready", fails)
    monkeypatch.setattr(running, "_ENTRIES", {})
    crowned("gemm", {"m": 4, "n": 5, "k": 6})
    a, b = normal(4, 6), normal(6, 5)
    with pytest.warns(tuner.python.CallableWarning, match="cache folder is full"):
        close(tuner.matmul(a, b), a @ b)
    close(tuner.matmul(a, b), a @ b)


def test_the_package_loads_callables_at_first_use_only() -> None:
    code = (
        "import sys, tuner; before = set(sys.modules); assert 'numpy' not in before;"
        "tuner.matmul; import json; print(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numba", "cupy", "sqlalchemy", "optuna"} & set(json.loads(done.stdout))
    assert {"matmul", "gemv", "transpose", "explain", "clear_caches"} <= set(dir(tuner))


def test_what_was_prepared_is_forgotten_after_a_rollback(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    forgotten = threading.Event()
    looking = Rereading(every_s=0.05)
    looking.forget = forgotten.set
    monkeypatch.setenv("TUNER_DB", "sqlite:///studies.db")
    dims = {"m": 64, "n": 64, "k": 64}
    crowned("gemm", dims, config={"TRANSPOSE_B": False}, time_s=2e-3)
    looking.begin()
    champion = crowned("gemm", dims, config={"TRANSPOSE_B": True}, time_s=1e-3)
    looking.look()
    assert not forgotten.is_set()
    with Store.open("sqlite:///studies.db") as store:
        crowns.rollback(store, crowns.reign(store, champion.record.problem), "slower", "me")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert forgotten.wait(20)

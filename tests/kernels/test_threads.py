"""The threads of the CPU kernels: they share work, sleep, end, and hand failures on."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from types import ModuleType

import pytest

from tuner.catalogue import kernels_folder


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("threads_under_test", kernels_folder() / "threads.numba.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    return module


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kernel"]


def wait_until(condition, limit_s: float = 10.0) -> None:  # noqa: ANN001
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_parts_run_at_the_same_time_and_threads_are_used_again(threads: ModuleType) -> None:
    before = len(ours())
    for _ in range(5):
        together = threading.Barrier(3, timeout=10)
        threads.run_together(together.wait, [(), (), ()])
    assert len(ours()) - before <= 2
    wait_until(lambda: len(ours()) == before)
    threads.run_together(threading.Barrier(2, timeout=10).wait, [(), ()])


def test_callers_do_not_disturb_each_other(threads: ModuleType) -> None:
    sums = [[0] * 4 for _ in range(6)]

    def put(row: list[int], at: int) -> None:
        row[at] = at + 1

    def call(row: list[int]) -> None:
        for _ in range(20):
            threads.run_together(put, [(row, at) for at in range(4)])

    callers = [threading.Thread(target=call, args=(row,)) for row in sums]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    assert sums == [[1, 2, 3, 4]] * 6


@pytest.mark.parametrize("bad", [0, 2])
def test_a_failure_is_raised_after_every_part_has_ended(threads: ModuleType, bad: int) -> None:
    ended = []

    def part(number: int) -> None:
        if number == bad:
            raise ValueError(f"part {number}")
        time.sleep(0.02)
        ended.append(number)

    with pytest.raises(ValueError, match=f"part {bad}"):
        threads.run_together(part, [(0,), (1,), (2,), (3,)])
    assert sorted(ended) == [number for number in range(4) if number != bad]


def test_waiting_threads_use_no_processor_time(threads: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 5.0)
    threads.run_together(threading.Barrier(4, timeout=10).wait, [()] * 4)
    started = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - started < 0.25  # three that spin would use well over that


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_starts_threads_of_its_own(threads: ModuleType) -> None:
    threads.run_together(threading.Barrier(2, timeout=10).wait, [(), ()])
    child = os.fork()
    if child == 0:
        try:
            threads.run_together(threading.Barrier(2, timeout=10).wait, [(), ()])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""Worker processes: asked, given a time limit, killed; what they die of is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import write_device

from tuner.errors import DeviceTrouble, InputError
from tuner.workers.process import Worker, WorkerFailed

Start = Callable[[str, str], Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers that do not outlive the test."""
    workers: list[Worker] = []

    def started(role: str, spec: str) -> Worker:
        workers.append(Worker(role, spec, {"TUNER_TEST": "seen"}))
        return workers[-1]

    yield started
    for worker in workers:
        worker.close()


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", faults=True)


def test_a_device_worker_answers_until_it_is_closed(start: Start, spec: str) -> None:
    worker = start("device", spec)
    hello = worker.ask({"do": "hello"})
    assert hello["info"]["name"] == "Fake board"
    assert hello["free_bytes"] == 1 << 34
    assert worker.ask({"do": "canary"})["unwell"] == ""
    assert not worker.busy
    # What no study asks comes back as trouble, and the worker lives on.
    with pytest.raises(DeviceTrouble, match="prepare comes first"):
        worker.ask({"do": "baseline"})
    named = {"operation": "nothing", "shape": {}, "dtype": "", "layout": "", "origin": ""}
    with pytest.raises(InputError, match="unknown operation 'nothing'"):
        worker.ask({"do": "prepare", "problem": named})
    assert worker.ask({"do": "canary"})["unwell"] == ""
    child = psutil.Process(worker.pid)
    assert child.environ()["TUNER_TEST"] == "seen"
    assert os.getsid(worker.pid) == worker.pid != os.getsid(0)
    # Ctrl-C is for the study only.
    os.kill(worker.pid, signal.SIGINT)
    assert worker.ask({"do": "canary"})["unwell"] == ""
    worker.close()
    assert not child.is_running()
    with pytest.raises(WorkerFailed, match="signal SIGKILL"):
        worker.request({"do": "canary"})


def test_a_killed_worker_is_told_with_its_signal(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerFailed, match="the worker died with signal SIGTERM") as caught:
        worker.ask({"do": "hello"})
    assert not caught.value.timed_out


def test_a_worker_that_takes_too_long_is_killed_in_time(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    os.kill(worker.pid, signal.SIGSTOP)
    child, begun_s = psutil.Process(worker.pid), time.monotonic()
    assert not worker.overdue()
    with pytest.raises(WorkerFailed, match="did not answer in time") as caught:
        worker.ask({"do": "hello"}, limit_s=0.2)
    assert caught.value.timed_out
    assert time.monotonic() - begun_s < 30
    assert not child.is_running()


def test_what_a_dying_worker_wrote_is_part_of_the_reason(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    with pytest.raises(WorkerFailed, match=r"(?s)the worker died with exit code 1: .*KeyError: 'do'"):
        worker.ask({"no": "request"})

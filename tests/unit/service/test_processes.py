"""Processes of jobs are found by whoever comes after the server that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.server import eventually

from tuner.service.supervisor import JobProcess
from tuner.study.job_files import VARIABLE

SLEEP = "import time; time.sleep(60)"
#: Starts such a process and stays, as a job's process does that has workers.
WITH_A_WORKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts a process as a job's, which says nothing of itself."""
    running: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, text: str = SLEEP) -> subprocess.Popen[bytes]:
        environment = os.environ | {VARIABLE: str(folder)}
        running.append(subprocess.Popen([sys.executable, "-c", text], env=environment, start_new_session=True))
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.wait(10)


@pytest.fixture
def process(tmp_path: Path) -> JobProcess:
    (tmp_path / "a job").mkdir()
    return JobProcess("a job", tmp_path)


def test_a_process_is_found_before_it_has_named_itself(process: JobProcess, started: Start) -> None:
    assert not process.runs
    child = started(process.folder)
    assert process.runs
    process.stop()
    assert child.wait(10) != 0
    assert not process.runs
    assert process.exit_code() is None


def test_a_process_is_killed_with_its_workers(process: JobProcess, started: Start) -> None:
    child = started(process.folder, WITH_A_WORKER)
    (worker,) = eventually(psutil.Process(child.pid).children)
    process.kill()
    child.wait(10)
    eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_a_process_of_another_job_is_not_found(process: JobProcess, started: Start, tmp_path: Path) -> None:
    started(tmp_path / "another job")
    assert not process.runs

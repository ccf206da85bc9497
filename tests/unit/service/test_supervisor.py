"""The fair order of a queue, how long a job may take, and how its process is found, whoever started it."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fixtures.server import eventually
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices.detect import find
from tuner.service import stored_jobs as jobs
from tuner.service.pool import DevicePool, node
from tuner.service.supervisor import JobProcess, JobSupervisor, fair, seconds_left
from tuner.store import Store
from tuner.study import job_files
from tuner.study.progress import Progress, job_note

JOBS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)), max_size=40)
ASKED = {"kind": "plan", "what": "a plan", "plan": "", "files": [], "seconds": None}
#: Starts a process and stays, as a job's process does that has workers.
WITH_A_WORKER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


def queued(waiting: list[tuple[str, int]]) -> list[Any]:
    return [
        SimpleNamespace(submitter=name, priority=priority, number=number)
        for number, (name, priority) in enumerate(waiting, 1)
    ]


@given(JOBS, st.dictionaries(st.sampled_from("abcd"), st.sampled_from(("2026-01", "2026-02"))))
def test_submitters_take_turns_by_priority(waiting: list[tuple[str, int]], last: dict[str, str]) -> None:
    jobs = queued(waiting)
    order = fair(jobs, last)
    assert sorted(job.number for job in order) == [job.number for job in jobs]
    for name in "abcd":
        mine = [(-job.priority, job.number) for job in order if job.submitter == name]
        assert mine == sorted(mine)
    left = {name: sum(job.submitter == name for job in jobs) for name in "abcd"}
    while order:
        turn = [name for name in "abcd" if left[name]]
        assert sorted(job.submitter for job in order[: len(turn)]) == turn, "all who wait have a turn first"
        order = order[len(turn) :]
        left = {name: count - (name in turn) for name, count in left.items()}


def test_whoever_waited_longest_is_first() -> None:
    order = fair(queued([("a", 0), ("b", 0), ("c", 0)]), {"a": "2026-02", "b": "2026-01"})
    assert [job.submitter for job in order] == ["c", "b", "a"]


def job_of(progress: dict[str, Any], started_at: str = "", deadline: str = "", **asked: Any) -> Any:
    return SimpleNamespace(asked=ASKED | asked, progress=progress, started_at=started_at, deadline=deadline)


def test_a_job_that_is_started_again_has_the_seconds_that_are_left() -> None:
    assert seconds_left(job_of({}, seconds=600.0)) == 600
    assert seconds_left(job_of({"spent_s": 400.0, "elapsed_s": 20.0}, seconds=600.0)) == 200
    assert seconds_left(job_of({"spent_s": 4000.0}, seconds=600.0)) == 1, "enough for a report"
    assert seconds_left(job_of({"spent_s": 400.0})) is None
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert seconds_left(job_of({}, past, past)) == 1, "enough for a report"
    assert seconds_left(job_of({}, "", past)) < 0, "it was never started"


def test_what_a_command_tells_counts_earlier_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_JOB", str(tmp_path))
    monkeypatch.setenv("TUNER_JOB_SPENT_S", "100.0")
    monkeypatch.setattr(job_files, "BEGUN_S", time.monotonic() - 7.0)
    job_files.tell("another stage", lambda: job_note("gemm", Progress(stage="searching", elapsed_s=7.0)))
    assert json.loads((tmp_path / "progress").read_text())["spent_s"] == pytest.approx(107, abs=5)


def test_a_full_disk_lets_a_job_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    url, usage = f"sqlite:///{tmp_path}/studies.db", shutil.disk_usage(tmp_path)
    with Store.open(url) as store:
        supervisor = JobSupervisor(store, url, DevicePool({"cpu": find("cpu")}))
        columns = {"asked": ASKED, "node": node(), "submitter": "", "device": "cpu", "deadline": ""}
        job, _ = jobs.submit(store, "same", 0, **columns)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
        supervisor.look()
        waiting = jobs.job(store, job.id)
        assert (waiting.state, waiting.starts, waiting.why[:20]) == ("queued", 0, "it waits for 64 MiB ")
        supervisor.closing.close()


def test_a_process_is_found_by_its_job_and_killed_with_its_workers(tmp_path: Path) -> None:
    process, other = JobProcess("a job", tmp_path), JobProcess("another job", tmp_path)
    assert not process.runs
    environment = os.environ | {job_files.VARIABLE: str(process.folder)}
    child = subprocess.Popen([sys.executable, "-c", WITH_A_WORKER], env=environment, start_new_session=True)
    try:
        (worker,) = eventually(psutil.Process(child.pid).children)
        assert (process.runs, other.runs) == (True, False)
        process.kill()
        child.wait(10)
        eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
        assert not process.runs
    finally:
        child.kill()

"""The fair order of a queue, whatever is in it; and what a job's command is."""

import json
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices.detect import find
from tuner.errors import PlanError
from tuner.service import stored_jobs as jobs
from tuner.service.job_queue import check_bounds
from tuner.service.pool import DevicePool, node
from tuner.service.stored_jobs import Job
from tuner.service.supervisor import JobProcess, JobSupervisor, arguments, end_of, fair, seconds_left
from tuner.store import Store
from tuner.study import job_files
from tuner.study.progress import Progress, job_note

JOBS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)), max_size=40)


def queued(told: list[tuple[str, int]]) -> list[Job]:
    return [
        Job({}, str(number), "node", name, "cpu", priority, number=number)
        for number, (name, priority) in enumerate(told, 1)
    ]


@given(JOBS, st.dictionaries(st.sampled_from("abcd"), st.sampled_from(("2026-01", "2026-02"))))
def test_submitters_take_turns_and_priorities_hold_within_one(
    told: list[tuple[str, int]], last: dict[str, str]
) -> None:
    jobs = queued(told)
    order = fair(jobs, last)
    assert sorted(job.number for job in order) == [job.number for job in jobs]
    for name in "abcd":
        mine = [(-job.priority, job.number) for job in order if job.submitter == name]
        assert mine == sorted(mine)
    left = {name: sum(job.submitter == name for job in jobs) for name in "abcd"}
    while order:
        turn = [name for name in "abcd" if left[name]]
        taken = [job.submitter for job in order[: len(turn)]]
        assert sorted(taken) == turn, "everyone who waits has a turn before anyone has another"
        order = order[len(turn) :]
        left = {name: count - (name in turn) for name, count in left.items()}


def test_whoever_waited_longest_is_first() -> None:
    order = fair(queued([("a", 0), ("b", 0), ("c", 0)]), {"a": "2026-02", "b": "2026-01"})
    assert [job.submitter for job in order] == ["c", "b", "a"]


def plan_job(progress: dict[str, Any], started_at: str = "", deadline: str = "", **asked: Any) -> Job:
    told = {"kind": "plan", "plan": "x", "problems": 2, "files": [], "seconds": None, "trials": None, **asked}
    return Job(told, "", "", "", "cpu", progress=progress, started_at=started_at, deadline=deadline)


def test_a_job_that_is_started_again_has_the_seconds_that_are_left() -> None:
    for limit in ({"seconds": 600.0}, {"plan_seconds": 600.0}, {"seconds": 600.0, "plan_seconds": 9000.0}):
        assert seconds_left(plan_job({}, **limit)) == 600
        again = plan_job({"spent_s": 400.0, "elapsed_s": 20.0}, **limit)
        assert seconds_left(again) == 200
        assert "--seconds=200.000" in arguments(again, Path("/jobs"), DevicePool({}))
        assert seconds_left(plan_job({"spent_s": 4000.0}, **limit)) == 1, "enough for a report"
    assert seconds_left(plan_job({"spent_s": 400.0})) is None


def test_a_night_until_a_time_of_day_does_not_go_on_into_the_next_one() -> None:
    now = datetime.now().astimezone()
    ends = end_of(plan_job({}, until=f"{now + timedelta(hours=5):%H:%M}"))
    assert timedelta(hours=4.9) < datetime.fromisoformat(ends) - now <= timedelta(hours=5)
    past = (now - timedelta(hours=1)).isoformat()
    assert end_of(plan_job({}, deadline=past, until="12:00")) == past
    assert seconds_left(plan_job({}, past, past)) == 1, "enough for a report"
    assert seconds_left(plan_job({}, "", past)) < 0, "it was never started"


def test_what_a_command_tells_counts_the_processes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_JOB", str(tmp_path))
    monkeypatch.setenv("TUNER_JOB_SPENT_S", "100.0")
    monkeypatch.setattr(job_files, "BEGUN_S", time.monotonic() - 7.0)
    progress = Progress(stage="searching", elapsed_s=7.0)
    job_files.tell("another stage", lambda: job_note("gemm", progress))
    assert json.loads((tmp_path / "progress").read_text())["spent_s"] == pytest.approx(107, abs=5)


def test_no_value_of_a_job_is_taken_for_an_option() -> None:
    problem = {
        "operation": "gemm", "shape": {"m": 1, "n": 2, "k": 3}, "dtype": "--db", "layout": "-x",
        "precision": "", "regime": "cold", "kernels": ["--help"], "file": "",
    }  # fmt: skip
    asked = {"kind": "problem", "problem": problem, "seconds": None, "trials": 5}
    told = arguments(Job(asked, "", "", "", "cuda:0"), Path("/jobs"), DevicePool({}))
    assert told[:2] == ["tune", "gemm"]
    assert all(each.startswith("--") and ("=" in each or each == "--json") for each in told[2:])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a." * 100_000 + "a = 1", "has up to 2000 '.', got 100000"),
        ("#\n" + "a." * 50 + "a = 1", "a line of a plan has up to 40 dots"),
        ("seconds = " + "9" * 5000, "a number 20 digits"),
        ("[[problems]]\n" * 20_000, "has up to 2000 '\\['"),
        ("a = [" + "''," * 80_000 + "]", "has up to 10000 ','"),
    ],
)
def test_a_plan_is_bounded_before_it_is_parsed(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        check_bounds(text)


def test_a_full_disk_lets_a_job_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    url, usage = f"sqlite:///{tmp_path}/studies.db", shutil.disk_usage(tmp_path)
    with Store.open(url) as store:
        supervisor = JobSupervisor(store, url, DevicePool.of([find("cpu")]))
        job, _ = jobs.submit(store, Job(plan_job({}).asked, "", node(), "", "cpu"))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
        supervisor.look()
        waiting = jobs.job(store, job.id)
        assert (waiting.state, waiting.starts, waiting.why[:20]) == ("queued", 0, "it waits for 64 MiB ")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        monkeypatch.setattr(JobProcess, "start", mock.Mock(side_effect=OSError(28, "No space left on device")))
        supervisor.look()
        assert jobs.job(store, job.id).state == "queued"
        supervisor.closing.close()

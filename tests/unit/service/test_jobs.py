"""Jobs: submitted, followed, cancelled, kept whatever is killed; on a fleet; their queue and processes."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from fixtures.fake_device import LEGAL, ROOT, TOY, write_device
from fixtures.server import Server, eventually, serving, toy_database
from hypothesis import given
from hypothesis import strategies as st

from tuner.cli.main import run
from tuner.devices.detect import find
from tuner.results.record import Role
from tuner.service import stored_jobs as jobs
from tuner.service.pool import DevicePool, node
from tuner.service.supervisor import JobProcess, JobSupervisor, fair, seconds_left
from tuner.store import Store
from tuner.study import job_files
from tuner.study.progress import Progress, job_note

GEMM = {"problem": {"operation": "gemm", "dims": [8, 8, 8]}}
PLAN = """
[[problems]]
file = "{file}"
squares = [100, 200]
trials = 8
"""


@pytest.fixture(scope="module")
def spec(folder: Path) -> str:
    """A fake device on which a trial takes a while."""
    return write_device(folder / "device.json", baseline_s=1e-3)


@pytest.fixture(scope="module")
def db(folder: Path) -> str:
    return toy_database(folder)


@pytest.fixture(scope="module")
def server(folder: Path, spec: str, db: str) -> Iterator[Server]:
    with serving(db, folder, "--local-admin", "--device", spec) as running:
        yield running


def toy(n: int, **more: Any) -> dict[str, Any]:
    return {"problem": {"file": str(TOY), "dims": {"n": n}}, **more}


def ended(server: Server, job: str) -> dict[str, Any]:
    """The job, once it has ended."""
    keys: dict[str, Any] = eventually(lambda: (now := server.job(job))["ended_at"] and now)
    return keys


def events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    parsed = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        keys = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in keys:
            parsed.append((int(keys["id"]), keys["event"], json.loads(keys["data"])))
    return parsed


def test_a_problem_is_tuned_and_its_answer_served(server: Server) -> None:
    sent = server.post("/v1/jobs", json=toy(1000, trials=10))
    assert sent.status_code == 202, sent.text
    job = sent.json()["id"]
    assert sent.headers["location"] == f"/v1/jobs/{job}"
    with server.client() as client, client.stream("GET", f"/v1/jobs/{job}/events") as stream:
        told = events(stream.read().decode())
    assert [data["state"] for _, kind, data in told if kind == "state"] == ["queued", "running", "done"]
    assert any(kind == "progress" and data["trials"] for _, kind, data in told)
    over = ended(server, job)
    (problem,) = over["report"]["problems"]
    assert (over["what"], problem["operation"], problem["trials"]["total"]) == (
        "toy 1000 float32 plain", "toy", 10,
    )  # fmt: skip
    assert over["champion"] == problem["after"]
    numbers = [number for number, _, _ in told]
    later = httpx.get(
        f"{server.base}/v1/jobs/{job}/events", headers={"last-event-id": str(numbers[-2])}, timeout=60
    )
    assert [number for number, _, _ in events(later.text)] == numbers[-1:]
    asked = {"operation": "toy", "dims": "n=1000", "dtype": "float32", "layout": "plain"}
    record = over["champion"]["record_id"]
    # A new snapshot is made within seconds.
    eventually(lambda: server.get("/v1/best", **asked, device="Fake board").json().get("record_id") == record)


@pytest.mark.parametrize(("plan", "line", "key"), [
    (PLAN.format(file=TOY).replace("100", "-1"), 4, "problems.0.squares.0"),
    (PLAN.format(file="/etc/passwd"), 3, "problems.0.file"),
    (PLAN.format(file=TOY.name), 3, "problems.0.file"),
    (PLAN.format(file=TOY) + "[[surveys]]\noperation='gemm'\nshapes='x.toml'", 8, "surveys.0.shapes"),
    ("[[problems]\n", 1, ""),
    ("a = " + "[" * 5000, None, ""),
    ("a = [\n" * 5000, None, ""),
    ("a." * 100_000 + "a = 1", None, ""),
    ("#\n" + "a." * 50 + "a = 1", None, ""),
    ("seconds = " + "9" * 5000, None, ""),
    ("a = [" + "''," * 80_000 + "]", None, ""),
    ("\n".join(f"k{number} = 1" for number in range(5000)), None, ""),
    ("[watch]\nrollback = 'automatic'\n[[problems]]\noperation='gemm'\nsquares=[8]", 2, "watch.rollback"),
])  # fmt: skip
def test_a_wrong_plan_is_told_line_and_key(server: Server, plan: str, line: int | None, key: str) -> None:
    refused = server.post("/v1/jobs", json={"plan": plan})
    error = refused.json()["error"]
    assert (refused.status_code, error["kind"], error.get("line")) == (422, "PlanError", line), error
    assert error.get("key", "") == key


@pytest.mark.parametrize(("job", "message"), [
    ({}, "a job has a problem or a plan"),
    ({"problem": {"file": "../toy.py", "dims": [1]}}, "allowed"),
    ({"problem": {"operation": "gemm", "dims": [8, 8, 8], "kernels": ["--db"]}}, "kernel of gemm '--db'"),
    (GEMM | {"device": "fake:/x"}, "unknown device"),
    (GEMM | {"seconds": -1}, "body.seconds: Input should be greater than 0, got '-1'"),
    (GEMM | {"deadline": "soon"}, "body.deadline"),
    (GEMM | {"deadline": "2020-01-01"}, "lies ahead"),
    (GEMM | {"deadline": "9999-12-31T23:59:59-12:00"}, "lies ahead"),
    (GEMM | {"command": "x"}, "body.command"),
])  # fmt: skip
def test_a_wrong_job_is_told_what_is_wrong(server: Server, job: dict[str, Any], message: str) -> None:
    refused = server.post("/v1/jobs", json=job)
    assert refused.status_code == 422
    assert message in refused.json()["error"]["message"]


def test_a_job_with_too_few_seconds_fails(server: Server) -> None:
    job = ended(server, server.post("/v1/jobs", json=toy(3, seconds=2)).json()["id"])
    assert (job["state"], job["champion"]) == ("failed", None)
    assert job["why"] == "nothing was reached, the deadline came first; give it more seconds"


def test_equal_jobs_are_one_and_a_running_one_can_be_cancelled(server: Server, db: str) -> None:
    first = server.post("/v1/jobs", json=toy(5000, seconds=600)).json()
    again = server.post("/v1/jobs", json=toy(5000, seconds=600))
    assert (again.status_code, again.json()["id"], again.json()["new"]) == (200, first["id"], False)
    waits = server.post("/v1/jobs", json=toy(6000, seconds=600)).json()
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    late = server.post("/v1/jobs", json=toy(5002, trials=5, deadline=soon)).json()
    with server.client(limits=httpx.Limits(max_connections=200)) as client, contextlib.ExitStack() as streams:
        path = f"/v1/jobs/{waits['id']}/events"
        opened = [streams.enter_context(client.stream("GET", path)).status_code for _ in range(100)]
        assert (set(opened), client.get(path).status_code) == ({200}, 503), "so many streams and no more"
    eventually(lambda: (server.job(first["id"])["progress"] or {}).get("trials"))
    waiting = eventually(lambda: (now := server.job(waits["id"]))["why"] and now)
    assert (waiting["state"], waiting["position"]) == ("queued", 1)
    assert f"it waits for job {first['id']}" in waiting["why"]
    # What runs is on top with its time so far, then the queue in its order; not the latest first.
    rows = re.findall(r"<tr.*?</tr>", server.get("/jobs").text, re.DOTALL)[1:]
    assert re.search(r'toy 5000 .*running.*"n">\d+:\d\d</td>', rows[0], re.DOTALL)
    assert re.search("toy 6000 .*place 1<", rows[1], re.DOTALL)
    assert server.post(f"/v1/jobs/{waits['id']}/cancel").json()["state"] == "cancelled"
    eventually(lambda: httpx.get(f"{server.base}{path}", timeout=60).status_code == 200)
    eventually(lambda: datetime.now(UTC).isoformat() > soon)
    assert server.post(f"/v1/jobs/{first['id']}/cancel").json()["state"] == "stopping"
    over = ended(server, first["id"])
    assert (over["state"], over["why"]) == ("cancelled", "cancelled; what was measured is kept")
    assert ended(server, late["id"])["why"] == "it was not reached before its deadline"
    with Store.open(db, read_only=True) as store:
        assert [trial for trial in store.records(role=Role.TRIAL) if trial.problem.dims == {"n": 5000}]
    refused = server.post(f"/v1/jobs/{first['id']}/cancel")
    assert (refused.status_code, "until it ends" in refused.text) == (422, True)
    assert server.post("/v1/jobs/00000000-0000-0000-0000-000000000000/cancel").status_code == 404


def test_a_file_that_has_changed_since_is_not_run(server: Server, folder: Path, db: str) -> None:
    own = folder / "mine" / "own.py"
    own.parent.mkdir()
    for source in TOY.parent.glob("toy*"):
        (own.parent / source.name).write_bytes(source.read_bytes())
    (own.parent / "toy.py").rename(own)
    assert run(["allow", str(own), "--db", db]) == 0
    running = server.post("/v1/jobs", json=toy(5003, seconds=600)).json()["id"]
    job = {"problem": {"file": str(own), "dims": [77]}, "trials": 5}
    waits = server.post("/v1/jobs", json=job)
    assert waits.status_code == 202, waits.text
    (own.parent / "toy.cu").write_text("__global__ void evil() {}")
    server.post(f"/v1/jobs/{running}/cancel")
    over = ended(server, waits.json()["id"])
    assert (over["state"], "has changed since it was allowed" in over["why"]) == ("failed", True)
    assert server.post("/v1/jobs", json=job).status_code == 422
    assert run(["allow", str(own), "--remove", "--db", db]) == 0
    assert str(own) not in server.get("/v1/allowed").text


def test_a_server_runs_jobs_until_the_next(tmp_path: Path, spec: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two would each take the other's processes for their own, and restart what still runs."""
    url = toy_database(tmp_path)
    with Store.open(url) as store, serving(url, tmp_path, "--local-admin", "--device", spec) as first:
        eventually(lambda: list(tmp_path.glob("studies.db.jobs-*.lock")))
        second = JobSupervisor(store, url, DevicePool({spec: find(spec)}))
        second.start()
        try:
            eventually(lambda: "jobs wait: one process at a time works with a database" in caplog.text)
            job = first.post("/v1/jobs", json=toy(9100, trials=3)).json()["id"]
            eventually(lambda: jobs.job(store, job).progress)
            first.kill()
            over = eventually(lambda: (now := jobs.job(store, job)).ended_at and now)
        finally:
            second.close()
    assert (over.state, over.starts) == ("done", 1)


def test_a_server_that_is_killed_loses_no_trial(tmp_path: Path) -> None:
    """The job's process is killed, too, as by a machine that goes down; the next server goes on.

    Until then, the device is so slow that the job cannot end before it is killed.
    """
    db = toy_database(tmp_path)
    spec = write_device(tmp_path / "slow.json", baseline_s=1e-3, pace=8.0)
    with serving(db, tmp_path, "--local-admin", "--device", spec) as first:
        job = first.post("/v1/jobs", json=toy(9000, trials=LEGAL)).json()["id"]
        eventually(lambda: (first.job(job)["progress"] or {}).get("trials"))
        first.kill()
    mine = processes(job)
    assert mine, "the job was to be killed in the middle"
    for process in mine:
        process.kill()
    write_device(tmp_path / "slow.json", baseline_s=1e-3, pace=0.1)
    with serving(db, tmp_path, "--local-admin", "--device", spec) as second:
        over = ended(second, job)
    assert (over["state"], over["report"]["problems"][0]["trials"]["total"]) == ("done", LEGAL), over["why"]
    assert over["starts"] == 2
    with Store.open(db, read_only=True) as store:
        trials = [trial for trial in store.records(role=Role.TRIAL) if trial.problem.dims == {"n": 9000}]
    assert len({tuple(trial.config.items()) for trial in trials}) == len(trials) == LEGAL


def processes(job: str) -> list[psutil.Process]:
    """The processes of a job."""
    its = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TUNER_JOB", "").endswith(job):
                its.append(process)
    return its


# --- on a fleet ----------------------------------------


def trials(db: str, n: int) -> int:
    with Store.open(db, read_only=True) as store:
        return sum(trial.problem.dims == {"n": n} for trial in store.records(role=Role.TRIAL))


def test_jobs_run_on_the_fleet_one_after_the_other_and_show_its_workers(tmp_path: Path) -> None:
    """...and one that is cancelled keeps what it has measured."""
    db = toy_database(tmp_path)
    devices = []
    for name in ("one", "two"):  # boards of one model
        path = tmp_path / f"{name}.json"
        devices += ["--device", write_device(path, baseline_s=1e-3, pace=0.2, info={"uuid": f"FAKE-{name}"})]
    plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [100, 200, 300]\ntrials = 30\n'
    endless = f'[[problems]]\nfile = "{TOY}"\nsquares = [500]\nseconds = 600\n'
    with serving(db, tmp_path, "--local-admin", "--cluster", "local", *devices) as server:
        first = server.post("/v1/jobs", json={"plan": plan}).json()
        assert (first["what"], first["device"]) == ("plan of 3 problems", "any")
        second = server.post("/v1/jobs", json={"plan": endless}).json()["id"]
        eventually(lambda: "which runs on the fleet" in server.job(second)["why"])

        def at_work() -> dict[str, Any] | None:
            now = server.job(first["id"])
            assert not now["ended_at"], now["why"]
            progress = now["progress"] or {}
            return progress if progress.get("trials") else None

        workers = eventually(at_work)["fleet"]["workers"]
        assert [worker["device"] for worker in workers] == ["Fake board"] * 2
        assert '<h2 id="workers">Fleet</h2>' in server.get(f"/jobs/{first['id']}").text
        over = eventually(lambda: (now := server.job(first["id"]))["ended_at"] and now)
        assert over["state"] == "done", over["why"]
        assert [problem["state"] for problem in over["report"]["problems"]] == ["tuned"] * 3
        assert len(over["report"]["fleet"]["workers"]) == 2
        before = eventually(lambda: trials(db, 500))  # workers hand over every few seconds
        server.post(f"/v1/jobs/{second}/cancel")
        over = eventually(lambda: (now := server.job(second))["ended_at"] and now)
        assert (over["state"], over["why"]) == ("cancelled", "cancelled; what was measured is kept")
        assert trials(db, 500) >= before
        job = {"problem": {"file": str(TOY), "dims": {"n": 9}}, "device": "NVIDIA H900"}
        refused = server.post("/v1/jobs", json=job).json()["error"]
        assert "unknown device of this node 'NVIDIA H900'" in refused["message"]


def test_a_job_waits_for_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    code = "from tuner.fleet import clusters; clusters.CONNECT_WITHIN_S = 1.0"
    (tmp_path / "sitecustomize.py").write_text(code)
    db, path = toy_database(tmp_path), f"{tmp_path}:{ROOT}"
    with serving(db, tmp_path, "--local-admin", "--cluster", "tcp://127.0.0.1:1", PYTHONPATH=path) as own:
        plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [600]\ntrials = 2\n'
        job = own.post("/v1/jobs", json={"plan": plan, "device": "*board*"}).json()["id"]
        waiting = eventually(lambda: "no scheduler answers" in (now := own.job(job))["why"] and now)
        assert (waiting["state"], waiting["starts"]) == ("queued", 1)
        assert own.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"


# --- the queue and its processes ----------------------------------------


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

"""Jobs over HTTP on a fake device: submitted, followed, cancelled, and kept whatever is killed."""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from fixtures.fake_device import LEGAL, TOY, write_device
from fixtures.server import Server, eventually, serving

from tuner.cli.main import run
from tuner.devices.detect import find
from tuner.results.record import Role
from tuner.service import stored_jobs as jobs
from tuner.service.pool import DevicePool
from tuner.service.supervisor import JobSupervisor
from tuner.store import Store

GEMM = {"problem": {"operation": "gemm", "dims": [8, 8, 8]}}
PLAN = """
[[problems]]
file = "{file}"
squares = [100, 200]
trials = 8
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def spec(folder: Path) -> str:
    """A fake device on which a trial takes a while."""
    return write_device(folder / "device.json", baseline_s=1e-3)


@pytest.fixture(scope="module")
def db(folder: Path) -> str:
    url = f"sqlite:///{folder}/studies.db"
    assert run(["allow", str(TOY), "--db", url]) == 0
    return url


@pytest.fixture(scope="module")
def server(folder: Path, spec: str, db: str) -> Iterator[Server]:
    with serving(db, folder, "--local-admin", "--device", spec) as running:
        yield running


def toy(n: int, **more: Any) -> dict[str, Any]:
    return {"problem": {"file": str(TOY), "dims": {"n": n}}, **more}


def state(server: Server, job: str) -> dict[str, Any]:
    told: dict[str, Any] = server.get(f"/v1/jobs/{job}").json()
    return told


def ended(server: Server, job: str) -> dict[str, Any]:
    """The job, once it has ended."""

    def over() -> dict[str, Any] | None:
        told = state(server, job)
        return told if told["ended_at"] else None

    found: dict[str, Any] = eventually(over)
    return found


def events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        told = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in told:
            found.append((int(told["id"]), told["event"], json.loads(told["data"])))
    return found


def test_a_problem_is_tuned_and_its_answer_served(server: Server) -> None:
    sent = server.post("/v1/jobs", json=toy(1000, trials=10))
    assert sent.status_code == 202, sent.text
    job = sent.json()["id"]
    assert sent.headers["location"] == f"/v1/jobs/{job}"
    with server.client() as client, client.stream("GET", f"/v1/jobs/{job}/events") as stream:
        seen = events(stream.read().decode())
    states = [data["state"] for _, kind, data in seen if kind == "state"]
    assert states == ["queued", "running", "done"]
    assert any(kind == "progress" and data["trials"] for _, kind, data in seen)
    told = ended(server, job)
    report = told["report"]
    assert (told["state"], report["operation"], report["trials"]["total"]) == ("done", "toy", 10)
    numbers = [number for number, _, _ in seen]
    later = httpx.get(
        f"{server.base}/v1/jobs/{job}/events", headers={"last-event-id": str(numbers[-2])}, timeout=60
    )
    assert [number for number, _, _ in events(later.text)] == numbers[-1:]
    words = {"operation": "toy", "dims": "n=1000", "dtype": "float32", "layout": "plain"}
    asked = words | {"device": "Fake board"}
    # A new snapshot is made within seconds.
    eventually(lambda: server.get("/v1/best", **asked).json().get("record_id") == told["report"]["record_id"])


def test_a_plan_is_a_job_and_its_errors_tell_line_and_key(server: Server) -> None:
    sent = server.post("/v1/jobs", json={"plan": PLAN.format(file=TOY)})
    assert sent.status_code == 202, sent.text
    told = ended(server, sent.json()["id"])
    assert (told["state"], told["what"]) == ("done", "plan of 2 problems"), told["why"]
    assert [each["state"] for each in told["report"]["problems"]] == ["tuned", "tuned"]
    for text, line, key in (
        (PLAN.format(file=TOY).replace("100", "-1"), 4, "problems.0.squares.0"),
        (PLAN.format(file="/etc/passwd"), 3, "problems.0.file"),
        (PLAN.format(file=TOY.name), 3, "problems.0.file"),
        (PLAN.format(file=TOY) + "[[surveys]]\noperation='gemm'\nshapes='x.toml'", 8, "surveys.0.shapes"),
        ("[[problems]]\noperation = 'gemm'\nm = " + str(list(range(1, 200))) + "\nn = "
         + str(list(range(1, 200))) + "\nk = 1", 1, "problems.0"),
        ("[[problems]\n", 1, None),
    ):  # fmt: skip
        refused = server.post("/v1/jobs", json={"plan": text})
        error = refused.json()["error"]
        assert (refused.status_code, error["kind"], error["line"]) == (422, "PlanError", line), error
        assert error["key"] == (key or "")
        assert f"plan:{line}: " in error["message"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, "a job has a problem or a plan"),
        ({"problem": {"file": "/etc/passwd", "dims": [1]}}, "allowed"),
        ({"problem": {"file": "../toy.py", "dims": [1]}}, "allowed"),
        ({"problem": {"operation": "gem", "dims": [1]}}, "unknown operation"),
        ({"problem": {"operation": "gemm", "dims": [1, 2]}}, "gemm takes M N K"),
        ({"problem": {"operation": "gemm", "dims": [8, 8, 8], "kernels": ["--db"]}}, "unknown cuda kernel"),
        (GEMM | {"device": "cpu"}, "unknown device"),
        (GEMM | {"device": "fake:/x"}, "unknown device"),
        (GEMM | {"seconds": -1}, "body.seconds: Input should be greater than 0, got '-1'"),
        (GEMM | {"priority": 1000}, "body.priority: Input should be"),
        (
            {"problem": {"operation": "gemm", "dims": [8, 8, 8]}, "deadline": "soon"},
            "body.deadline",
        ),
        (GEMM | {"deadline": "2020-01-01"}, "in the future"),
        (GEMM | {"command": "x"}, "body.command"),
    ],
)
def test_a_wrong_job_is_told_what_is_wrong(server: Server, job: dict[str, Any], said: str) -> None:
    refused = server.post("/v1/jobs", json=job)
    assert refused.status_code == 422
    assert said in refused.json()["error"]["message"]


def test_equal_jobs_are_one_and_a_running_one_can_be_cancelled(server: Server, db: str) -> None:
    first = server.post("/v1/jobs", json=toy(5000, seconds=600)).json()
    again = server.post("/v1/jobs", json=toy(5000, seconds=600))
    assert (again.status_code, again.json()["id"], again.json()["new"]) == (200, first["id"], False)
    waits = server.post("/v1/jobs", json=toy(6000, seconds=600)).json()
    eventually(lambda: (state(server, first["id"])["progress"] or {}).get("trials"))
    told = eventually(lambda: (w := state(server, waits["id"]))["why"] and w)
    assert (told["state"], told["position"]) == ("queued", 1)
    assert f"it waits for job {first['id']}" in told["why"]
    assert server.post(f"/v1/jobs/{waits['id']}/cancel").json()["state"] == "cancelled"
    assert server.post(f"/v1/jobs/{first['id']}/cancel").json()["state"] == "stopping"
    over = ended(server, first["id"])
    assert (over["state"], over["why"]) == ("cancelled", "cancelled; what was measured is kept")
    with Store.open(db, read_only=True) as store:
        assert [each for each in store.records(role=Role.TRIAL) if each.problem.dims == {"n": 5000}]
    late = server.post(f"/v1/jobs/{first['id']}/cancel")
    assert (late.status_code, "until it ends" in late.text) == (422, True)
    assert server.post("/v1/jobs/00000000-0000-0000-0000-000000000000/cancel").status_code == 404


def test_a_job_that_is_not_reached_before_its_deadline_fails(server: Server) -> None:
    first = server.post("/v1/jobs", json=toy(5001, seconds=600)).json()["id"]
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    second = server.post("/v1/jobs", json=toy(5002, trials=5, deadline=soon)).json()["id"]
    eventually(lambda: state(server, first)["state"] == "running")
    eventually(lambda: datetime.now(UTC).isoformat() > soon)
    server.post(f"/v1/jobs/{first}/cancel")
    assert ended(server, second)["why"] == "it was not reached before its deadline"


def test_a_file_that_has_changed_since_is_not_run(server: Server, folder: Path, db: str) -> None:
    own = folder / "mine" / "own.py"
    own.parent.mkdir()
    for each in TOY.parent.glob("toy*"):
        (own.parent / each.name).write_bytes(each.read_bytes())
    (own.parent / "toy.py").rename(own)
    assert run(["allow", str(own), "--db", db]) == 0
    running = server.post("/v1/jobs", json=toy(5003, seconds=600)).json()["id"]
    waits = server.post("/v1/jobs", json={"problem": {"file": "own.py", "dims": [77]}, "trials": 5})
    assert waits.status_code == 202, waits.text
    (own.parent / "toy.cu").write_text("__global__ void evil() {}")
    server.post(f"/v1/jobs/{running}/cancel")
    told = ended(server, waits.json()["id"])
    assert (told["state"], "has changed since it was allowed" in told["why"]) == ("failed", True)
    assert server.post("/v1/jobs", json={"problem": {"file": "own.py", "dims": [7]}}).status_code == 422
    assert run(["allow", str(own), "--remove", "--db", db]) == 0
    assert str(own) not in server.get("/v1/allowed").text


def test_one_server_of_several_runs_the_jobs_and_the_next_takes_over(
    tmp_path: Path, spec: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two would each take the other's processes for their own, and restart what still runs."""
    url = f"sqlite:///{tmp_path}/studies.db"
    assert run(["allow", str(TOY), "--db", url]) == 0
    with Store.open(url) as store, serving(url, tmp_path, "--local-admin", "--device", spec) as first:
        eventually(lambda: list(tmp_path.glob("studies.db.jobs-*.lock")))
        second = JobSupervisor(store, url, DevicePool.of([find(spec)]))
        second.start()
        try:
            eventually(lambda: "jobs wait: one process at a time works with a database" in caplog.text)
            job = first.post("/v1/jobs", json=toy(9100, trials=3)).json()["id"]
            eventually(lambda: jobs.job(store, job).progress)
            first.kill()
            told = eventually(lambda: (now := jobs.job(store, job)).ended_at and now)
        finally:
            second.close()
    assert (told.state, told.starts) == ("done", 1)


def test_a_server_that_is_killed_twice_loses_no_trial(tmp_path: Path) -> None:
    """The job's process is killed, too, as by a machine that goes down; the last time it goes on.

    Until the last start, the device is so slow that the job cannot end before it is killed.
    """
    db = f"sqlite:///{tmp_path}/studies.db"
    assert run(["allow", str(TOY), "--db", db]) == 0
    spec = write_device(tmp_path / "slow.json", baseline_s=1e-3, pace=20.0)
    running = Server(db, tmp_path, "--local-admin", "--device", spec)
    try:
        job = running.post("/v1/jobs", json=toy(9000, trials=LEGAL)).json()["id"]
        trials = 0
        for number in range(2):
            trials = eventually(lambda now=running, more=trials: _trials(now, job, more))
            assert number == 1 or trials < LEGAL, "the job was to be killed in the middle"
            # Trials of the process before may be counted late: wait for this server's own.
            mine = eventually(lambda now=running: processes(job) or state(now, job)["ended_at"])
            running.kill()
            if number == 0:  # the last one is not killed, and may have ended
                for process in mine:
                    process.kill()
                write_device(tmp_path / "slow.json", baseline_s=1e-3, pace=0.1)
            running = Server(db, tmp_path, "--local-admin", "--device", spec)
        told = ended(running, job)
    finally:
        running.close()
    assert (told["state"], told["report"]["trials"]["total"]) == ("done", LEGAL), told["why"]
    assert told["starts"] == 2
    with Store.open(db, read_only=True) as store:
        found = [each for each in store.records(role=Role.TRIAL) if each.problem.dims == {"n": 9000}]
    assert len({tuple(each.config.items()) for each in found}) == len(found) == LEGAL


def _trials(server: Server, job: str, before: int) -> int:
    """The trials of a job, once there are more than before, or it has ended; else 0."""
    told = state(server, job)
    now = (told["progress"] or {}).get("trials", 0)
    return now if now > before or told["ended_at"] else 0


def processes(job: str) -> list[psutil.Process]:
    """The processes of a job."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("TUNER_JOB", "").endswith(job):
                found.append(each)
    return found


def test_one_hundred_streams_are_open_at_once_and_no_more(server: Server) -> None:
    running, waiting = (server.post("/v1/jobs", json=toy(7777 + n, seconds=600)).json()["id"] for n in range(2))
    path = f"/v1/jobs/{waiting}/events"
    with server.client(limits=httpx.Limits(max_connections=200)) as client, contextlib.ExitStack() as streams:
        opened = [streams.enter_context(client.stream("GET", path)).status_code for _ in range(100)]
        assert (set(opened), client.get(path).status_code) == ({200}, 503)
    eventually(lambda: server.post(f"/v1/jobs/{waiting}/cancel").status_code == 200)
    assert eventually(lambda: httpx.get(f"{server.base}{path}", timeout=60).status_code == 200)
    server.post(f"/v1/jobs/{running}/cancel")

"""Jobs of a server on a fleet: a local cluster of fake devices; and which fleets are refused."""

from pathlib import Path
from typing import Any

from fixtures.fake_device import TOY, write_device
from fixtures.server import eventually, serving, toy_database

from tuner.results.record import Role
from tuner.store import Store


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
    db = toy_database(tmp_path)
    with serving(db, tmp_path, "--local-admin", "--cluster", "tcp://127.0.0.1:1") as own:
        plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [600]\ntrials = 2\n'
        job = own.post("/v1/jobs", json={"plan": plan, "device": "*board*"}).json()["id"]
        waiting = eventually(lambda: "no scheduler answers" in (now := own.job(job))["why"] and now)
        assert (waiting["state"], waiting["starts"]) == ("queued", 1)
        assert own.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"

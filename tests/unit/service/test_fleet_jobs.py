"""Jobs of a server on a fleet: a local cluster of fake devices; and which fleets are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.server import Server, eventually, serving

from tuner.cli.main import run
from tuner.devices.detect import find
from tuner.results.record import Role
from tuner.service.pool import DevicePool
from tuner.service.stored_jobs import Job
from tuner.service.supervisor import arguments, plan_text
from tuner.store import Store


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('fleet')}/studies.db"
    assert run(["allow", str(TOY), "--db", url]) == 0
    return url


@pytest.fixture(scope="module")
def server(db: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose fleet has two boards of one model, on this machine."""
    folder = tmp_path_factory.mktemp("serving")
    boards = [
        write_device(folder / f"{name}.json", baseline_s=1e-3, pace=0.2, info={"uuid": f"FAKE-{name}"})
        for name in ("one", "two")
    ]
    devices = [word for spec in boards for word in ("--device", spec)]
    with serving(db, folder, "--local-admin", "--cluster", "local", *devices) as running:
        yield running


def state(server: Server, job: str) -> dict[str, Any]:
    told: dict[str, Any] = server.get(f"/v1/jobs/{job}").json()
    return told


def test_jobs_run_on_the_fleet_one_after_the_other_and_show_its_workers(server: Server, db: str) -> None:
    plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [100, 200, 300]\ntrials = 30\n'
    first = server.post("/v1/jobs", json={"plan": plan}).json()
    assert (first["what"], first["device"]) == ("plan of 3 problems", "any")
    problem = {"file": str(TOY), "dims": {"n": 400}}
    second = server.post("/v1/jobs", json={"problem": problem, "trials": 6}).json()["id"]
    eventually(lambda: "which runs on the fleet" in state(server, second)["why"])

    def at_work() -> dict[str, Any] | None:
        told = state(server, first["id"])
        assert not told["ended_at"], told["why"]
        progress = told["progress"] or {}
        return progress if progress.get("trials") else None

    told = eventually(at_work)
    assert {each["device"] for each in told["fleet"]["workers"]} == {"Fake board"}
    assert len(told["fleet"]["workers"]) == 2
    page = server.get(f"/jobs/{first['id']}").text
    assert '<h2 id="workers">Fleet</h2>' in page
    over = eventually(lambda: (s := state(server, first["id"]))["ended_at"] and s)
    assert over["state"] == "done", over["why"]
    assert [each["state"] for each in over["report"]["problems"]] == ["tuned"] * 3
    assert len(over["report"]["fleet"]["workers"]) == 2
    over = eventually(lambda: (s := state(server, second))["ended_at"] and s)
    assert over["state"] == "done", over["why"]
    with Store.open(db, read_only=True) as store:
        found = [each for each in store.records(role=Role.TRIAL) if each.problem.dims == {"n": 400}]
    assert len(found) == 6


def test_a_job_on_the_fleet_that_is_cancelled_keeps_what_it_measured(server: Server, db: str) -> None:
    plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [500]\nseconds = 600\n'
    job = server.post("/v1/jobs", json={"plan": plan}).json()["id"]

    def stored() -> int:
        with Store.open(db, read_only=True) as store:
            return sum(each.problem.dims == {"n": 500} for each in store.records(role=Role.TRIAL))

    before = eventually(stored)  # workers hand over every few seconds
    server.post(f"/v1/jobs/{job}/cancel")
    told = eventually(lambda: (s := state(server, job))["ended_at"] and s)
    assert (told["state"], told["why"]) == ("cancelled", "cancelled; what was measured is kept")
    assert stored() >= before


def test_a_job_waits_for_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    assert run(["allow", str(TOY), "--db", db]) == 0
    with serving(db, tmp_path, "--local-admin", "--cluster", "tcp://127.0.0.1:1") as own:
        plan = f'[[problems]]\nfile = "{TOY}"\nsquares = [600]\ntrials = 2\n'
        job = own.post("/v1/jobs", json={"plan": plan, "device": "*board*"}).json()["id"]
        told = eventually(lambda: "no scheduler answers" in (s := state(own, job))["why"] and s)
        assert (told["state"], told["starts"]) == ("queued", 1)
        assert own.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"


def test_a_device_that_the_fleet_lacks_is_refused(server: Server) -> None:
    refused = server.post(
        "/v1/jobs", json={"problem": {"file": str(TOY), "dims": {"n": 9}}, "device": "NVIDIA H900"}
    )
    assert refused.status_code == 422
    assert "unknown device of this node 'NVIDIA H900'" in refused.json()["error"]["message"]


def test_the_command_refuses_what_is_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--cluster", "moon"], "a cluster is local, tcp://HOST:8786"),
        (["--cluster", "slurm:/nowhere/site.toml"], "a cluster is local, tcp://HOST:8786"),
        (["--cluster", "tcp://10.9.9.9:8786"], "a SQLite file is written by one machine alone"),
        (["--tls-ca", "ca.pem"], "belong to --cluster, all three, got 1"),
        (["--cluster", "tls://10.9.9.9:8786", "--tls-ca", "ca.pem"], "belong to --cluster, all three, got 1"),
    ):
        assert run(["serve", "--port", "0", "--db", "sqlite:///none.db", *words]) == 2
        assert said in capsys.readouterr().err


def test_the_plan_of_a_problem_says_all_of_it(tmp_path: Path) -> None:
    from tuner.night.plan import read_plan

    problem = {
        "operation": "gemm", "shape": {"m": 8, "n": 16, "k": 32}, "dtype": "float32", "layout": "nt",
        "precision": "ieee", "regime": "hot", "kernels": ["tiled"], "file": "", "epilogue": "relu",
    }  # fmt: skip
    asked = {"kind": "problem", "problem": problem, "seconds": 30.0, "trials": 7}
    job = Job(asked, "", "", "", "*H200*")
    path = tmp_path / "plan.toml"
    path.write_text(plan_text(job, 12.5))
    (item,) = read_plan(path).items
    assert (str(item.problem), item.regime, item.kernels) == (
        "gemm 8 x 16 x 32 float32 nt relu",
        "hot",
        ("tiled",),
    )
    assert (item.seconds, item.trials, item.problem.epilogue) == (12.5, 7, "relu")
    command = arguments(job, tmp_path, DevicePool({}, "tcp://head:8786"))
    assert {"--cluster=tcp://head:8786", "--device=*H200*", "--again"} <= {*command}


def test_what_a_name_stands_for_on_a_local_cluster(tmp_path: Path) -> None:
    spec = write_device(tmp_path / "board.json", baseline_s=1e-3)
    fleet = DevicePool.of((find(spec), find("cpu")), "local")
    assert [device.spec for device in fleet.named("any")] == [spec, "cpu"]
    assert [device.spec for device in fleet.named("cpu")] == ["cpu"]
    assert [device.spec for device in fleet.named("*board*")] == [spec]
    assert fleet.spec("") == "any"

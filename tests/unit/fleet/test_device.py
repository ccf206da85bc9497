"""A worker's device, who is who in a fleet, and the clusters that workers come from."""

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from fixtures.fake_device import ROOT, copy_toy, write_device
from fixtures.fleets import Fleet
from fixtures.postgres import Databases
from fixtures.waiting import eventually

from tuner.cli.main import run
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock
from tuner.errors import EnvironmentTrouble, InputError, LockedByAnother
from tuner.fleet import clusters, device_plugin
from tuner.fleet.clusters import connected, job_script, seconds_of, site
from tuner.fleet.command import worker
from tuner.fleet.device_plugin import DevicePlugin
from tuner.fleet.orders import Database, Greeting, Order, difference, identity_of
from tuner.fleet.runner import ClaimLedger
from tuner.fleet.worker import WorkerOptions, nanny_options
from tuner.night.claims import Claims
from tuner.night.command import nightly
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Place, kernels_of, study_of
from tuner.store import Store


class DaskWorker:
    """Stands for Dask's worker."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.state: Any = type("State", (), {"tasks": {}})
        self.closed_for = ""

    def log_event(self, topic: str, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def close(self, reason: str, timeout: float) -> None:
        self.closed_for = reason


class Bench:
    """A rehearsed device in a folder, and a plan of one problem."""

    def __init__(self, folder: Path) -> None:
        from fixtures.rehearsed_device import RehearsedDevice

        self.folder, self.kind = folder, RehearsedDevice
        self.device: Any = RehearsedDevice(write_device(folder / "device.json"))
        self.worker = DaskWorker()
        self.fleet = Fleet(folder, "")
        self.fleet.settings()
        (self.item,) = self.fleet.plan(1).items
        with Store.open(f"sqlite:///{folder}/studies.db") as store:
            self.database = Database(store.identity, f"sqlite:///{folder}/studies.db")
        self.study = study_of(self.item, find(self.device.spec).info, kernels_of(self.item, "cuda"))

    def order(
        self, claim: int = 1, turn: int = 0, parts: tuple[float, ...] = (10.0,), study: str = ""
    ) -> Order:
        """A slice, or finals."""
        work = Assignment("0", self.item, (), turn, parts, 60.0, 1.0, None, 1, "random")
        return Order.of(work, "night", claim, study or self.study, self.database)

    def run(self, *tasks: Callable[[], Any]) -> list[Any]:
        """Does tasks on the device one after the other, in a thread as Dask does."""

        async def main() -> list[Any]:
            await self.device.setup(self.worker)
            try:
                return [await asyncio.to_thread(task) for task in tasks]
            finally:
                await self.device.teardown(self.worker)

        return asyncio.run(main())


@pytest.fixture
def bench(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("TUNER_REHEARSAL", str(here / "rehearsal.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Bench(here)
    monkeypatch.setattr("fixtures.rehearsed_device.SETTINGS", here / "rehearsal.json")
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("fault", "told"), [
    ("study", "a worker's kernels are the coordinator's"),
    ("file", "a kernel file must exist"),
    ("unwell", "the rehearsed device stays unwell"),
])  # fmt: skip
def test_what_fails_here_is_no_fault_of_the_problem(bench: Bench, fault: str, told: str) -> None:
    bench.fleet.settings(faults={"1": fault})
    order = bench.order(study="a study of other kernels" if fault == "study" else "")
    if fault == "file":
        Path("toy.py").unlink()
    (answer,) = bench.run(lambda: bench.device.work(order))
    assert told in answer.trouble
    assert (answer.done.failed, answer.done.lost) == ("", answer.trouble)


class Died(BaseException):
    """The process would have ended itself."""


@pytest.mark.parametrize(("stall_s", "why"), [
    (2.0, "it got no further for 2 s while searching, and was killed"),
    (60.0, "the night was stopped, and its study process took longer than 0.5 s to end"),
])  # fmt: skip
def test_a_study_that_hangs_or_does_not_listen_ends_its_process_and_says_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stall_s: float, why: str
) -> None:
    monkeypatch.setattr(device_plugin, "STOP_WITHIN_S", 0.5)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    bench.device = bench.kind(bench.device.spec, stall_s=stall_s)
    stopped = stall_s > 2

    def hang() -> None:
        bench.device.told()
        if stopped:
            bench.device.stop("the night was stopped")
        eventually(lambda: killed, 20)
        raise Died

    monkeypatch.setattr("fixtures.rehearsed_device.RehearsedStage.fault", lambda stage: hang())
    with suppress(Died):
        bench.run(lambda: bench.device.work(bench.order()))
    assert killed[0] == signal.SIGKILL
    assert bench.worker.events[-1]["lost"] == why
    assert bench.worker.events[-1]["cut"] == stopped


def test_a_device_that_another_process_holds_is_told(bench: Bench) -> None:
    bench.device.lock_wait_s = 0.2
    with ExitStack() as stack:
        stack.enter_context(device_lock(find(bench.device.spec).info, "tune gemm"))
        stack.enter_context(pytest.raises(LockedByAnother, match="one process at a time times on a device"))
        bench.run(lambda: bench.device.greet(Greeting((), bench.database)))


@pytest.mark.parametrize(
    ("more", "why"), [({"idle_exit_s": 0.1}, "it was idle"), ({"ends_at": 1.0}, "its lifetime is over")]
)
def test_a_worker_ends_once_it_was_idle_or_its_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, more: dict[str, float], why: str
) -> None:
    monkeypatch.setattr(device_plugin, "KEEP_ANSWER_S", 0.2)
    bench.device = bench.kind(bench.device.spec, **more)
    bench.run(lambda: time.sleep(1.0))
    assert bench.worker.closed_for == why


# --- What a worker says of its device before it gets work


@pytest.mark.parametrize(("device", "complaints"), [
    ({}, []),
    (
        {"info": {"kind": "cpu"}, "machine": {"others_cores": 3.0}},
        [],
    ),  # a CPU that others use may take part
    ({"dead": True}, ["its canary fails: the device is unwell (fake)"]),
    ({"machine": {"throttle_reasons": 0x08}}, ["its clocks are lowered: hardware slowdown"]),
    ({"machine": {"throttle_reasons": 0x60}}, ["its clocks are lowered: heat"]),
    ({"machine": {"others_processes": 2.0}}, ["2 other processes"]),
])  # fmt: skip
def test_an_unfit_device_is_told_why(here: Path, device: dict[str, Any], complaints: list[str]) -> None:
    plugin = DevicePlugin(write_device(here / "device.json", **device))
    plugin.device = find(plugin.spec)
    report = plugin.condition()
    assert len(report.complaints) == len(complaints)
    assert all(wanted in text for wanted, text in zip(complaints, report.complaints, strict=True))
    assert report.info.uuid == "FAKE-1"
    assert report.versions["compiler"] == "fake 1"


# --- Workers of one machine's GPUs do not compile on each other's cores


def test_each_worker_process_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    boards = [find(write_device(tmp_path / f"{name}.json", info={"uuid": name})) for name in "ab"]
    made = nanny_options(boards, WorkerOptions(folder=tmp_path))
    assert [options["plugins"][0].cores for options in made] == [set(range(16)), set(range(16, 32))]
    caches = [options["env"]["TUNER_CACHE"] for options in made]
    assert caches == [str(tmp_path / name / "cache") for name in "ab"]


# --- who is who ----------------------------------------


OURS = {"tile-tuner": "1.0", "built-in kernels": "bb", "kernel file /p/own.py": "cc"}


def test_the_same_is_no_difference() -> None:
    assert difference(OURS, {**OURS, "kernel file /p/more.py": "dd"}) == ""
    assert difference(identity_of(), identity_of()) == ""


@pytest.mark.parametrize(("theirs", "message"), [
    (
        {"tile-tuner": "1.1"},
        "its tile-tuner must be the coordinator's, 1.0, got 1.1; use the same checkout",
    ),
    ({"built-in kernels": "xx"}, "its built-in kernels must be the coordinator's"),
    ({"kernel file /p/own.py": ""}, "its kernel file /p/own.py must be the coordinator's, cc, got none"),
])  # fmt: skip
def test_a_difference_is_told_with_its_remedy(theirs: dict[str, str], message: str) -> None:
    assert message in difference(OURS, OURS | theirs)


def test_a_files_hash_covers_its_sources_and_those_that_are_shared(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    hashes = set()
    for name in ("own.py", "own.cu", "_shared.py", "other.py", "own.json"):
        (tmp_path / name).write_text("// b\n")
        hashes.add(identity_of([str(file)])[f"kernel file {file}"])
    assert len(hashes) == 3, "what is not read does not count"


# --- Claims of a night: what a worker brings counts while its claim runs

URL = "sqlite:///studies.db"


@pytest.fixture
def place(here: Path) -> Place:
    return Place("n1", find(write_device(here / "device.json")).info)


@pytest.fixture
def work(here: Path) -> Assignment:
    copy_toy(here)
    (here / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = 100\n')
    (item,) = read_plan(here / "plan.toml").items
    return Assignment("0", item, kernels_of(item, "cuda"), 0, (10.0,), 60.0, 1.0, None, 1, "random")


def test_after_its_database_restarts_it_locks_again(postgresql: str, place: Place, work: Assignment) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    with Store.open(url) as one, Store.open(url) as other, Claims(one).coordinating() as hold:
        with databases.away(url):
            pass
        ledger = ClaimLedger(one, url, hold)
        ledger.order(place, work)
        with pytest.raises(LockedByAnother, match="one coordinator at a time"), Claims(other).coordinating():
            pass
        with databases.away(url):
            pass
        with Claims(other).coordinating(), pytest.raises(LockedByAnother, match="another works with"):
            ledger.order(place, work)


# --- clusters ----------------------------------------


DOCS = ROOT / "docs"


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentTrouble, match=r"pip install '.\[fleet\]'"):
        clusters.check_installed()


@pytest.mark.parametrize(("text", "message"), [
    ("jobs = 0", "jobs = 0"),
    ("job = [", "names a site's settings"),
    ("[jobb]\nqueue = 'x'", "'jobb'"),
    ("[job]\nqueue = 'gpu'", "You must specify how much cores and memory"),
    ("[job]\ncores = 1\nmemory = '1GB'\ncolour = 'red'", "unexpected keyword argument 'colour'"),
    ("[job]\ncores = 1\nmemory = '1GB'\nwalltime = 'soon'", "refuses the settings under .job."),
])  # fmt: skip
def test_wrong_settings_of_a_site_are_told(here: Path, text: str, message: str) -> None:
    (here / "site.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        job_script("slurm:site.toml")


def test_a_refusal_of_the_batch_system_is_a_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "site.toml").write_text("jobs = 2\n[job]\ncores = 1\nmemory = '1GB'\n")
    (here / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    (here / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=":")
    with (
        pytest.raises(
            EnvironmentTrouble, match=r"slurm refuses a job: sbatch: error: invalid partition; correct"
        ),
        connected("slurm:site.toml", ()),
    ):
        pass


def shown() -> tuple[str, str]:
    """The documentation's settings of a site, and the job that it shows for them."""
    found = re.search(
        r"<!-- site: slurm -->\n\n```toml\n(.*?)```.*?```text\n(.*?)```",
        (DOCS / "fleet.md").read_text(),
        re.DOTALL,
    )
    return found[1], found[2]


def test_the_docs_show_the_job_of_their_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, script = shown()
    (here / "site.toml").write_text(settings)
    (here / "plan.toml").write_text("")
    assert run(["nightly", "plan.toml", "--cluster", "slurm:site.toml", "--job-script"]) == 0
    assert capsys.readouterr().out.strip() == script.strip()
    assert site("slurm", here / "site.toml").jobs == 4
    assert run(["nightly", "plan.toml", "--cluster", "local", "--job-script"]) == 2
    assert "--job-script takes --cluster slurm:FILE.toml" in capsys.readouterr().err


def test_jobs_of_a_batch_system_leave_ctrl_c_alone() -> None:
    """In a process of its own: what an import does, it does once. A service asks for jobs in a thread."""
    script = (
        "import signal, threading\n"
        "from tuner.fleet.clusters import queue_class\n"
        "thread = threading.Thread(target=queue_class, args=('slurm', {}))\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("walltime", "seconds"), [("90", 5400), ("10:30", 630), ("08:00:00", 28800), ("1-02:00:00", 93600)]
)
def test_the_limit_of_a_job_is_read(walltime: str, seconds: int) -> None:
    assert seconds_of(walltime) == seconds


def test_jobs_are_submitted_and_cancelled(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system of two scripts: one notes the job, the other its end."""
    for name, body in (("qsub", 'cp "$1" "$JOBS/job.sh"; echo 17'),
                       ("qdel", 'echo "$1" > "$JOBS/cancelled"')):  # fmt: skip
        script = here / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(here), prepend=":")
    monkeypatch.setenv("JOBS", str(here))
    (here / "site.toml").write_text(
        '[job]\nqueue = "gpu"\ncores = 1\nmemory = "1GB"\n[job.scheduler_options]\nhost = "127.0.0.1"\n'
    )
    with connected("pbs:site.toml") as client:
        eventually((here / "job.sh").exists, 30)
        job = (here / "job.sh").read_text()
        assert "#PBS -q gpu" in job
        assert f"worker --scheduler {client.scheduler.address} --name" in job
    assert (here / "cancelled").read_text().strip() == "17"


def test_a_fleet_speaks_tls_as_the_documentation_says(here: Path) -> None:
    found = re.search(r"```sh\n(kind=.*?done)\n", (DOCS / "fleet.md").read_text(), re.DOTALL)
    subprocess.run(["sh", "-ec", found[1]], check=True, cwd=here, capture_output=True)
    ours = [here / "ca.pem", here / "coordinator.pem", here / "coordinator.key"]
    from distributed import LocalCluster
    from distributed.security import Security

    certificate, key = str(here / "scheduler.pem"), str(here / "scheduler.key")
    security = Security(
        tls_ca_file=str(here / "ca.pem"), require_encryption=True, tls_scheduler_cert=certificate,
        tls_scheduler_key=key, tls_client_cert=certificate, tls_client_key=key,
    )  # fmt: skip
    with LocalCluster(
        n_workers=0, host="127.0.0.1", protocol="tls", security=security, dashboard_address="127.0.0.1:0"
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with connected(address, tls=ours) as client:
            assert client.scheduler_info()["workers"] == {}


def test_commands_of_the_manifest_are_understood_and_encrypted() -> None:
    documents = list(yaml.safe_load_all((DOCS / "fleet" / "kubernetes.yaml").read_text()))
    _, scheduler, workers, night, _ = documents
    kinds = [document["kind"] for document in documents]
    assert kinds == ["Service", "Deployment", "DaemonSet", "CronJob", "NetworkPolicy"]
    (rule,) = night["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2, 3, 4, 5]), "not tried again"
    pods = [scheduler["spec"]["template"], workers["spec"]["template"]]
    for pod in (*pods, night["spec"]["jobTemplate"]["spec"]["template"]):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        words = [*container["command"], *container.get("args", [])]
        assert "--tls-cert" in words
        if command := {"worker": worker, "nightly": nightly}.get(words[1]):
            shown = CliRunner().invoke(command, ["--help"]).output
            assert all(word in shown for word in words if word.startswith("--"))

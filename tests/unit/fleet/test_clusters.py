"""Clusters by name, jobs of batch systems, certificates; and that the documentation shows what is generated."""

import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from fixtures.fake_device import ROOT

from tuner.cli.main import run
from tuner.errors import EnvironmentTrouble, InputError
from tuner.fleet import clusters
from tuner.fleet.clusters import connected, job_script, seconds_of, site
from tuner.fleet.command import worker
from tuner.night.command import nightly

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
        until_s = time.monotonic() + 30
        while not (here / "job.sh").exists() and time.monotonic() < until_s:
            time.sleep(0.05)
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

"""`tuner nightly --cluster local` from the command line: real studies on two fake boards."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, ROOT, copy_toy, rule, stored, write_device
from rich.console import Console

from tuner.cli.main import run
from tuner.fleet.command import workers_table
from tuner.results.record import Role

PLAN = """
[defaults]
sampler = "random"
trials = 100

[watch]
seconds = 0.1

[[problems]]
file = "toy.py"
n = [100, 200]
"""


@pytest.fixture
def folder(here: Path) -> Path:
    copy_toy(here)
    for name in "ab":
        write_device(here / f"{name}.json", info={"uuid": f"FAKE-{name}"}, baseline_s=2 * BEST_S)
    (here / "plan.toml").write_text(PLAN)
    return here


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tuner", "nightly", "plan.toml", "--cluster", "local"]
    own = {"PYTHONPATH": str(ROOT), "TUNER_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [*command, "--device", "fake:a.json,fake:b.json", "--json", *more], cwd=folder, env=os.environ | own,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_a_night_on_two_boards_then_one_with_sentinels_then_ctrl_c(folder: Path) -> None:
    out, err = start(folder).communicate(timeout=300)
    report = json.loads(out)
    assert [each["state"] for each in report["problems"]] == ["tuned"] * 2, err
    assert all(each["after"]["config"] == BEST for each in report["problems"])
    assert len(stored(folder, n=100)) == LEGAL
    workers = report["fleet"]["workers"]
    assert {each["board"] for each in workers} == {"FAKE-a", "FAKE-b"}
    assert sum(each["trials"] for each in workers) == sum(len(stored(folder, n=n)) for n in (100, 200))
    places = {place["board"] for each in report["problems"] for place in each["places"]}
    assert places == {"FAKE-a", "FAKE-b"}
    assert "toy 100 float32 plain: tuned, space covered" in err
    assert "scheduler tcp://127.0.0.1:" in err
    assert "Traceback" not in err
    assert report["no_sentinels"] == "no problem has a champion to watch yet"
    _sentinels(folder)
    _ctrl_c(folder)


def _sentinels(folder: Path) -> None:
    """Each worker times the champions on its own board; on one they are wrong, on one their bits differ."""
    rules = {"a": {"fault": "wrong_result"}, "b": rule(BEST, latency_s=BEST_S, error_rel=1e-7)}
    for name, one in rules.items():
        info = {"uuid": f"FAKE-{name}"}
        write_device(folder / f"{name}.json", info=info, baseline_s=2 * BEST_S, rules=[one])
    process = start(folder, "--quiet")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 4, err
    report = json.loads(out)
    assert [each["state"] for each in report["problems"]] == ["done before"] * 2
    assert {each["board"] for each in report["sentinels"]} == {"FAKE-a", "FAKE-b"}
    assert report["no_sentinels"] is None
    (alert,) = report["alerts"]
    assert alert["cause"] == "wrong"
    assert [each["board"] for each in alert["problems"]] == ["FAKE-a"] * 2
    bits = [each["told"] for each in report["behind"] if each["behind"] == "bits"]
    assert ["on board FAKE-b, and were" in told for told in bits] == [True] * 2
    assert report["confirmed"] == [], "one of two boards says that it is wrong"


def _ctrl_c(folder: Path) -> None:
    """Slow boards, so that the night is under way when a worker is killed, and when it is stopped."""
    for name in "ab":
        write_device(folder / f"{name}.json", info={"uuid": f"FAKE-{name}"}, base_s=0.2, pace=1.0)
    (folder / "plan.toml").write_text(PLAN.replace("[100, 200]", "[400, 500]").replace("trials", "seconds"))
    process = start(folder)
    until_s = time.monotonic() + 100
    while not stored(folder, n=400) and time.monotonic() < until_s:
        time.sleep(0.3)
    command = psutil.Process(process.pid)
    next(child for child in command.children() if "spawn_main" in " ".join(child.cmdline())).kill()
    time.sleep(4.0)
    children = command.children(recursive=True)
    process.send_signal(signal.SIGINT)
    # Workers have ten seconds, then the command ends itself; on a busy machine 31 s in all were seen.
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert {each["state"] for each in report["problems"]} <= {"searched", "not reached"}
    assert "every finished trial is kept" in report["stopped"]
    assert re.search(r"^tuner: worker \S+ was lost: it vanished$", err, re.MULTILINE), "told off a terminal"
    assert stored(folder, n=400)
    assert not stored(folder, role=Role.FINAL, n=400)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_the_view_and_the_report_show_each_worker_what_it_does_and_the_time_left() -> None:
    node1 = {"name": "node1", "device": "NVIDIA H200", "board": "GPU-1", "state": "works", "why": "",
             "doing": "gemm 64 x 64 x 64 float32 nn: searching", "slices": 5, "trials": 480,
             "trials_per_minute": 288.0, "best_s": 1.5e-3}  # fmt: skip
    node2 = {**node1, "name": "node2", "why": "its clocks are low", "doing": "refused: its clocks are low"}
    snapshot = {"left_s": 3725.2, "elapsed_s": 100.0, "problems_left": 7, "slices": 12,
                "trials_per_minute": 480.0, "workers": [node1, node2]}  # fmt: skip
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(workers_table(snapshot), workers_table({**snapshot, "left_s": None}))
    shown = console.export_text()
    for text in (
        "7 problems to go, 12 slices, 480 trials a minute, 1:02:06 left", "no deadline", "1.5 ms",
        "gemm 64 x 64 x 64 float32 nn: searching", "refused: its clocks are low",
    ):  # fmt: skip
        assert text in shown


@pytest.mark.parametrize(("options", "code", "told"), [
    (["--cluster", "everywhere"], 2, "a cluster is local, tcp://HOST:8786"),
    (["--cluster", "tcp://127.0.0.1:9"], 3, "no scheduler answers"),
    (["--cluster", "tls://127.0.0.1:9", "--tls-ca", "plan.toml"], 2, "--tls-cert and --tls-key together"),
    (["--cluster", "slurm:"], 2, "names a site's settings"),
])  # fmt: skip
def test_a_cluster_that_cannot_be_used_is_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str],
    code: int, told: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("tuner.fleet.clusters.CONNECT_WITHIN_S", 0.5)
    assert run(["nightly", "plan.toml", *options]) == code
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_a_worker_without_a_scheduler_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.fleet.worker.SCHEDULER_WITHIN_S", 0.5)
    code = run(
        ["worker", "--scheduler", "tcp://127.0.0.1:9", "--devices", "fake:a.json", "--folder", str(folder)]
    )
    assert code == 3
    assert "a worker needs a scheduler, none answers at tcp://127.0.0.1:9" in capsys.readouterr().err

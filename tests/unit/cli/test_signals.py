"""Studies and nights that are interrupted or killed: what is finished stays, and nobody is left behind."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import BEST, LEGAL, TOY, configs, database, start, stored, study, write_device

from tuner.errors import NothingFound, StoreTrouble

#: Seconds after which a test gives up waiting.
PATIENCE_S = 60.0
INTERRUPTED = "tuner: interrupted; every finished trial is kept, and the same command continues\n"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a `tuner` on a device so slow that it does not end by itself; it does not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def started(command: str, *arguments: str, base_s: float = 0.02) -> subprocess.Popen[str]:
        spec = write_device(tmp_path / "device.json", base_s=base_s, pace=1.0)
        processes.append(start(command, *arguments, "--device", spec, "--db", database(tmp_path)))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Waits, but not for a process that has ended."""
    limit_s = time.monotonic() + PATIENCE_S
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended too early: {process.communicate()}")
        assert time.monotonic() < limit_s, "waited in vain"
        time.sleep(0.05)


def kept(folder: Path) -> int:
    """Trials in the database so far."""
    try:
        return len(stored(folder))
    except (NothingFound, StoreTrouble):
        return 0


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_keeps_its_trials_and_goes_on(
    tmp_path: Path, begun: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = begun("tune", str(TOY), "1000", "--seconds", "600")
    until(lambda: kept(tmp_path) >= 2, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    before = kept(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    if number is not signal.SIGKILL:
        assert (process.returncode, out) == (130, "")
        assert err.endswith(INTERRUPTED)
    assert "Traceback" not in err
    until(lambda: all_gone(workers))
    first = stored(tmp_path)
    assert len(first) >= before
    # The same study on a quicker device of the same name measures what is missing, once.
    result = study(tmp_path, write_device(tmp_path / "device.json"))
    trials = stored(tmp_path)
    assert trials[: len(first)] == first
    assert len(trials) == len(set(configs(trials))) == LEGAL
    assert dict(result.champion.record.config) == BEST


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_during_opening(begun: Callable[..., subprocess.Popen[str]], number: signal.Signals) -> None:
    """A shell has what a script starts in the background ignore Ctrl-C: SIGTERM ends it all the same."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN if number is signal.SIGTERM else signal.SIG_DFL)
    try:
        process = begun("tune", str(TOY), "1000", "--seconds", "600")
    finally:
        signal.signal(signal.SIGINT, usual)
    assert process.stderr.readline().startswith("opening")
    until(lambda: bool(psutil.Process(process.pid).children(recursive=True)), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "tuner: interrupted" in err
    assert "Traceback" not in err
    until(lambda: all_gone(workers))


def test_an_interrupted_night_says_so(tmp_path: Path, begun: Callable[..., subprocess.Popen[str]]) -> None:
    plan = tmp_path / "plan.toml"
    problem = f'[[problems]]\nfile = "{TOY}"\n'
    plan.write_text(f"{problem}n = 7\ntrials = 1\nseconds = 20\n{problem}n = 1000\nseconds = 600\n")
    process = begun("nightly", str(plan), "--json", "--quiet", base_s=0.005)
    until(lambda: kept(tmp_path) >= 1, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    report = json.loads(out)
    assert (process.returncode, report["stopped"][:11]) == (130, "interrupted")
    assert [each["state"] for each in report["problems"]] == ["tuned", "searched"]
    assert err == INTERRUPTED

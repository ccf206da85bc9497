"""Nights on workers that fail: nothing measured is lost or doubled, no champion is wrong, the night goes on."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, ROOT, copy_toy, rule, stored, write_device
from fixtures.fleets import Fleet, FleetNight, scheduler_process
from fixtures.postgres import Databases
from fixtures.waiting import eventually
from rich.console import Console

from tuner.cli.main import run
from tuner.errors import EnvironmentTrouble
from tuner.fleet import clusters, runner
from tuner.fleet.command import workers_table
from tuner.fleet.runner import State
from tuner.night.claims import DONE, LOST, RUNNING, STOPPED, Claims
from tuner.night.plan import read_plan
from tuner.night.work import NightItem
from tuner.results.record import Record, Role
from tuner.store import Store


def trials_of(fleet: Fleet) -> list[Record]:
    with Store.open(fleet.url) as store:
        return store.records(role=Role.TRIAL)


def check(fleet: Fleet, items: list[NightItem], url: str = "") -> None:
    """Each problem has a champion, its best trial, and no claim is left.

    Each trial is stored once; of a claim that ended badly, the one in flight, or the finals, may have been done
    again.
    """
    with Store.open(url or fleet.url) as store:
        trials, claims = store.records(role=Role.TRIAL), Claims(store).of()
        champions = store.champions(history=True)
    badly = Counter(claim.study for claim in claims if claim.state not in (DONE, RUNNING))
    done = Counter((trial.study, trial.problem, trial.config["n"]) for trial in trials)
    again: Counter[str] = Counter()  # how often a study did a trial once more
    for (study, _, _), times in done.items():
        again[study] += times - 1
    assert all(times <= badly[study] for study, times in again.items()), "a trial was done twice"
    assert len({trial.id for trial in trials}) == len(trials)
    stored = Counter(trial.problem for trial in trials)
    configs = Counter(problem for problem, _ in {(trial.problem, trial.config["n"]) for trial in trials})
    for item in items:
        assert item.state == "tuned", item.why
        count = configs[item.after.record.problem]
        assert count <= item.trials["total"] <= stored[item.after.record.problem]
        assert item.after.record.config["n"] == count - 1, "the last is the fastest"
    assert len({champion.record.problem for champion in champions}) == len(items)
    crowned = Counter(champion.record.study for champion in champions)
    assert all(times <= 1 + badly[study] for study, times in crowned.items()), "finals were played twice"
    assert RUNNING not in {claim.state for claim in claims}


@contextmanager
def beside(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Does something in a thread while the block runs; its event is set at the end."""
    ended = threading.Event()
    thread = threading.Thread(target=act, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_sixty_slices_with_a_fault_in_ten(fleet: Fleet) -> None:
    def revive(ended: threading.Event) -> None:
        """Starts workers again that vanish, as a batch system or an operator does."""
        while not ended.wait(0.3):
            fleet.revive()

    kinds = ["kill", "vanish", "hang", "unwell", "kill", "vanish"]
    fleet.settings(faults={str(10 * number + 5): kind for number, kind in enumerate(kinds)})
    warnings: list[str] = []
    with beside(revive):
        items, night = fleet.run(fleet.plan(20, seconds=48), recheck_s=1.0, warned=warnings.append)
    check(fleet, items)
    ledger = night.runner.ledger
    assert ledger.slices >= 60
    with Store.open(fleet.url) as store:
        claims = Claims(store).of(ledger.night)
    states = Counter(claim.state for claim in claims)
    assert states[DONE] >= 50
    assert states[LOST] + states["failed"] >= 6
    hung = [claim.why for claim in claims if "it got no further for 2 s while searching" in claim.why]
    assert hung, "the reason comes before the process ends"
    assert sum(text.startswith("worker n") for text in warnings) >= 6, "each loss is told, on a terminal or not"
    assert len({place["board"] for item in items for place in item.places.values()}) >= 3


def test_a_worker_that_comes_back_finds_its_slice_given_away(fleet: Fleet) -> None:
    """It is stopped for some seconds in its finals; its records count, its champion does not."""
    fleet.settings(faults={"2": "freeze"}, frozen_s=6, pace=0.02)
    items, night = fleet.run(fleet.plan(4, seconds=20), silent_s=1.5)
    assert [item.state for item in items] == ["tuned"] * 4
    with Store.open(fleet.url) as store:
        (claim,) = [claim for claim in Claims(store).of(night.runner.ledger.night) if claim.state == LOST]
        assert "it told of no progress for" in claim.why
        assert len(store.champions(history=True)) == 4
    assert any(len(item.places) > 1 for item in items), "the slice went to another worker"


def check_goes_on(fleet: Fleet, items: list[NightItem]) -> None:
    """A night went on where one before was ended: no trial twice, a champion each, no claim left."""
    assert 1 <= sum(item.state == "done before" for item in items) < len(items)
    assert max(Counter((trial.problem, trial.config["n"]) for trial in trials_of(fleet)).values()) == 1
    with Store.open(fleet.url) as store:
        assert len(store.champions(history=True)) == len(items)
        assert RUNNING not in {claim.state for claim in Claims(store).of()}


def test_after_a_killed_scheduler_the_next_night_goes_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CONNECT_WITHIN_S", 4.0)
    own = Fleet(fleet.folder / "own", "")
    own.folder.mkdir()
    own.settings(pace=0.03)
    plan = own.plan(4, seconds=30)
    with scheduler_process() as (own.address, process):
        own.add("s1")
        own.add("s2")
        try:
            gone = "the scheduler is gone; what was measured is kept"
            with own.night(plan) as night, pytest.raises(EnvironmentTrouble, match=gone):
                [process.kill() for _ in night.run()]
            before = {trial.id for trial in trials_of(own)}
            assert before
            own.settings()
            # The workers find the next scheduler at the same address.
            with scheduler_process(own.address):
                items, _ = own.run(plan)
            assert all(worker.poll() is None for worker in own.workers.values())
        finally:
            own.stop()
    assert before <= {trial.id for trial in trials_of(own)}
    check_goes_on(own, items)


def test_a_killed_coordinator_is_followed_by_another(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its orders and their answers: workers keep what they have, and the next takes it."""
    fleet.settings(pace=0.03)
    plan = fleet.plan(6, seconds=30)
    with fleet.night(plan) as first, monkeypatch.context() as patch:
        patch.setattr(first.runner, "stop", lambda why: [])  # as if it were killed: it says nothing
        for _ in first.run():
            if first.runner.members_in(State.WORKS):
                break
    with Store.open(fleet.url) as store:
        assert RUNNING in {claim.state for claim in Claims(store).of(first.runner.ledger.night)}
    fleet.settings()
    items, _ = fleet.run(plan)
    check_goes_on(fleet, items)


def test_ctrl_c_stops_all_workers_within_ten_seconds_and_keeps_what_they_have(fleet: Fleet) -> None:
    fleet.settings(pace=1.0, trials=1000)
    interrupted_s: list[float] = []

    def interrupt(night: FleetNight) -> Callable[[threading.Event], None]:
        def act(ended: threading.Event) -> None:
            while len(night.runner.members_in(State.WORKS)) < 4 and not ended.wait(0.05):
                pass
            interrupted_s.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        return act

    end_s = time.monotonic() + 60
    with fleet.night(fleet.plan(8, seconds=1000), deadline_s=end_s, silent_s=600) as night:
        with pytest.raises(KeyboardInterrupt), beside(interrupt(night)):
            list(night.run())
        assert {item.state for item in night.night.unfinished("stopped")} <= {"searched", "not reached"}
        assert time.monotonic() - interrupted_s[0] < 10
    with Store.open(fleet.url) as store:
        assert {claim.state for claim in Claims(store).of(night.runner.ledger.night)} == {STOPPED}
    assert all(process.poll() is None for process in fleet.workers.values()), "they wait for the next night"


def test_unfit_workers_are_refused_with_the_reason(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(runner, "REFUSED_S", 1.0)
    rule = "a SQLite file is written by one machine alone, elsewhere, and this is .*; give --db postgresql"
    with fleet.night(fleet.plan(2)) as night, pytest.raises(EnvironmentTrouble, match=rule):
        list(night.run())
    items, _ = fleet.run(fleet.plan(2, seconds=20), anywhere=True)
    check(fleet, items)


def test_each_worker_takes_what_it_can_and_one_that_is_unwell_takes_nothing(fleet: Fleet) -> None:
    fleet.add("sick", dead=True)
    fleet.add("other", info={"name": "Other board"})
    fleet.plan(2, seconds=20, devices=["Fake board", "Other*", "NVIDIA H200"])
    path = fleet.folder / "plan.toml"
    path.write_text(path.read_text() + '[[problems]]\nfile = "toy.py"\nn = 900\ndevices = ["Third board"]\n')
    try:
        until_s = time.monotonic() + 30
        with fleet.night(read_plan(path)) as night:
            members = night.runner.members
            while (len(members) < 6 or night.runner.members_in(State.CHECKED)) and time.monotonic() < until_s:
                list(night.runner.wait(0.2))
            items = list(night.run())
    finally:
        fleet.stop("sick", "other")
    states = Counter((item.state, item.item.problem.dims["n"]) for item in items)
    assert states == {("tuned", 100): 2, ("tuned", 101): 2, ("not reached", 900): 1}
    (left,) = [item for item in items if item.state == "not reached"]
    assert left.why == "it asks for Third board, and none is in this night"
    boards = {item.after.record.device.name: item for item in items if item.after}
    assert boards.keys() == {"Fake board", "Other board"}
    assert {place["board"] for place in boards["Other board"].places.values()} == {"FAKE-other"}
    workers = {worker["name"]: worker for worker in night.runner.snapshot(1.0, 0)["workers"]}
    assert workers["sick"]["doing"] == "refused: its canary fails: it is dead (fake)"
    assert workers["other"]["slices"] > 0


def test_workers_write_into_a_server_that_goes_away_for_a_while(fleet: Fleet, postgresql: str) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    fleet.settings(faults={"7": "kill"})
    Store.open(url).close()

    def away(ended: threading.Event) -> None:
        for _ in range(2):
            time.sleep(1.5)
            with databases.away(url):
                ended.wait(3)

    with beside(away):
        items, _ = fleet.run(fleet.plan(8, seconds=30), url)
    check(fleet, items, url)


# --- whole nights ----------------------------------------


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
    eventually(lambda: stored(folder, n=400), 100)
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

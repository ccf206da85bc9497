"""A study from the first trial to the champion, on fake devices with real worker processes."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures import fake_device
from fixtures.fake_device import (
    BEST,
    BEST_S,
    LEGAL,
    TOY,
    configs,
    database,
    request,
    rule,
    stored,
    study,
    write_device,
)

import tuner
from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.errors import DeviceTrouble, EnvironmentTrouble, LockedByAnother, NothingFound
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.store import Store
from tuner.study.locks import database_lock
from tuner.study.study import open_study, run_study
from tuner.workers import compile_pool, device_worker


@pytest.fixture
def device(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", baseline_s=2 * fake_device.BEST_S)


def test_a_study_finds_the_fastest_and_stores_all_that_it_measured(tmp_path: Path, device: str) -> None:
    reports: list[str] = []
    with Store.open(database(tmp_path)) as store:
        result = run_study(request(device), store, lambda progress: reports.append(progress.stage))
    assert dict(result.champion.record.config) == BEST
    assert result.champion.record.measurement.time_s == pytest.approx(fake_device.BEST_S, rel=0.01)
    assert result.champion.speedup == pytest.approx(2.0, rel=0.01)
    assert result.champion.verdict == "first"
    assert result.stopped == "space covered"
    with Store.open(database(tmp_path), read_only=True) as store:
        assert store.champions(operation="toy") == [result.champion]
    everything = stored(tmp_path, role=None)
    trials, finals, libraries = (
        [record for record in everything if record.role is role]
        for role in (Role.TRIAL, Role.FINAL, Role.BASELINE)
    )
    assert len(trials) == len(set(configs(trials))) == LEGAL
    assert all(record.measurement.compiled and record.measurement.samples_s for record in trials)
    assert result.progress.outcomes == Counter(record.measurement.outcome.value for record in trials)
    assert result.champion.trials == result.progress.totals
    assert result.champion.record.id in {record.id for record in finals}
    assert len(libraries) == 2, "once before the search, once in the finals"
    (kernel,) = catalogue.from_file(TOY).of("toy", "cuda")
    assert {record.source_hash for record in (*trials, *finals)} == {kernel.source_hash}
    assert (
        len({(record.session, record.study, record.device.uuid, record.origin) for record in everything}) == 1
    )
    assert everything[0].versions.items() >= {"tuner": tuner.__version__, "compiler": "fake 1"}.items()
    assert [stage for number, stage in enumerate(reports) if stage not in reports[:number]] == [
        "opening", "searching", "finals", "done",
    ]  # fmt: skip


def test_a_number_of_trials_is_kept_and_continued_without_measuring_twice(tmp_path: Path, device: str) -> None:
    first = study(tmp_path, device, trials=7)
    assert first.stopped == "all trials are done"
    assert first.progress.trials == 7
    assert len(stored(tmp_path)) == 7
    same = study(tmp_path, device, trials=7)
    assert (same.progress.trials, len(stored(tmp_path))) == (7, 7)
    rest = study(tmp_path, device)
    trials = stored(tmp_path)
    assert len(trials) == LEGAL
    assert len(set(configs(trials))) == LEGAL
    assert dict(rest.champion.record.config) == BEST
    assert rest.champion.trials["total"] == LEGAL
    assert len({record.session for record in trials}) == 2
    # A champion that stays the same keeps its crown.
    again = study(tmp_path, device)
    assert len(stored(tmp_path)) == LEGAL
    assert again.champion.verdict in ("same", "slower")
    assert again.champion.own_pairs[-1].other == "CuPy"
    assert again.champion.own_pairs[-1].comparison.ratio == pytest.approx(2.0, rel=0.01)


def test_a_search_of_a_small_space_begins_with_what_was_fastest_when_each_ran_once(tmp_path: Path) -> None:
    places = fake_device.fault_configs()
    # What only seems to compute is the fastest; it is found out before another.
    rules = [rule(places["stale"], fault="stale", latency_s=BEST_S / 2), rule(BEST, latency_s=BEST_S)]
    rules += [rule(places[fault], fault=fault) for fault in ("crash", "launch_failed", "compile_failed")]
    result = study(tmp_path, write_device(tmp_path / "device.json", rules=rules), trials=4, sampler="tile")
    assert dict(result.champion.record.config) == BEST
    tried = [record.measurement.outcome for record in stored(tmp_path)]
    assert (len(tried), tried[:2]) == (4, [Outcome.WRONG_RESULT, Outcome.MEASURED])


def test_configs_of_equal_machine_code_are_timed_once(tmp_path: Path) -> None:
    study(tmp_path, write_device(tmp_path / "device.json", idle=["ORDER"]))
    trials = stored(tmp_path)
    assert len(trials) == LEGAL
    by_code: dict[tuple[Any, Any], list[Record]] = {}
    for record in trials:
        by_code.setdefault((record.config["BLOCK"], record.config["ITEMS"]), []).append(record)
    assert len(by_code) == LEGAL / 2
    for first, twin in by_code.values():
        assert first.config["ORDER"] != twin.config["ORDER"]
        assert first.measurement.samples_s == twin.measurement.samples_s
        assert first.measurement.outcome is twin.measurement.outcome
        # Only one of them was loaded and timed.
        assert sum("time" in each.measurement.stages_s for each in (first, twin)) == 1


def test_an_edited_kernel_is_measured_again_and_the_old_records_stay(tmp_path: Path, device: str) -> None:
    fake_device.copy_toy(tmp_path)
    study(tmp_path, device, file=tmp_path / "toy.py", trials=5)
    assert len(stored(tmp_path)) == 5
    with (tmp_path / "toy.cu").open("a") as source:
        source.write("// said better now\n")
    assert study(tmp_path, device, file=tmp_path / "toy.py", trials=5).stopped == "all trials are done"
    assert len(stored(tmp_path)) == 5
    with (tmp_path / "toy.cu").open("a") as source:
        source.write("__device__ int faster;\n")
    edited = study(tmp_path, device, file=tmp_path / "toy.py", trials=5)
    assert edited.progress.trials == 5
    assert len(stored(tmp_path)) == 10
    assert len({record.source_hash for record in stored(tmp_path)}) == 2


def test_another_driver_or_board_is_measured_again(tmp_path: Path) -> None:
    for number, change in enumerate(({}, {"driver": "2.0"}, {"name": "Other board", "uuid": "FAKE-2"}), 1):
        device = write_device(tmp_path / "device.json", info=change)
        assert study(tmp_path, device, trials=1, finals_s=0.0).progress.trials == 1
        assert len(stored(tmp_path)) == number


def test_however_short_the_time_is_a_config_is_measured(tmp_path: Path) -> None:
    device = write_device(tmp_path / "device.json", baseline_s=2 * fake_device.BEST_S)
    result = study(tmp_path, device, seconds=0.01)
    assert result.stopped == "time is up"
    assert result.champion is not None
    first = result.progress.trials
    assert 1 <= first <= 4
    again = study(tmp_path, device, seconds=0.01)  # also where a study goes on
    assert first < again.progress.trials <= first + 4


def test_time_without_a_device_is_no_time(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = device_worker.DeviceWorker.finish

    def after_a_rest(worker: device_worker.DeviceWorker) -> Measurement:
        worker.stopped_s += 600.0
        return finish(worker)

    monkeypatch.setattr(device_worker.DeviceWorker, "finish", after_a_rest)
    assert study(tmp_path, device, seconds=0.01).stopped == "space covered"


# --- faults ------------------------------------------------------------------------------------------------


def test_every_fault_is_one_outcome_and_the_champion_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(device_worker, "LIMIT_FLOOR_S", 2.0)
    monkeypatch.setattr(compile_pool, "LIMIT_S", 4.0)
    device = write_device(tmp_path / "device.json", faults=True, baseline_s=2 * fake_device.BEST_S)
    result = study(tmp_path, device)
    trials = {tuple(record.config.values()): record.measurement for record in stored(tmp_path)}
    assert len(trials) == len(stored(tmp_path)) == LEGAL
    for fault, config in fake_device.fault_configs().items():
        with subtests.test(fault):
            outcome, reason = fake_device.FAULTS[fault]
            found = trials.pop(tuple(config.values()))
            assert found.outcome.value == outcome
            assert reason in found.reason
            assert found.samples_s == ()
    assert {found.outcome for found in trials.values()} <= {Outcome.MEASURED, Outcome.PRUNED}
    assert dict(result.champion.record.config) == BEST
    assert result.progress.totals["failed"] == len(fake_device.FAULTS)
    assert set(result.progress.reasons) == {outcome for outcome, _ in fake_device.FAULTS.values()}
    # What failed is not tried again.
    assert study(tmp_path, device).progress.totals == result.progress.totals
    assert len(stored(tmp_path)) == LEGAL


def test_a_device_that_stays_unwell_ends_the_study_and_finished_trials_stay(tmp_path: Path) -> None:
    # Some configs poison the device, and fresh workers find it dead.
    rules = [rule({"ITEMS": 2, "BLOCK": 64}, fault="unwell")]
    device = write_device(tmp_path / "device.json", rules=rules, dead=True)
    with pytest.raises(DeviceTrouble, match=r"Fake board stays unwell: .*finished trials are kept") as caught:
        study(tmp_path, device)
    assert caught.value.exit_code == 3
    kept = stored(tmp_path)
    assert all(record.measurement.outcome is not Outcome.CRASHED for record in kept)
    # Well again: the study goes on where it was.
    write_device(tmp_path / "device.json", rules=rules)
    result = study(tmp_path, device)
    assert len(stored(tmp_path)) == LEGAL
    assert result.progress.outcomes["LAUNCH_FAILED"] == 2


# --- what cannot be begun -------------------------------------------------------------------------------------


def test_an_empty_space_says_what_each_constraint_rejects(tmp_path: Path) -> None:
    device = write_device(tmp_path / "device.json", info={"max_threads_per_block": 16})
    told = (
        r"(?s)no config is legal for toy .*: 60 configs.*60 break: a block has no more threads than the device"
    )
    with pytest.raises(NothingFound, match=told):
        study(tmp_path, device)
    assert stored(tmp_path, role=None) == []


# --- What was measured on another board of the model is seen as if this one had measured it


def test_a_study_goes_on_with_what_a_slower_board_measured(here: Path) -> None:
    slow = write_device(
        here / "slow.json", info={"uuid": "FAKE-2"}, baseline_s=2.2 * BEST_S,
        rules=[{"where": {}, "latency_s": 1.1 * BEST_S}],
    )  # fmt: skip
    fast = write_device(here / "fast.json", baseline_s=2 * BEST_S)
    study(here, slow, trials=5)
    assert {each.device.uuid for each in stored(here)} == {"FAKE-2"}
    with Store.open(f"sqlite:///{here}/studies.db") as store:
        with open_study(request(fast, trials=6), store) as opened:
            assert opened.progress.trials == 5
            assert opened.leaderboard.best_s == pytest.approx(BEST_S, rel=0.01)
            opened.search()
            opened.finals()
        boards = {each.device.uuid for each in store.records(role=Role.FINAL)}
        assert boards == {"FAKE-1", "FAKE-2"}


# --- one process per database and device ----------------------------------------


GPU = DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1")
HOLDER = """
import os, sys
from tuner.declare.hardware import DeviceInfo
from tuner.study.locks import database_lock
with database_lock(sys.argv[1], DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1"), "tune gemm"):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def test_the_second_process_is_told_who_holds_it_until_a_kill(url: str, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "studies.db")
    linked = f"sqlite:///{tmp_path}/link.db?mode=rw"
    command = [sys.executable, "-c", HOLDER, url]
    pipe = subprocess.PIPE
    root = Path(tuner.__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as holder:
        pid = holder.stdout.readline().strip()
        with pytest.raises(LockedByAnother, match=rf"process {pid} of .*\(tune gemm, since 20.*NVIDIA H200"):
            database_lock(linked, GPU, "nightly").__enter__()
        holder.kill()
    with database_lock(url, GPU, "nightly"):
        pass


def test_a_folder_that_cannot_take_the_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentTrouble, match="a lock file must be written beside the database"):
        database_lock(f"sqlite:///{tmp_path}/file/studies.db", GPU, "tune").__enter__()

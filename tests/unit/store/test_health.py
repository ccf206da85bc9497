"""Damage is found; with the second copy nothing acknowledged is lost; no command ends in a traceback."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures import damage
from fixtures.postgres import Databases
from fixtures.records import BOARD, CPU, champion, full_record, record, square

import tuner
from tuner.cli.main import run
from tuner.errors import InputError, NothingFound, StoreTrouble
from tuner.store import Store, health
from tuner.store.lines import ledger_file, readable

ROOT = Path(tuner.__file__).parent.parent
PAGE_BYTES = 4096
#: Random damages tried here; `scripts/bench/damages` tries any number.
SEEDS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with some of everything, as a writer leaves it that was killed."""
    path = tmp_path_factory.mktemp("made") / "studies.db"
    damage.fill(path)
    return path


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All that it holds."""
    return damage.content(copied(made, tmp_path_factory.mktemp("whole")))


def copied(made: Path, folder: Path) -> Path:
    for file in made.parent.glob("studies.db*"):
        shutil.copy(file, folder)
    return folder / made.name


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it to damage; its log is part of the file."""
    path = copied(made, tmp_path)
    Store.open(f"sqlite:///{path}").close()
    return path


def rescued(path: Path, name: str = "rescued.db") -> set[str]:
    """All that can be rescued; what is rescued is sound."""
    into = path.with_name(name)
    health.rescue(f"sqlite:///{path}", into)
    found = health.check(f"sqlite:///{into}")
    assert found.sound
    assert found.only_stored == 0
    return damage.content(into)


def truncated(data: bytearray) -> None:
    del data[len(data) * 19 // 20 :]


def first_page_gone(data: bytearray) -> None:
    data[:PAGE_BYTES] = bytes(PAGE_BYTES)


def one_letter_changed(data: bytearray) -> None:
    """SQLite has no sum of its own: a config that reads well and is wrong."""
    at = data.index(b'{"BM":64,"VECTOR":4}')
    data[at : at + 9] = b'{"BM":65,'


@pytest.mark.parametrize("harm", [truncated, first_page_gone, one_letter_changed])
def test_the_second_copy_undoes_damage(path: Path, whole: set[str], harm: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    harm(data)
    path.write_bytes(data)
    found = health.check(f"sqlite:///{path}")
    assert not found.sound
    assert found.copied == len(whole)
    assert found.only_copied > 0
    assert rescued(path) == whole
    assert path.read_bytes() == bytes(data), "the damaged file is left as it is"
    ledger_file(path).unlink()
    # Each of these hits a few pages at most, or the last twentieth of the file; a row of many pages is lost.
    assert len(rescued(path, "without-a-copy.db")) >= len(whole) / 2


def test_a_sound_database_is_sound(path: Path, whole: set[str]) -> None:
    found = health.check(f"sqlite:///{path}")
    assert found.sound
    assert (found.records, found.champions, found.surveys, found.retractions) == (112, 3, 3, 2)
    assert (found.damaged, found.complaints, found.copy_damaged) == (0, (), 0)
    assert (found.copied, found.only_copied, found.only_stored) == (len(whole), 0, 0)
    assert rescued(path) == whole


def test_a_database_that_is_gone_is_in_its_second_copy(path: Path, whole: set[str]) -> None:
    path.unlink()
    found = health.check(f"sqlite:///{path}")
    assert (found.records, found.only_copied, found.sound) == (0, len(whole), False)
    assert rescued(path) == whole


def test_a_row_that_is_shared_takes_no_record_along(tmp_path: Path) -> None:
    """The database alone, with the one row gone that describes the device of all records."""
    path = tmp_path / "studies.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.add([record(square(n), device=(BOARD, CPU)[n % 2]) for n in range(1, 41)])
    ledger_file(path).unlink()
    before = damage.content(path)
    data = bytearray(path.read_bytes())
    for text in (b'"name":"NVIDIA H200"', b'"name":"AMD EPYC'):
        assert data.count(text) == 1
        data[data.index(text) + 9] ^= 1
    path.write_bytes(data)
    assert health.check(f"sqlite:///{path}").damaged == 40
    assert rescued(path) == before


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_that_either_copy_holds_is_rescued(made: Path, whole: set[str], tmp_path: Path, seed: int) -> None:
    path = copied(made, tmp_path)
    places = damage.hurt(path, seed)
    held = damage.held_by_database(path) | damage.held_by_copy(path)
    into = tmp_path / "rescued.db"
    assert run(["records", "check", "--rescue", str(into), "--db", f"sqlite:///{path}"]) in (0, 3)
    got = damage.content(into)
    assert held <= got <= whole
    if places in (("database",), ("copy",)):
        assert got == whole, "one of the copies is whole"


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_no_damage_makes_a_traceback(made: Path, tmp_path: Path, seed: int) -> None:
    path = copied(made, tmp_path)
    damage.hurt(path, seed)
    best = "best gemm 64 64 64 --device GPU-1"
    for command in ("records stats", "records list", "records export - --quiet", best):
        assert run([*command.split(), "--db", f"sqlite:///{path}"]) in (0, 1, 3), command


def test_a_rescue_needs_a_database_and_overwrites_nothing(path: Path, tmp_path: Path) -> None:
    for look in (health.check, lambda url: health.rescue(url, tmp_path / "new.db")):
        with pytest.raises(NothingFound, match=r"no database at .*, nor a second copy"):
            look(f"sqlite:///{tmp_path}/none.db")
    (tmp_path / "there.db").write_bytes(b"precious")
    with pytest.raises(InputError, match="a rescue makes a new file"):
        health.rescue(f"sqlite:///{path}", tmp_path / "there.db")
    assert (tmp_path / "there.db").read_bytes() == b"precious"


# ---- writers that are stopped


def writer(url: str) -> subprocess.Popen[str]:
    """A process that adds records one by one and prints each id once it is stored."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fixtures.records import full_record
from tuner.store import Store
store = Store.open({url!r})
while True:
    one = full_record()
    store.add(one)
    print(one.id, flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def ids(url: str) -> set[str]:
    with Store.open(url) as store:
        return {stored.id for stored in store.records()}


def test_a_writer_that_is_killed_loses_the_trial_in_flight_at_most(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    with writer(url) as process:
        stored = [process.stdout.readline().strip() for _ in range(30)]
        process.send_signal(signal.SIGKILL)
        stored += process.communicate()[0].split()
    found = health.check(url)
    assert (found.complaints, found.damaged) == ((), 0)
    assert found.records - len(stored) in (0, 1)
    assert set(stored) <= ids(url)
    with Store.open(url) as store:
        store.add(full_record())


@pytest.mark.parametrize("cut_bytes", [1, 5000])
def test_a_power_cut_that_tears_the_log_loses_one_trial_at_most(tmp_path: Path, cut_bytes: int) -> None:
    """The log as it would lie there if the last bytes had not reached the disk: the rest of it counts."""
    path, torn = tmp_path / "studies.db", tmp_path / "torn.db"
    with Store.open(f"sqlite:///{path}") as store:
        stored = [full_record() for _ in range(20)]
        for item in stored:
            store.add(item)
        shutil.copy(path, torn)
        Path(f"{torn}-wal").write_bytes(Path(f"{path}-wal").read_bytes()[:-cut_bytes])
    assert ids(f"sqlite:///{torn}") >= {item.id for item in stored[:-1]}
    assert health.check(f"sqlite:///{torn}").sound


# ---- the second copy


def test_a_second_copy_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger_file(tmp_path / "studies.db").mkdir()
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as store:
        assert [store.add(record(square(64))) for _ in range(2)] == [1, 1]
    assert [entry.message[:35] for entry in caplog.records] == ["no second copy of the records is ke"]


def test_a_second_copy_that_lacks_something_is_completed(path: Path, whole: set[str]) -> None:
    url = f"sqlite:///{path}"
    data = ledger_file(path).read_bytes()
    ledger_file(path).write_bytes(data[: len(data) // 2])
    assert health.check(url).only_stored > 20
    health.complete(url)
    found = health.check(url)
    assert (found.copied, found.only_stored, found.only_copied) == (len(whole), 0, 0)
    assert health.complete(url) == 0
    with pytest.raises(InputError, match="beside a SQLite file only"):
        health.complete("postgresql://127.0.0.1:1/none")


def test_the_second_copy_of_another_database_is_put_aside(path: Path, made: Path) -> None:
    for file in path.parent.glob("studies.db*"):
        if file != ledger_file(path):
            file.unlink()
    fresh = record(square(64))
    with Store.open(f"sqlite:///{path}") as store:
        store.add(fresh)
    assert [stored.id for stored in readable(ledger_file(path))] == [fresh.id]
    aside = [file for file in path.parent.glob("*.ledger.jsonl.gz") if file != ledger_file(path)]
    assert [file.read_bytes() for file in aside] == [ledger_file(made).read_bytes()]


def test_a_server_is_checked_as_well(postgresql: str, tmp_path: Path) -> None:
    url = Databases(postgresql).fresh()
    with Store.open(url) as store:
        store.crown(champion(full_record(), baseline=record(square(64))))
    found = health.check(url)
    assert (found.records, found.champions, found.sound, found.copied) == (2, 1, True, None)
    assert health.rescue(url, tmp_path / "new.db") == health.Rescued(3, 0, 0)
    with pytest.raises(StoreTrouble, match="its server does not answer"):
        health.check("postgresql://127.0.0.1:1/none")

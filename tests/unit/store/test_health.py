"""Damage is found and loses what it hit at most; with the second copy nothing that was acknowledged is lost."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.records import BOARD, CPU, champion, full_record, record, square

import tuner
from tuner.errors import InputError, NothingFound, StoreTrouble
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record
from tuner.store import Store, health, lines
from tuner.store.ledger import ledger_file, packed_in, readable

ROOT = Path(tuner.__file__).parent.parent
PAGE_BYTES = 4096
#: A text of more than one page, so that a row overflows.
LONG = Measurement(Outcome.COMPILE_FAILED, "error: " * 3000)


def some_records() -> list[Record]:
    return [
        *(full_record() for _ in range(40)),
        *(record(square(n % 5 + 1), device=(BOARD, CPU)[n % 2], study=f"study {n % 3}") for n in range(40)),
        *(record(square(64), measurement=LONG) for _ in range(3)),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with records and champions, closed in order."""
    path = tmp_path_factory.mktemp("made") / "studies.db"
    with Store.open(f"sqlite:///{path}") as store:
        for each in some_records():
            store.add(each)
        store.crown([champion(full_record(), baseline=record(square(64)), speedup=1.5) for _ in range(3)])
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    copy = tmp_path / "studies.db"
    shutil.copy(made, copy)
    shutil.copy(ledger_file(made), ledger_file(copy))
    return copy


def content(path: Path) -> set[str]:
    """All that a database has, as lines."""
    with Store.open(f"sqlite:///{path}", read_only=True) as store:
        return {lines.line_of(each) for each in (*store.records(), *store.champions(history=True))}


def rescued(path: Path) -> set[str]:
    """All that can be rescued; what is rescued is sound."""
    into = path.with_name("rescued.db")
    health.rescue(f"sqlite:///{path}", into)
    found = health.check(f"sqlite:///{into}")
    assert found.sound
    assert found.only_stored == 0
    return content(into)


def truncated(data: bytearray) -> None:
    del data[len(data) * 19 // 20 :]


def flipped_bits(data: bytearray) -> None:
    chance = random.Random(0)
    for _ in range(60):
        data[chance.randrange(PAGE_BYTES, len(data))] ^= 1 << chance.randrange(8)


def first_page_gone(data: bytearray) -> None:
    data[:PAGE_BYTES] = bytes(PAGE_BYTES)


def pages_overwritten(data: bytearray) -> None:
    """Four pages from one on that has records."""
    start = data.index(b'{"BM":64,"VECTOR":4}') // PAGE_BYTES * PAGE_BYTES
    data[start : start + 4 * PAGE_BYTES] = random.Random(0).randbytes(4 * PAGE_BYTES)


def one_letter_changed(data: bytearray) -> None:
    """SQLite has no sum of its own: a config that reads well and is wrong."""
    at = data.index(b'{"BM":64,"VECTOR":4}')
    data[at : at + 9] = b'{"BM":65,'


def text_that_is_none(data: bytearray) -> None:
    at = data.index(b'{"BM":64,"VECTOR":4}')
    data[at] = 0xFF


DAMAGES = [truncated, flipped_bits, first_page_gone, pages_overwritten, one_letter_changed, text_that_is_none]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_second_copy_makes_it_good(
    path: Path, made: Path, damage: Callable[[bytearray], None]
) -> None:
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    found = health.check(f"sqlite:///{path}")
    assert not found.sound
    assert found.copied == len(content(made))
    assert found.only_copied > 0
    assert rescued(path) == content(made)
    assert path.read_bytes() == bytes(data), "the damaged file is left as it is"


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_second_copy_what_was_not_hit_is_rescued(
    path: Path, made: Path, damage: Callable[[bytearray], None]
) -> None:
    ledger_file(path).unlink()
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    got, there = rescued(path), content(made)
    assert got <= there
    # Each of these hits a few pages at most, or the last twentieth of the file.
    assert len(got) >= len(there) / 4


def test_a_sound_database_is_sound(path: Path, made: Path) -> None:
    found = health.check(f"sqlite:///{path}")
    assert found.sound
    assert (found.records, found.champions, found.damaged, found.complaints) == (89, 3, 0, ())
    assert (found.copied, found.copy_damaged, found.only_copied, found.only_stored) == (92, 0, 0, 0)
    assert rescued(path) == content(made)


def test_pages_give_every_row_without_sqlite(path: Path, made: Path) -> None:
    found = list(packed_in(path))
    assert None not in found
    assert {lines.line_of(each) for each in found if each} == content(made)


def test_a_database_that_is_gone_is_in_its_second_copy(path: Path, made: Path) -> None:
    path.unlink()
    found = health.check(f"sqlite:///{path}")
    assert (found.records, found.only_copied, found.sound) == (0, 92, False)
    assert rescued(path) == content(made)


def test_a_damaged_second_copy_costs_its_own_lines(path: Path, made: Path) -> None:
    data = bytearray(ledger_file(path).read_bytes())
    data[len(data) // 2] ^= 0xFF
    del data[-5:]
    ledger_file(path).write_bytes(data)
    found = health.check(f"sqlite:///{path}")
    assert found.sound, "the database itself is"
    assert found.copy_damaged >= 2
    assert 0 < found.only_stored < 12
    assert rescued(path) == content(made)


def test_nothing_there(tmp_path: Path) -> None:
    for look in (health.check, lambda url: health.rescue(url, tmp_path / "new.db")):
        with pytest.raises(NothingFound, match=r"no database at .*, nor a second copy"):
            look(f"sqlite:///{tmp_path}/none.db")


def test_a_rescue_overwrites_nothing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "there.db").write_bytes(b"precious")
    with pytest.raises(InputError, match="a rescue makes a new file"):
        health.rescue(f"sqlite:///{path}", tmp_path / "there.db")
    assert (tmp_path / "there.db").read_bytes() == b"precious"


def test_a_database_of_the_first_schema_is_rescued_too(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        dump = Path(__file__).parents[2] / "fixtures" / "schemas" / "0001.sql"
        connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    assert len(rescued(path)) == 38


# ---- writers that are stopped


def writer(url: str, limit: str = "") -> subprocess.Popen[str]:
    """A process that adds records one by one and prints each id once it is stored."""
    script = f"""
import sys, resource, signal
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fixtures.records import full_record
from tuner.store import Store
store = Store.open({url!r})
{limit}
while True:
    one = full_record()
    store.add(one)
    print(one.id, flush=True)
"""
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ids(url: str) -> set[str]:
    with Store.open(url) as store:
        return {each.id for each in store.records()}


def test_a_kill_while_writing_loses_the_trial_in_flight_at_most(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    with writer(url) as process:
        told = [process.stdout.readline().strip() for _ in range(30)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().split()
    found = health.check(url)
    assert (found.complaints, found.damaged, found.copy_damaged) == ((), 0, 0)
    assert found.records - len(told) in (0, 1)
    assert found.only_stored <= 1
    assert set(told) <= ids(url)


@pytest.mark.parametrize("cut_bytes", [1, 700, 3000, 5000])
def test_a_power_cut_that_tears_the_log_loses_the_trial_in_flight_at_most(
    tmp_path: Path, cut_bytes: int
) -> None:
    """The log as it would lie there if the last bytes had not reached the disk: the rest of it counts."""
    path = tmp_path / "studies.db"
    with Store.open(f"sqlite:///{path}") as store:
        stored = [full_record() for _ in range(20)]
        for each in stored:
            store.add(each)
        torn = tmp_path / "torn.db"
        shutil.copy(path, torn)
        log = Path(f"{path}-wal").read_bytes()
        Path(f"{torn}-wal").write_bytes(log[:-cut_bytes])
    assert ids(f"sqlite:///{torn}") >= {each.id for each in stored[:-1]}
    assert health.check(f"sqlite:///{torn}").sound


def test_a_damaged_log_is_made_good_by_the_second_copy(tmp_path: Path) -> None:
    """SQLite drops, silently, all of a log behind the first bad byte."""
    path, kept = tmp_path / "studies.db", tmp_path / "kept.db"
    with Store.open(f"sqlite:///{path}") as store:
        stored = [full_record() for _ in range(20)]
        for each in stored:
            store.add(each)
        shutil.copy(path, kept)
        log = bytearray(Path(f"{path}-wal").read_bytes())
        log[len(log) // 2] ^= 0x10
        Path(f"{kept}-wal").write_bytes(log)
        shutil.copy(ledger_file(path), ledger_file(kept))
    found = health.check(f"sqlite:///{kept}")
    assert found.complaints == ()
    assert found.only_copied > 0
    assert not found.sound
    assert len(rescued(kept)) == 20


LIMITED = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
"""


def test_a_full_disk_loses_the_trial_in_flight_at_most(tmp_path: Path) -> None:
    """The system refuses to let any file grow beyond a size, as a full disk does."""
    url = f"sqlite:///{tmp_path}/studies.db"
    with writer(url, LIMITED) as process:
        told, said = process.communicate()
    assert "StoreTrouble: cannot use the database" in said
    assert len(told.split()) > 5
    found = health.check(url)
    assert (found.complaints, found.damaged) == ((), 0)
    assert found.records - len(told.split()) in (0, 1)
    with Store.open(url) as store:
        store.add(full_record())


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of a few hundred kilobytes needs the superuser")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with writer(f"sqlite:///{small}/studies.db") as process:
            told, said = process.communicate()
        assert "no space is left on its disk; what was stored before is unharmed" in said
        for file in small.iterdir():
            shutil.copy(file, tmp_path)
    finally:
        subprocess.run(["umount", small], check=True)
    found = health.check(f"sqlite:///{tmp_path}/studies.db")
    assert (found.complaints, found.damaged) == ((), 0)
    assert found.records - len(told.split()) in (0, 1)


def test_a_second_copy_that_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_file(tmp_path / "studies.db").mkdir()
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as store:
        store.add([record(square(64))])
        store.add([record(square(64))])
        assert len(store.records()) == 2
    assert [each.message[:35] for each in caplog.records] == ["no second copy of the records is ke"]


def test_a_second_copy_that_lacks_something_is_completed(path: Path, made: Path) -> None:
    url = f"sqlite:///{path}"
    data = ledger_file(path).read_bytes()
    ledger_file(path).write_bytes(data[: len(data) // 2])
    assert health.check(url).only_stored > 20
    health.complete(url)
    found = health.check(url)
    assert (found.copied, found.only_stored, found.only_copied) == (92, 0, 0)
    assert health.complete(url) == 0
    path.unlink()
    assert rescued(path) == content(made)


def test_a_server_has_no_second_copy() -> None:
    with pytest.raises(InputError, match="beside a SQLite file only"):
        health.complete("postgresql://127.0.0.1:1/none")


def test_the_second_copy_of_another_database_is_put_aside(path: Path, made: Path) -> None:
    path.unlink()
    fresh = record(square(64))
    with Store.open(f"sqlite:///{path}") as store:
        store.add(fresh)
    assert [each.id for each in readable(ledger_file(path))] == [fresh.id]
    aside = [each for each in path.parent.glob("*.ledger.jsonl.gz") if each != ledger_file(path)]
    assert [each.read_bytes() for each in aside] == [ledger_file(made).read_bytes()]


def test_a_server_is_checked_as_well(postgresql: str, tmp_path: Path) -> None:
    from fixtures.postgres import Databases

    url = Databases(postgresql).fresh()
    with Store.open(url) as store:
        store.crown(champion(full_record(), baseline=record(square(64))))
    found = health.check(url)
    assert (found.records, found.champions, found.sound, found.copied) == (2, 1, True, None)
    assert health.rescue(url, tmp_path / "new.db") == health.Rescued(3, 0, 0)
    with pytest.raises(StoreTrouble, match="its server does not answer"):
        health.check("postgresql://127.0.0.1:1/none")

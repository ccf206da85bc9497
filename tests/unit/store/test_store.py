"""The store: its file or server, what is kept there, and every way in which it cannot be used."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fixtures.fake_device import BEST, BEST_S, ROOT, TOY, write_device
from fixtures.postgres import Databases
from fixtures.records import BOARD, CPU, record, square, survey_part

from tuner.cli.main import run
from tuner.errors import NothingFound, StoreTrouble
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, Record, Retraction, Wanted
from tuner.results.survey import SurveyPart, Timing
from tuner.store import Store, exchange, health, lines, listing, opening, retracting, watched
from tuner.store.retracting import Chosen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


# ---- making and bringing forward


def test_a_commit_is_on_the_disk_and_readers_do_not_wait(url: str) -> None:
    with Store.open(url) as store, store._engine.connect() as connection:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
    assert pragmas == ["wal", 2, 1, 30000]


# ---- read only


def test_reading_makes_nothing(url: str, path: Path) -> None:
    with pytest.raises(NothingFound, match=r"no database at .*run `tuner tune`"):
        Store.open(url, read_only=True)
    assert not path.exists()


def test_a_reader_makes_no_tables(url: str, postgresql: str) -> None:
    for others in (url, Databases(postgresql).fresh()):
        engine = sa.create_engine(others, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE studies (id integer)")
        with pytest.raises(NothingFound, match="holds no records yet"):
            Store.open(others, read_only=True)
        assert sa.inspect(engine).get_table_names() == ["studies"]


def test_a_reader_cannot_write(either_url: str) -> None:
    told = r"studies\.db: it is read-only|it was opened for reading; use a"
    with Store.open(either_url, read_only=True) as store:
        with pytest.raises(StoreTrouble, match=told):
            store.add(record(square(8)))
        assert store.records() == []


def test_a_lone_file_is_read_as_it_lies(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a medium that cannot be written: no log may be made beside the file."""
    with Store.open(url) as store:
        store.add(record(square(8)))
    monkeypatch.setattr(opening.os, "access", lambda path, mode: False)
    with Store.open(url, read_only=True) as store:
        assert len(store.records()) == 1
        ledger = "studies.db.ledger.jsonl.gz"
        assert sorted(each.name for each in path.parent.iterdir()) == ["studies.db", ledger]


# ---- the file goes while it is in use


def stored(url: str) -> list[Record]:
    with Store.open(url, read_only=True) as store:
        return store.records()


@pytest.mark.parametrize("companions", [False, True])
def test_a_database_that_is_deleted_in_mid_study_is_made_again(
    url: str, path: Path, companions: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kept = [record(square(8)) for _ in range(4)]
    with Store.open(url) as store, Store.open(url) as other:
        store.add(kept[0])
        other.add(kept[1])
        for file in path.parent.iterdir() if companions else [path]:
            file.unlink()
        store.add(kept[2])
        other.add(kept[3])
        assert sorted(store.records(), key=kept.index) == kept
    assert sorted(stored(url), key=kept.index) == kept
    (message,) = caplog.messages
    assert f"{path} was deleted while it was in use; all its records are in {path}" in message
    assert health.check(url).sound


def test_a_replaced_database_goes_on_beside_it(url: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, kept = record(square(8)), [record(square(8)), record(square(8))]
    with Store.open(f"sqlite:///{path}.new") as store:
        store.add(other)
    with Store.open(url) as store:
        store.add(kept[0])
        beside = path.with_name(f"studies.db.{store.identity[:8]}.db")
        Path(f"{path}.new").replace(path)
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink()
        store.add(kept[1])
    assert stored(url) == [other]
    assert sorted(stored(f"sqlite:///{beside}"), key=kept.index) == kept
    assert f"was replaced while it was in use; all its records are in {beside}" in caplog.text
    with Store.open(url) as store, Store.open(f"sqlite:///{beside}", read_only=True) as source:
        exchange.merge(store, source)
        assert len(store.records()) == 3


# ---- trouble


def test_a_file_that_is_no_database_is_left_alone(url: str, path: Path) -> None:
    path.write_bytes(b"a letter to a friend, longer than a header of a database is" * 40)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(StoreTrouble, match="it is no SQLite database; give another with --db"):
            Store.open(url, read_only=read_only)
    assert path.read_bytes() == before


def test_another_process_that_keeps_it_locked(url: str, path: Path) -> None:
    with Store.open(url, patience_s=0.05) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreTrouble, match="another process keeps it locked; wait"):
            store.add(record(square(8)))
        assert store.records() == []
        holder.execute("ROLLBACK")
        holder.close()
        store.add(record(square(8)))
        assert len(store.records()) == 1


WRITTEN = """
import os
from fixtures.records import record, square
from tuner.store import Store
store = Store.open("sqlite:///studies.db")
store.add([record(square(8)) for _ in range(3)])
os._exit(0)
"""
READ = """
import contextlib
from pathlib import Path
from tuner.errors import StoreTrouble
from tuner.store import Store
Path("studies.db-shm").unlink(missing_ok=True)
with contextlib.suppress(OSError), open("rest", "wb", buffering=0) as rest:
    while rest.write(bytes(512)):
        pass
with Store.open("sqlite:///studies.db", read_only=True) as store:
    print(len(store.records()), "are read")
try:
    Store.open("sqlite:///studies.db").close()
except StoreTrouble as error:
    print(error)
"""


@pytest.mark.parametrize("settled", [True, False])
def test_a_full_disk_is_called_so_and_its_records_are_read(tmp_path: Path, settled: bool) -> None:
    """On a small file system; the log that a writer left when it was killed has what the file lacks."""
    command = 'mount -t tmpfs -o size=2m none "$0" && cd "$0" && "$1" -c "$2" && "$1" -c "$3"'
    unshared = ("unshare", "--user", "--map-root-user", "--mount")
    if not shutil.which("unshare") or subprocess.run([*unshared, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no file system of one's own")
    written = WRITTEN.replace("os._exit", f"{'store.close()' if settled else ''}\nos._exit")
    done = subprocess.run(
        [*unshared, "sh", "-c", command, tmp_path, sys.executable, written, READ],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )  # fmt: skip
    assert done.stdout.startswith("3 are read\n"), done.stderr
    assert "studies.db: no space is left on its disk; what was stored before is unharmed" in done.stdout


@pytest.mark.parametrize(("url", "told"), [
    ("studies.db", r"got 'studies\.db'; did you mean sqlite:///studies\.db\?"),
    ("", "got ''; give one such as sqlite:///studies.db"),
    ("sqlite://", "got one in memory, which would be lost with this process; name a file"),
    ("sqlite:///:memory:", "got one in memory"),
    ("sqlite:////tmp", "a database is a file, /tmp is a folder; name a file, e.g. /tmp/studies.db"),
    ("oracel://host/x", "starts with sqlite or postgresql, got 'oracel'"),
    ("postgresql+psycopg://host/x", "driver of 'postgresql[+]psycopg' is not installed"),
])  # fmt: skip
def test_a_url_that_names_no_database_here(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreTrouble, match=told):
        Store.open(url)


def test_a_new_database_is_opened_by_several_at_once(tmp_path: Path) -> None:
    for number in range(8):
        url = f"sqlite:///{tmp_path}/{number}.db"
        with ThreadPoolExecutor(4) as pool:
            for store in pool.map(lambda _, url=url: Store.open(url), range(4)):
                store.close()


# --- surveys ----------------------------------------


def test_what_is_stored_is_read_back_equal_and_once(either_store: Store) -> None:
    part = survey_part(30)
    assert (either_store.add([part, survey_part(device=CPU)]), either_store.add(part)) == (2, 0)
    assert either_store.survey_parts("gemm", "NVIDIA H200", "cold") == [part]
    assert either_store.survey_parts("gemm", BOARD, "cold", "another survey") == []
    assert either_store.survey_parts("gemm", BOARD, "hot") == []
    assert {device.name for device in either_store.devices()} == {BOARD.name, CPU.name}


def test_a_line_whose_numbers_are_of_nothing_is_refused() -> None:
    part = replace(survey_part(), timings=(Timing(99, 0, Outcome.MEASURED, 1.0),))
    with pytest.raises(ValueError, match="a problem and a config of its part"):
        lines.parsed(lines.line_of(part))


def test_surveys_travel(tmp_path: Path, either_url: str) -> None:
    parts = sorted((survey_part(5), survey_part(device=CPU)), key=lambda part: part.id)
    with Store.open(either_url) as store, Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        store.add(parts)
        file = tmp_path / "all.jsonl.gz"
        counts = exchange.export(store, file)
        assert (counts.surveys, counts.timings) == (2, 8)
        assert exchange.take(other, file).surveys == 2
        assert exchange.take(other, file).surveys == exchange.merge(other, store).surveys == 0
        assert list(listing.everything(other)) == parts
        assert exchange.export(store, file, listing.Selection(device=CPU.name)).surveys == 1
        assert exchange.export(store, file, listing.Selection(shape=(16, 16, 16))).surveys == 0


def test_surveys_are_taken_back(either_store: Store) -> None:
    part, another = survey_part(5), survey_part(6)
    either_store.add([part, another])
    assert retracting.take_back(either_store, Chosen((part.id,)), "a busy machine") == 1
    assert either_store.survey_parts("gemm", BOARD, "cold") == [another]
    assert retracting.take_back(either_store, Chosen(device=BOARD.name)) == 1
    assert list(listing.stream(either_store, SurveyPart, listing.Selection())) == either_store.devices() == []
    assert retracting.give_back(either_store, Chosen((part.id,))) == 1
    assert either_store.survey_parts("gemm", BOARD, "cold") == [part]
    assert isinstance(next(listing.stream(either_store, Retraction)), Retraction)


# --- demand and models ----------------------------------------


def asked(
    n: int, calls: int = 1, saves_s: float = 1.0, device: str = "Board", precision: str = "ieee"
) -> Wanted:
    problem = ProblemKey("gemm", (("m", n), ("n", n), ("k", n)), "float32", "nn", precision)
    return Wanted(problem, "cuda", device, "predicted", calls, saves_s)


def test_counts_of_a_problem_on_a_device_add_up(either_store: Store) -> None:
    watched.add_demand(either_store, [asked(1, 3, 0.5), asked(2, 1, 9.0)])
    more = [asked(1, 4, 0.25), asked(1, 1, 1.0, "Other"), asked(1, 1, 2.0, precision="emulated")]
    watched.add_demand(either_store, more)
    found = watched.demand(either_store)
    assert [(each.problem.dims["m"], each.problem.precision, each.device) for each in found] == [
        (2, "ieee", "Board"), (1, "emulated", "Board"), (1, "ieee", "Other"), (1, "ieee", "Board"),
    ]  # fmt: skip
    assert [(each.calls, each.saves_s) for each in found] == [(1, 9.0), (1, 2.0), (1, 1.0), (7, 0.75)]
    assert all(each.first_at <= each.last_at for each in found)


def test_it_is_read_and_forgotten_by_device_and_operation(either_store: Store) -> None:
    watched.add_demand(either_store, [asked(1), asked(2, device="Other")])
    (only,) = watched.demand(either_store, device="Other", operation="gemm")
    assert only.problem.dims["m"] == 2
    assert watched.demand(either_store, operation="gemv") == []
    assert watched.forget_demand(either_store, [only]) == 1
    assert [each.device for each in watched.demand(either_store)] == ["Board"]


def test_a_full_list_loses_what_saves_the_least(monkeypatch: pytest.MonkeyPatch, either_store: Store) -> None:
    monkeypatch.setattr(watched, "MOST_ROWS", 5)
    watched.add_demand(either_store, [asked(n, saves_s=float(n)) for n in range(1, 9)])
    assert [each.problem.dims["m"] for each in watched.demand(either_store)] == [8, 7, 6, 5, 4]


def test_the_latest_model_of_a_device_is_kept(either_store: Store) -> None:
    for text in (b"one", b"two"):
        watched.add_model(either_store, "gemm", "Board", "cold", text)
    watched.add_model(either_store, "gemm", "Other board", "cold", b"three")
    watched.add_model(either_store, "gemm", "Board", "hot", b"four")
    found = watched.models(either_store, "gemm", "cold")
    texts = {device: text for device, (_, text) in found.items()}
    assert texts == {"Board": b"two", "Other board": b"three"}
    assert watched.models(either_store, "gemv", "cold") == {}


# --- on a server ----------------------------------------


@pytest.fixture(scope="module")
def databases(postgresql: str) -> Databases:
    return Databases(postgresql)


@pytest.fixture
def remote(databases: Databases) -> Iterator[str]:
    return databases.fresh()


def test_a_study_and_a_lookup_on_a_server(remote: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = write_device(here / "device.json", baseline_s=2 * BEST_S)
    named = [str(TOY), "--set", "n=1000", "--device", device, "--db", remote, "--json"]
    assert run(["tune", *named, "--sampler", "random", "--trials", "60", "--quiet"]) == 0
    capsys.readouterr()
    assert run(["best", *named]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == BEST
    assert [file.name for file in here.iterdir() if "ledger" in file.name] == []


def test_several_processes_write_to_one_server(remote: str) -> None:
    """They make the tables and add the same records in opposite orders; none waits for another in a circle."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fixtures.records import record, square
from tuner.store import Store
ids = [f"00000000-0000-4000-8000-{{n:012d}}" for n in range(60)]
some = [record(square(1 + n % 7), id=each) for n, each in enumerate(ids)]
with Store.open({remote!r}) as store:
    for _ in range(5):
        store.add(some if sys.argv[1] == "forward" else some[::-1])
"""
    ways = ("forward", "backward", "forward")
    writers = [subprocess.Popen([sys.executable, "-c", script, way], cwd=ROOT) for way in ways]
    assert [each.wait() for each in writers] == [0, 0, 0]
    with Store.open(remote, read_only=True) as store:
        assert len(store.records()) == 60


def test_a_connection_that_broke_is_made_anew(remote: str, databases: Databases) -> None:
    with Store.open(remote) as store:
        store.add(record(square(64)))
        databases.disconnect(remote)
        store.add(record(square(64)))
        assert len(store.records()) == 2


@pytest.mark.parametrize(("part", "instead", "told"), [
    ("127.0.0.1", "127.0.0.1:1/x?", "its server does not answer; start it, or check host, port"),
    ("tuner:", "stranger:", "user or password is wrong"),
    ("/tuner_", "/other_", "there is no such database or user on its server; make it"),
])  # fmt: skip
def test_trouble_is_told_with_what_to_do(remote: str, part: str, instead: str, told: str) -> None:
    with pytest.raises(StoreTrouble, match=told) as caught:
        Store.open(remote.replace(part, instead, 1))
    assert sa.make_url(remote).password not in str(caught.value)

"""Every released schema is brought forward, whole or not at all; a newer one is refused.

A fixture is the dump of a database that the release itself wrote: `tests/fixtures/schemas/<schema>.sql`.
"""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from fixtures.postgres import Databases

import tuner.store
from tuner.declare.hardware import DeviceInfo
from tuner.errors import StoreTrouble
from tuner.results.measurement import CompileReport, Error, Outcome
from tuner.results.record import ProblemKey, Role
from tuner.store import Store, health, tables

ROOT = Path(tuner.__file__).parent.parent
FIXTURES = Path(__file__).parents[2] / "fixtures" / "schemas"
RELEASED = tables.SCHEMAS[:-1]


def dumped(schema: str, path: Path) -> Path:
    """A database as a release left it."""
    with sqlite3.connect(path) as connection:
        connection.executescript((FIXTURES / f"{schema}.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


def on_server(schema: str, url: str, tmp_path: Path) -> None:
    """The same on a server: the release's migrations, then its rows."""
    engine = sa.create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(tuner.store.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, schema)
        rows = sqlite3.connect(dumped(schema, tmp_path / "dumped.db"))
        found = sa.MetaData()
        found.reflect(connection)
        for table in found.sorted_tables:
            names = [column.name for column in table.columns]
            if table.name == tables.VERSION_TABLE:
                continue
            for row in rows.execute(f"SELECT {', '.join(names)} FROM {table.name}"):
                connection.execute(table.insert().values(**dict(zip(names, row, strict=True))))
        rows.close()
    engine.dispose()


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, with the columns that there were at first."""
    engine, found = sa.create_engine(url), sa.MetaData()
    with engine.connect() as connection:
        found.reflect(connection)
        rows = {}
        for name, table in found.tables.items():
            known = [each for each in table.columns if each.name not in ("checksum", "pairs")]
            ordered = sa.select(*known).order_by(*table.primary_key.columns)
            rows[name] = [tuple(row) for row in connection.execute(ordered)]
    engine.dispose()
    return rows


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=RELEASED)
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(schema: str, server: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if server == "sqlite":
        return f"sqlite:///{dumped(schema, tmp_path / 'studies.db')}"
    made = Databases(request.getfixturevalue("postgresql")).fresh()
    on_server(schema, made, tmp_path)
    return made


def test_every_released_schema_has_a_fixture() -> None:
    assert {path.stem for path in FIXTURES.glob("*.sql")} == set(RELEASED)


def test_what_was_stored_stays_as_it_was(url: str) -> None:
    before = content(url)
    Store.open(url).close()
    after = content(url)
    assert {name for name in before if before[name] != after[name]} == {
        tables.VERSION_TABLE, tables.schema_history.name,
    }  # fmt: skip
    assert after[tables.VERSION_TABLE] == [(tables.SCHEMAS[-1],)]
    since_the_first = {
        "tuner_identity", "tuner_retractions", "tuner_shared", "tuner_surveys", "tuner_claims", "tuner_crowns",
        "tuner_sentinels", "tuner_nights", "tuner_demand", "tuner_models", "tuner_tokens",
        "tuner_allowed_files", "tuner_jobs", "tuner_job_events", "tuner_snapshots",
    }  # fmt: skip
    assert after.keys() - before.keys() == since_the_first - before.keys()
    assert _shared_again(url) == _shared(after)
    found = health.check(url)
    assert (found.records, found.champions, found.damaged) == (34, 4, 0)


def _shared(after: dict[str, list[tuple[object, ...]]]) -> dict[tuple[object, object], list[object]]:
    """What records share: kind and number, and the columns."""
    names = {kind: f"tuner_{kind}s" for kind in ("problem", "device", "kernel", "run")}
    return {(kind, row[0]): list(row[1:]) for kind, name in names.items() for row in after[name]}


def _shared_again(url: str) -> dict[tuple[object, object], list[object]]:
    """The copies of it."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(sa.select(tables.shared)).all()
    engine.dispose()
    return {(row.kind, row.of): json.loads(row.said) for row in found}


def test_a_record_of_a_release_reads_as_it_was_written(url: str) -> None:
    with Store.open(url) as store:
        record = store.record("12345678-0000-4000-8000-000000000001")
        champion = store.champion(record.problem, "GPU-1", "cold")
        assert len(store.records()) == 34
    assert record.problem == ProblemKey("gemm", (("m", 64), ("n", 64), ("k", 64)), "float32", "nn")
    assert record.device == DeviceInfo(
        "NVIDIA H200", "cuda", uuid="GPU-1", architecture="sm_90", driver="580.1", sm_count=132
    )
    assert (record.role, record.kernel, record.source_hash) == (Role.TRIAL, "tiled", "0123abcd")
    assert list(record.config.items()) == [("BM", 0), ("PAD", True), ("BORDER", "check"), ("SCALE", 0.5)]
    assert record.measurement.outcome is Outcome.MEASURED
    assert record.measurement.samples_s == tuple(1e-3 + index * 3.2e-8 for index in range(40))
    assert record.measurement.error == Error(1.5e-6, 2.5e-7, 0.125, 1e-7)
    assert record.measurement.compiled == CompileReport(128, 16, 32768, 8, "cafe", "NVRTC 13.0")
    assert (champion.speedup, champion.verdict, champion.pairs) == (1.25, "first", ())
    assert champion.baseline.kernel == "cuBLAS"


def test_rows_are_summed_a_few_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sa, "text", _few_at_a_time)
    Store.open(url).close()
    found = health.check(url)
    assert (found.records, found.champions, found.damaged) == (34, 4, 0)


_TEXT = sa.text


def _few_at_a_time(statement: str) -> sa.TextClause:
    return _TEXT(statement.replace(":many", "3 + 0 * :many"))


def test_a_reader_is_told_how_to_bring_it_forward(url: str) -> None:
    with pytest.raises(StoreTrouble, match="`tuner records upgrade`, or any command that writes"):
        Store.open(url, read_only=True)


@pytest.mark.parametrize("late", [False, True])
def test_a_migration_that_is_killed_leaves_the_old_state(url: str, schema: str, late: bool) -> None:
    """Killed at the first statement that changes something, or while rows are summed or copied."""
    killed_at = {"0001": 35, "0002": 8, "0003": 3, "0004": 3}[schema] if late else 2
    script = f"""
import os, signal, sqlalchemy as sa
from tuner.store import Store
made = []
@sa.event.listens_for(sa.Engine, "after_cursor_execute")
def killed(connection, cursor, statement, parameters, context, many):
    if statement.split()[0] in ("CREATE", "ALTER", "INSERT", "UPDATE"):
        made.extend(parameters if many else [parameters])
    if len(made) >= {killed_at}:
        os.kill(os.getpid(), signal.SIGKILL)
Store.open({url!r})
"""
    before = content(url)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert content(url) == before
    assert before[tables.VERSION_TABLE] == [(schema,)]
    with Store.open(url) as store:
        assert len(store.records()) == 34


def test_a_newer_schema_is_refused_unharmed(url: str) -> None:
    Store.open(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {tables.VERSION_TABLE} SET version_num = '0042'")
    engine.dispose()
    before = content(url)
    for read_only in (True, False):
        with pytest.raises(StoreTrouble, match=r"has schema 0042, made by tile-tuner of a newer version"):
            Store.open(url, read_only=read_only)
    assert content(url) == before

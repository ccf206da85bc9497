"""Every older schema is carried over, whole or not at all; a newer one is refused.

A fixture is the dump of a database that a version with that schema wrote: `fixtures/schemas/<schema>.sql`.
"""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from fixtures.postgres import Databases

import tuner.store
from tuner.declare.hardware import DeviceInfo
from tuner.errors import StoreTrouble
from tuner.night import stored
from tuner.results.measurement import CompileReport, Error, Outcome
from tuner.results.record import ProblemKey, Retraction, Role
from tuner.results.verdict import Act
from tuner.store import Store, health, listing, tables

ROOT = Path(tuner.__file__).parent.parent
FIXTURES = Path(__file__).parents[2] / "fixtures" / "schemas"


def dumped(schema: str, path: Path) -> Path:
    """A database as a version left it."""
    with sqlite3.connect(path) as connection:
        connection.executescript((FIXTURES / f"{schema}.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


def on_server(schema: str, url: str, tmp_path: Path) -> None:
    """The same on a server, with its types."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    file = sa.create_engine(f"sqlite:///{dumped(schema, tmp_path / 'dumped.db')}", poolclass=sa.NullPool)
    found = sa.MetaData()
    with file.connect() as rows, engine.begin() as connection:
        found.reflect(rows)
        for table in found.sorted_tables:
            for column in table.columns:
                is_id = isinstance(column.type, sa.CHAR)
                column.type = sa.Uuid(as_uuid=False) if is_id else column.type.as_generic()
            table.create(connection)
            for row in rows.execute(sa.select(table)).mappings():
                connection.execute(table.insert().values(**row))


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    found = sa.MetaData()
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        found.reflect(connection)
        rows = lambda table: [tuple(row) for row in connection.execute(sa.select(table))]
        return {name: rows(table) for name, table in found.tables.items()}


def on(server: str, schema: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database as a version with this schema left it."""
    if server == "sqlite":
        return f"sqlite:///{dumped(schema, tmp_path / 'studies.db')}"
    url = Databases(request.getfixturevalue("postgresql")).fresh()
    on_server(schema, url, tmp_path)
    return url


@pytest.mark.parametrize(
    ("server", "schema"),
    [*(("sqlite", schema) for schema in tables.OLDER), ("postgresql", "0001"), ("postgresql", "0005")],
)
def test_old_schemas_are_read_as_written(
    server: str, schema: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = on(server, schema, request, tmp_path)
    with pytest.raises(StoreTrouble, match="`tuner records upgrade`, or any command that writes"):
        Store.open(url, read_only=True)
    assert health.rescue(url, tmp_path / "rescued.db").from_tables >= 38
    with Store.open(url) as store:
        record = store.record("12345678-0000-4000-8000-000000000001")
        champion = store.champion(record.problem, "GPU-1", "cold")
        assert len(store.records()) == 34
        assert len(list(listing.stream(store, Retraction))) == (schema >= "0003")
        log, sentinels, events = store.crown_log(), stored.sentinels(store), stored.events(store)
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
    if schema == "0005":
        assert [(entry.act, entry.problem is None) for entry in log] == [(Act.PIN, False), (Act.FREEZE, True)]
        assert [(sentinel.player("champion").time_s, sentinel.problem) for sentinel in sentinels] == [
            (pytest.approx(1.05e-3), log[0].problem)
        ]
        assert [(event.event, dict(event.data)) for event in events] == [("begun", {"plan": "a.toml"})]
    found = health.check(url)
    assert (found.records, found.champions, found.damaged) == (34, 4, 0)
    present = sa.inspect(sa.create_engine(url, poolclass=sa.NullPool))
    for name, table in tables.METADATA.tables.items():
        assert {column["name"] for column in present.get_columns(name)} - {"checksum"} == set(table.c.keys())
        assert {index["name"] for index in present.get_indexes(name)} >= {index.name for index in table.indexes}


@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_a_killed_migration_changes_nothing(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Killed while rows are rewritten."""
    url = on(server, "0004", request, tmp_path)
    script = f"""
import os, signal, sqlalchemy as sa
from tuner.store import Store
made = []
@sa.event.listens_for(sa.Engine, "after_cursor_execute")
def killed(connection, cursor, statement, parameters, context, many):
    if statement.split()[0] in ("CREATE", "ALTER", "INSERT", "UPDATE"):
        made.append(statement)
    if len(made) >= 30:
        os.kill(os.getpid(), signal.SIGKILL)
Store.open({url!r})
"""
    before = content(url)
    assert before[tables.version.name] == [("0004",)]
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert content(url) == before
    with Store.open(url) as store:
        assert len(store.records()) == 34


def test_a_damaged_row_is_not_carried_over(tmp_path: Path) -> None:
    path = dumped("0004", tmp_path / "studies.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tuner_records SET work = '{' WHERE number = 7")
    connection.close()
    before = content(f"sqlite:///{path}")
    with pytest.raises(StoreTrouble, match="it is damaged"):
        Store.open(f"sqlite:///{path}")
    assert content(f"sqlite:///{path}") == before


def test_a_newer_schema_is_refused_unharmed(either_url: str) -> None:
    newer = tables.schema_history.insert().values(version="0042", tuner_version="9.8.7", migrated_at="")
    with sa.create_engine(either_url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql(f"UPDATE {tables.version.name} SET version_num = '0042'")
        connection.execute(newer)
    before, told = content(either_url), r"has schema 0042, made by a newer version; this is .*up to 0006"
    for read_only in (True, False):
        with pytest.raises(StoreTrouble, match=told):
            Store.open(either_url, read_only=read_only)
    assert content(either_url) == before

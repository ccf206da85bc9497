"""Opens a database: engine, durability, schema. Every failure is reported in one sentence."""

import contextlib
import os
import re
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite  # else a process's first question loads it
from sqlalchemy.engine import URL, make_url

from tuner.errors import NothingFound, StoreTrouble
from tuner.extras import remedy
from tuner.results.record import new_id
from tuner.store import tables
from tuner.store.tables import SCHEMA
from tuner.version import __version__

_DAMAGED = "save what is readable with `tuner records check --rescue NEW.db`"
_UNHARMED = "what was stored before is unharmed"
#: What a driver's or server's message matches -> what is wrong, and the remedy.
_TROUBLES = {
    "file is not a database": "it is no SQLite database; give another with --db, move the file away, or "
    f"{_DAMAGED} if it is a damaged one",
    "malformed": f"it is damaged; {_DAMAGED}",
    "readonly database": "it is read-only and has to be written; change its permissions, or copy it",
    "unable to open": "it cannot be opened; check that its folder exists and may be read and written",
    "is locked|lock timeout": "another process keeps it locked; wait for that process to end, or stop it",
    "disk is full|no space left": f"no space is left on its disk; {_UNHARMED}. Free some space",
    "disk i/o error": "its disk fails to read or write; look at the system's log",
    "connection refused|no such file or directory|connection timeout|failed to resolve host": "its server does "
    "not answer; start it, or check host, port and firewall",
    "authentication failed|no password supplied": "user or password is wrong or missing; check the URL, "
    "~/.pgpass or PGPASSWORD",
    "read-only transaction": "it was opened for reading; use a command that writes",
    "permission denied": "its user may not do this; grant it the right to create tables in its database",
    "database .* does not exist|role .* does not exist": "there is no such database or user on its "
    "server; make it, e.g. with `createdb`",
    "server closed the connection|terminating connection": f"its server went away; {_UNHARMED}",
}
#: Name of the lock that a writer holds during a transaction; PostgreSQL requires a number.
_WRITERS = 0x74756E6572
#: libpq's settings by which a connection to a server that vanished breaks within about a minute; by default it
#: takes hours (PostgreSQL, "Database Connection Control Functions").
_LOST_WITHIN = {
    "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000
}  # fmt: skip
#: Bytes that SQLite needs beside a database to read it while there is a write-ahead log (SQLite, "WAL-mode").
_INDEX_BYTES = 1 << 15
#: Seconds to wait for a server's first answer.
_CONNECT_WITHIN_S = 10


#: Seconds between two attempts to prepare a new file that another process prepares.
LOOK_AGAIN_S = 0.001
#: Exceptions raised by reading a damaged row.
DAMAGE = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError,
    struct.error, sa.exc.NoResultFound, sa.exc.MultipleResultsFound,
)  # fmt: skip


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns the database's exceptions into `StoreTrouble`.

    Raises:
        StoreTrouble: With the database's place, what is the matter and what to do.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        # Names of tables and columns are read before any row is, and are damaged as rows are.
        raise damaged(where, error) from error
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        message = str(getattr(error, "orig", None) or error).strip()
        # Without room for the index of its log, SQLite tells of an error of the disk.
        is_full = "disk I/O error" in message and _is_full(sqlite_file(parsed(where)))
        text = "disk is full" if is_full else message.lower()
        known = (trouble for pattern, trouble in _TROUBLES.items() if re.search(pattern, text))
        what = next(known, "the database refused; see what it said")
        raise StoreTrouble(f"cannot use the database {where}: {what} ({message})") from error


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """As `explained`, where rows are read: those that say nothing that was ever written are damage as well.

    Raises:
        StoreTrouble: With the database's place, what is the matter and what to do.
    """
    try:
        with explained(where):
            yield
    except DAMAGE as error:
        raise damaged(where, error) from error


def damaged(where: str, error: object) -> StoreTrouble:
    """Returns the error for a database whose data cannot have been written as it now reads."""
    return StoreTrouble(
        f"cannot use the database {where}: it is damaged, a row cannot be read ({error}); look with "
        f"`tuner records check`, and {_DAMAGED}"
    )


def parsed(url: str) -> URL:
    """Parses a database URL.

    Raises:
        StoreTrouble: The text is not a URL.
    """
    try:
        return make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        hint = f"did you mean sqlite:///{url}?" if url else "give one such as sqlite:///studies.db"
        raise StoreTrouble(
            f"a database is named by a URL such as sqlite:///studies.db, got {url!r}; {hint}"
        ) from error


def sqlite_file(url: URL) -> Path | None:
    """Returns the file of a SQLite database; None if it is in memory or on a server."""
    is_file = url.get_backend_name() == sqlite.dialect.name and url.database not in (None, "", ":memory:")
    return Path(str(url.database)) if is_file else None


def make_engine(url: URL, *, read_only: bool, patience_s: float = 30.0) -> sa.Engine:
    """Makes an engine whose transactions are real, are durable at commit, and wait for other writers.

    Args:
        url: Database.
        read_only: True to open a SQLite file without write access.
        patience_s: Seconds to wait for another writer.

    Raises:
        StoreTrouble: The URL's kind of database is unknown, its driver is not installed, or it names a folder
            or memory.
    """
    options: dict[str, Any] = {}
    file = sqlite_file(url)
    if file is not None and file.is_dir():
        raise StoreTrouble(f"a database is a file, {file} is a folder; name a file, e.g. {file}/studies.db")
    if file is not None:
        options = _file_options(file, read_only=read_only, patience_s=patience_s)
    elif url.get_backend_name() == "sqlite":
        raise StoreTrouble(
            "a database is kept in a file or on a server, got one in memory, which would be lost with this "
            "process; name a file, such as sqlite:///studies.db"
        )
    elif url.get_backend_name() == "postgresql":
        options = _postgres_options(read_only=read_only, patience_s=patience_s)
    try:
        engine = sa.create_engine(url, **options)
    except sa.exc.NoSuchModuleError as error:
        raise StoreTrouble(
            f"a database's URL starts with sqlite or postgresql, got {url.drivername!r}; change it"
        ) from error
    except ImportError as error:
        raise StoreTrouble(
            f"the driver of {url.drivername!r} is not installed ({error}); {remedy('postgres')}, if it is for "
            "PostgreSQL; or use sqlite:///FILE"
        ) from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine, read_only=read_only, patience_s=patience_s)
    else:
        sa.event.listen(engine, "begin", _in_turn)
    return engine


def _postgres_options(*, read_only: bool, patience_s: float) -> dict[str, Any]:
    """Arguments of `create_engine`.

    A commit is on disk when it returns, whatever the server's settings. Broken connections are replaced.
    """
    settings = {
        "synchronous_commit": "on", "lock_timeout": f"{max(1, int(patience_s * 1000))}ms",
        "default_transaction_read_only": "on" if read_only else "off", "application_name": "tile-tuner",
    }  # fmt: skip
    named = " ".join(f"-c {name}={value}" for name, value in settings.items())
    arguments = {"options": named, "connect_timeout": _CONNECT_WITHIN_S, **_LOST_WITHIN}
    return {"connect_args": arguments, "pool_pre_ping": True}


def _in_turn(connection: sa.Connection) -> None:
    """Makes writers to a server take turns.

    Two that add the same rows in different orders would deadlock until the server ended one.
    """
    if connection.get_execution_options().get("writes", False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")


def _disk_of(file: Path | None) -> os.statvfs_result | None:
    """The disk of a database's file; None if it is on a server, or its folder is missing."""
    with contextlib.suppress(OSError):
        return os.statvfs(file.absolute().parent) if file is not None else None
    return None


def _is_full(file: Path | None) -> bool:
    """True if a disk has no room for the index of a write-ahead log."""
    disk = _disk_of(file)
    return disk is not None and disk.f_bavail * disk.f_frsize < _INDEX_BYTES


def on_read_only_disk(url: str) -> bool:
    """True if a database is a file of a file system that cannot be written."""
    disk = _disk_of(sqlite_file(parsed(url)))
    return disk is not None and bool(disk.f_flag & os.ST_RDONLY)


def _file_options(file: Path, *, read_only: bool, patience_s: float) -> dict[str, Any]:
    """Arguments of `create_engine`. A reader without a right to write, or room, reads it as it lies."""
    file = file.absolute()  # later connections are to the same file, in whatever folder the process is
    no_room = read_only and _is_full(file)
    as_it_lies = no_room or (read_only and not os.access(file.parent, os.W_OK))
    made = False

    def connected(mode: str) -> sqlite3.Connection:
        address = f"file:{quote(str(file))}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=patience_s, check_same_thread=False)

    def connect() -> sqlite3.Connection:
        if not read_only:
            nonlocal made
            mode, made = "rw" if made else "rwc", True  # a file that was deleted is `Store`'s to make again
            return connected(mode)
        log = Path(f"{file}-wal")
        if as_it_lies and (not log.exists() or log.stat().st_size == 0):
            return connected("ro&immutable=1")
        connection = connected("rw" if no_room else "ro")
        if no_room:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # the index of the log is then kept in memory
        return connection

    # A connection to a file as it lies sees no later writes, or lets nobody else connect: it is not kept.
    return {"creator": connect, "poolclass": sa.NullPool if as_it_lies else None}


def _prepare_sqlite(engine: sa.Engine, *, read_only: bool, patience_s: float) -> None:
    """Sets a write-ahead log that is synchronised at each commit, foreign keys, and our own BEGIN.

    The driver of Python 3.11 begins a transaction before INSERT but not before CREATE TABLE, so a migration
    killed half-way would stay half done. With its own BEGIN off, ours covers both.
    """

    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        until_s = time.monotonic() + patience_s
        while not read_only:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                # SQLite itself does not wait for another that does the same to a new file.
                if "locked" not in str(error) or time.monotonic() > until_s:
                    raise
                time.sleep(LOOK_AGAIN_S)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    def begun(connection: sa.Connection) -> None:
        # A writer takes its lock at once, because one that reads before it writes can fail without waiting.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)


def schema_of(connection: sa.Connection, where: str) -> str:
    """Returns the schema of the database; empty if it has no tables of ours.

    Raises:
        StoreTrouble: It has another schema than this version.
    """
    if not sa.inspect(connection).has_table(tables.version.name):
        return ""
    schema = str(connection.execute(sa.select(tables.version.c.version_num)).scalar() or "")
    if schema in ("", SCHEMA):
        return schema
    raise StoreTrouble(
        f"the database {where} has schema {schema}, made by another version; this is tile-tuner {__version__}, "
        f"which knows {SCHEMA}; use that version, export with it what is to be imported here, or take another "
        "database"
    )


def ready_to_read(engine: sa.Engine, where: str) -> None:
    """Checks that a database can be read as it is.

    Raises:
        NothingFound: It holds no tables of ours.
        StoreTrouble: Its schema is another.
    """
    with reading(where), engine.connect() as connection:
        if not schema_of(connection, where):
            raise NothingFound(f"the database {where} holds no records yet; run `tuner tune` first")


def ready_to_write(engine: sa.Engine, where: str) -> None:
    """Makes the tables, in one transaction.

    Raises:
        StoreTrouble: The database cannot be written, or its schema is another.
    """
    with explained(where):
        with engine.connect() as connection:
            if schema_of(connection, where):
                return
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            # Another process may have done so since; none can during this transaction.
            if not schema_of(connection, where):
                tables.METADATA.create_all(connection)
                connection.execute(tables.identity.insert().values(id=new_id()))
                connection.execute(tables.version.insert().values(version_num=SCHEMA))


def identity(engine: sa.Engine, where: str) -> str:
    """Returns the UUID of a database, which copies of it share."""
    with reading(where), engine.connect() as connection:
        return str(connection.execute(sa.select(tables.identity.c.id)).scalars().first() or "")

"""Settings for PostgreSQL, and the meaning of its error messages."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

#: Part of the server's or driver's message -> what is wrong, and the remedy.
TROUBLES = (
    ("connection refused", "its server does not answer; start it, or check host and port"),
    ("no such file or directory", "its server does not answer; start it, or check the folder of its socket"),
    ("failed to resolve host", "its host is unknown; check the name"),
    ("connection timeout", "its server does not answer; check host, port and firewall"),
    ("authentication failed", "user or password is wrong; check them in the URL, or in ~/.pgpass"),
    ("no password supplied", "it asks for a password; give it in ~/.pgpass or PGPASSWORD"),
    ("read-only transaction", "it was opened for reading; use a command that writes"),
    ("permission denied", "its user may not do this; grant it the right to create tables in its database"),
    ("lock timeout", "another process keeps it locked; wait for that process to end, or stop it"),
    ("not currently accepting connections", "it takes no connections now; wait, or ask who runs it"),
    ("the database system is", "its server is starting or going down; wait for it"),
    ("too many clients", "all of its connections are taken; try again, or raise max_connections"),
    (
        "server closed the connection",
        "its server went away; what was stored before is unharmed",
    ),
    ("terminating connection", "its server is going down; what was stored before is unharmed"),
    ("no space left", "no space is left on its disk; what was stored before is unharmed. Free some space"),
    ("does not exist", "there is no such database or user on its server; make it, e.g. with `createdb`"),
)
#: Name of the lock that a writer holds during a transaction; PostgreSQL requires a number.
_WRITERS = 0x74756E6572
#: libpq's settings by which a connection to a server that vanished breaks within about a minute; by default it
#: takes hours (PostgreSQL, "Database Connection Control Functions").
_LOST_WITHIN = {
    "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000
}  # fmt: skip
#: Seconds to wait for a server's first answer.
_CONNECT_WITHIN_S = 10


def options(*, read_only: bool, patience_s: float) -> dict[str, Any]:
    """Arguments of `create_engine`.

    A commit is on disk when it returns, whatever the server's settings. Broken connections are replaced.
    """
    settings = {
        "synchronous_commit": "on",
        "lock_timeout": f"{max(1, int(patience_s * 1000))}ms",
        "default_transaction_read_only": "on" if read_only else "off",
        "application_name": "tile-tuner",
    }
    told = " ".join(f"-c {name}={value}" for name, value in settings.items())
    arguments = {"options": told, "connect_timeout": _CONNECT_WITHIN_S, **_LOST_WITHIN}
    return {"connect_args": arguments, "pool_pre_ping": True}


def prepare(engine: sa.Engine) -> None:
    """Makes writers take turns.

    Otherwise two writers that add the same rows in different orders would deadlock until the server ended one.
    """

    def begun(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")

    sa.event.listen(engine, "begin", begun)

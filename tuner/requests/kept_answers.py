"""Answers of a server that a client keeps, for the time when the server is away."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tuner.results.record import utc_now

#: Answers of one server; the oldest go.
MOST = 100_000


class Kept(NamedTuple):
    """An answer that was kept.

    Attributes:
        snapshot: The server's snapshot.
        etag: Its entity tag.
        body: JSON.
        at: When it was given; ISO 8601, UTC.
    """

    snapshot: int
    etag: str
    body: str
    at: str


class KeptAnswers:
    """A file in the user's cache, one for each server. Without access to it, nothing is kept."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        """Names the file.

        Args:
            url: Address of the server.
            folder: Folder of these files; one in the cache when None.
        """
        if folder is None:
            from tuner.devices.cache_folder import cache_root

            folder = cache_root() / "client"
        self._path = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.db"

    def get(self, question: str) -> Kept | None:
        """The last answer to a question; None if there is none."""
        with contextlib.suppress(OSError, sqlite3.Error), self._opened() as connection:
            row = connection.execute(
                "SELECT snapshot, etag, body, at FROM answers WHERE question = ?", (question,)
            ).fetchone()
            return None if row is None else Kept(*row)
        return None

    def put(self, question: str, snapshot: int, etag: str, body: str) -> None:
        """Keeps an answer."""
        with contextlib.suppress(OSError, sqlite3.Error), self._opened() as connection:
            row = (question, snapshot, etag, body, utc_now())
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)
            connection.execute(
                "DELETE FROM answers WHERE question IN (SELECT question FROM answers ORDER BY at DESC "
                f"LIMIT -1 OFFSET {MOST})"
            )
            connection.commit()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self._path, timeout=2.0)) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, snapshot INTEGER, etag TEXT, "
                "body TEXT, at TEXT)"
            )
            yield connection

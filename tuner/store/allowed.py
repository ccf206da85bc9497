"""Files of kernels that the operator of a node allows jobs to name, as they are stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.results.record import utc_now
from tuner.store import Store, opening, tables
from tuner.store.reading import Reader


@dataclass(frozen=True)
class Allowed:
    """A file that jobs may name.

    Attributes:
        path: The file, absolute.
        digest: SHA-256 over all files that it is made of.
        covers: These files: itself, the modules beside it, the sources of its kernels.
        allowed_at: ISO 8601, UTC.
    """

    path: str
    digest: str
    covers: tuple[str, ...]
    allowed_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "file": self.path, "digest": self.digest, "covers": list(self.covers),
            "allowed_at": self.allowed_at,
        }  # fmt: skip


def allow(store: Store, node: str, file: Allowed) -> None:
    """Allows a file on a node, in place of an earlier state of it."""
    of = tables.allowed_files
    row = {
        "node": node, "path": file.path, "digest": file.digest, "covers": json.dumps(file.covers),
        "allowed_at": utc_now(),
    }  # fmt: skip
    with opening.explained(store._where), store._writing() as connection:
        connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == file.path))
        connection.execute(sa.insert(of).values(**row))


def disallow(store: Store, node: str, path: str) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    of = tables.allowed_files
    with opening.explained(store._where), store._writing() as connection:
        gone = connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == path)).rowcount
    if not gone:
        raise NothingFound(f"{path} is not allowed here; `tuner allow --list` shows what is")


def files(store: Reader, node: str) -> list[Allowed]:
    """What is allowed on a node, by path."""
    of = tables.allowed_files
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(sa.select(of).where(of.c.node == node).order_by(of.c.path)).all()
    return [Allowed(row.path, row.digest, tuple(json.loads(row.covers)), row.allowed_at) for row in found]

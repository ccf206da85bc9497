"""Tokens of the service as they are stored: name, scopes, times, and the digest of the secret."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound
from tuner.results.record import utc_now
from tuner.store import Store, tables
from tuner.store.reading import Reader


@dataclass(frozen=True)
class StoredToken:
    """A token without its secret.

    Attributes:
        name: Whom it was given to.
        digest: SHA-256 of the secret, hexadecimal.
        scopes: What it allows.
        created_at: ISO 8601, UTC.
        expires_at: ISO 8601, UTC.
        revoked_at: ISO 8601, UTC; empty while it is valid.
        used_at: When it was last used, to about a minute; empty if never.
    """

    name: str
    digest: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str
    revoked_at: str = ""
    used_at: str = ""

    @property
    def valid(self) -> bool:
        """True if it is neither revoked nor expired."""
        return not self.revoked_at and utc_now() < self.expires_at

    def to_json(self) -> dict[str, Any]:
        """What may be told of it."""
        state = "revoked" if self.revoked_at else "valid" if self.valid else "expired"
        return {
            "name": self.name, "scopes": list(self.scopes), "state": state, "created_at": self.created_at,
            "expires_at": self.expires_at, "revoked_at": self.revoked_at or None,
            "used_at": self.used_at or None,
        }  # fmt: skip


def add(store: Store, token: StoredToken) -> None:
    """Stores a token.

    Raises:
        InputError: There is one of that name.
    """
    of = tables.tokens
    row = {**vars(token), "scopes": ",".join(token.scopes)}
    with store.writing() as connection:
        if connection.execute(sa.select(of.c.number).where(of.c.name == token.name)).first():
            raise InputError(
                f"a token has a name of its own, and there is one named {token.name!r} (revoked ones keep "
                f"theirs, for the log); choose another, such as {token.name}-2"
            )
        connection.execute(sa.insert(of).values(**row))


def every(store: Reader) -> list[StoredToken]:
    """All tokens, in the order made, revoked and expired ones included."""
    of = tables.tokens
    with store.reading() as connection:
        found = connection.execute(sa.select(of).order_by(of.c.number)).mappings().all()
        return [_token(dict(row)) for row in found]


def _token(row: dict[str, Any]) -> StoredToken:
    row.pop("number")
    return StoredToken(**row | {"scopes": tuple(str(row["scopes"]).split(","))})


def revoke(store: Store, name: str) -> None:
    """Revokes a token for good.

    Raises:
        NothingFound: None has the name.
    """
    of = tables.tokens
    with store.writing() as connection:
        found = connection.execute(sa.select(of.c.revoked_at).where(of.c.name == name)).one_or_none()
        if found is None:
            raise NothingFound(f"no token is named {name!r}; `tuner token list` shows them")
        if not found[0]:
            connection.execute(sa.update(of).where(of.c.name == name).values(revoked_at=utc_now()))


def used(store: Store, times: dict[str, str]) -> None:
    """Stores when tokens were last used: name -> ISO 8601, UTC."""
    of = tables.tokens
    with store.writing() as connection:
        for name, when in times.items():
            connection.execute(sa.update(of).where(of.c.name == name).values(used_at=when))


@dataclass(frozen=True)
class AllowedFile:
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


def allow(store: Store, node: str, file: AllowedFile) -> None:
    """Allows a file on a node, in place of an earlier state of it."""
    of = tables.allowed_files
    row = {
        "node": node, "path": file.path, "digest": file.digest, "covers": json.dumps(file.covers),
        "allowed_at": utc_now(),
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == file.path))
        connection.execute(sa.insert(of).values(**row))


def disallow(store: Store, node: str, path: str) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    of = tables.allowed_files
    with store.writing() as connection:
        gone = connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == path)).rowcount
    if not gone:
        raise NothingFound(f"{path} is not allowed here; `tuner allow --list` shows what is")


def files(store: Reader, node: str) -> list[AllowedFile]:
    """What is allowed on a node, by path."""
    of = tables.allowed_files
    with store.reading() as connection:
        found = connection.execute(sa.select(of).where(of.c.node == node).order_by(of.c.path)).all()
    return [AllowedFile(row.path, row.digest, tuple(json.loads(row.covers)), row.allowed_at) for row in found]

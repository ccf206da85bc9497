"""Tokens of the service: made, listed, revoked and checked; and the logins that they begin."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound, UnknownName
from tuner.results.record import utc_now
from tuner.store import Store, tables
from tuner.store.reading import Reader

#: What a token may allow; ``admin`` includes the others.
READ, SUBMIT, RECORDS, ADMIN = "read", "submit", "records", "admin"
SCOPES = (READ, SUBMIT, RECORDS, ADMIN)
#: Beginning of every secret, by which people and scanners know one.
PREFIX = "tuner_"
SECRET_BYTES = 32
LONGEST_DAYS = 3650
#: Names of tokens.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: Seconds between two notes of when tokens were used.
NOTE_EVERY_S = 30.0
#: Failures of an address that cost nothing yet; the wait doubles with each further one up to a limit, seconds.
FREE_FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S = 5, 1.0, 300.0
#: Seconds after which the failures of an address are forgotten.
FORGOTTEN_S = 3600.0
#: Name of a login's cookie, and seconds for which it holds.
COOKIE, LASTS_S = "tuner_session", 12 * 3600

_OF = tables.tokens.c


def create(store: Store, name: str, scopes: Sequence[str], days: float) -> str:
    """Makes a token.

    Returns:
        Its secret, which is kept nowhere.

    Raises:
        InputError: Name, scopes or days are wrong, or the name is taken.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"a token's name has up to 64 letters, digits and . _ @ -, got {name!r}; take another")
    for scope in scopes or [""]:
        if scope not in SCOPES:
            raise UnknownName("scope", scope, SCOPES)
    if not 0 < days <= LONGEST_DAYS:
        raise InputError(f"a token is valid for up to {LONGEST_DAYS} days, got {days:g}; give e.g. 90")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    until = datetime.now(UTC) + timedelta(days=days)
    row = {
        "name": name, "digest": digest_of(secret), "scopes": ",".join(filter(scopes.__contains__, SCOPES)),
        "created_at": utc_now(), "expires_at": until.isoformat(timespec="microseconds"), "revoked_at": "",
        "used_at": "",
    }  # fmt: skip
    with store.writing() as connection:
        if connection.execute(sa.select(_OF.number).where(_OF.name == name)).first():
            raise InputError(
                f"a token has a name of its own, and there is one named {name!r} (revoked ones keep theirs, "
                f"for the log); choose another, such as {name}-2"
            )
        connection.execute(sa.insert(tables.tokens).values(**row))
    return secret


def digest_of(secret: str) -> str:
    """What is stored of a secret: it has 256 random bits, so a plain hash cannot be reversed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def tokens(store: Reader) -> Sequence[sa.Row[Any]]:
    """The rows of all tokens, in the order made, revoked and expired ones included."""
    return store.rows(sa.select(tables.tokens).order_by(_OF.number))


def is_valid(token: Any) -> bool:
    """True if a token is neither revoked nor expired."""
    return not token.revoked_at and utc_now() < token.expires_at


def token_json(token: Any) -> dict[str, Any]:
    """What may be told of a token."""
    state = "revoked" if token.revoked_at else "valid" if is_valid(token) else "expired"
    return {
        "name": token.name, "scopes": token.scopes.split(","), "state": state, "created_at": token.created_at,
        "expires_at": token.expires_at, "revoked_at": token.revoked_at or None,
        "used_at": token.used_at or None,
    }  # fmt: skip


def revoke(store: Store, name: str) -> None:
    """Revokes a token for good.

    Raises:
        NothingFound: None has the name.
    """
    first = sa.case((_OF.revoked_at == "", utc_now()), else_=_OF.revoked_at)
    with store.writing() as connection:
        named = sa.update(tables.tokens).where(_OF.name == name)
        if not connection.execute(named.values(revoked_at=first)).rowcount:
            raise NothingFound(f"no token is named {name!r}; `tuner token list` shows them")


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        name: Name of the token; ``local`` without one.
        scopes: What it allows.
    """

    name: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """True if the scope is allowed."""
        return scope in self.scopes or ADMIN in self.scopes


class TokenRegistry:
    """Knows the tokens, and who presents one. `refresh` is called about once a second."""

    def __init__(self, store: Store, local_admin: bool = False) -> None:
        """Reads the tokens.

        Args:
            store: Where they are.
            local_admin: True to let everyone on this machine do everything while no token was ever made.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        self._store = store
        self._used: dict[str, str] = {}
        self._noted_s = time.monotonic()
        self._tokens: Sequence[sa.Row[Any]] = ()
        #: Who asks without a token, while that is allowed.
        self.anyone = Caller("local", frozenset(SCOPES if local_admin else (READ,)))
        self.refresh()

    @property
    def is_open(self) -> bool:
        """True while no token was ever made: then everyone on this machine may read."""
        return not self._tokens

    def caller(self, secret: str) -> Caller | None:
        """Who presents a secret; None if it is no valid token.

        The time that it takes tells nothing of the stored tokens.
        """
        presented = digest_of(secret)
        names = [token.name for token in self._tokens if hmac.compare_digest(presented, token.digest)]
        caller = self.still("".join(names))
        if caller is not None:
            self._used[caller.name] = utc_now()
        return caller

    def still(self, name: str) -> Caller | None:
        """The caller of a name, for a session that a token began; None if it is no longer valid."""
        valid = (token for token in self._tokens if token.name == name and is_valid(token))
        return next((Caller(name, frozenset(token.scopes.split(","))) for token in valid), None)

    def refresh(self) -> None:
        """Reads the tokens again, so that new ones count and revoked ones do not; stores when they were used.

        Raises:
            StoreTrouble: The database cannot be used; the tokens known before go on counting.
        """
        self._tokens = tokens(self._store)
        if time.monotonic() - self._noted_s < NOTE_EVERY_S:
            return
        self._noted_s = time.monotonic()
        times, self._used = self._used, {}
        if times:
            with self._store.writing() as connection:
                for name, when in times.items():
                    named = sa.update(tables.tokens).where(_OF.name == name)
                    connection.execute(named.values(used_at=when))


class Remembered:
    """Values that are forgotten after a while; the oldest goes early where there are too many."""

    def __init__(self, lasts_s: float, most: int = 10_000) -> None:
        self._lasts_s, self._most = lasts_s, most
        self._values: dict[str, tuple[Any, float]] = {}

    def keep(self, key: str, value: Any) -> None:
        """Keeps a value."""
        self._values.pop(key, None)
        if len(self._values) >= self._most:
            del self._values[next(iter(self._values))]
        self._values[key] = value, time.monotonic() + self._lasts_s

    def get(self, key: str, default: Any = None) -> Any:
        """A value; the default if there is none, or it is forgotten."""
        value, until_s = self._values.get(key, (None, 0.0))
        return value if time.monotonic() < until_s else default

    def forget(self, key: str) -> None:
        """Forgets a value."""
        self._values.pop(key, None)


class Throttle(Remembered):
    """Slows down addresses that present wrong tokens: address -> failures, and when it is heard again."""

    def __init__(self) -> None:
        super().__init__(FORGOTTEN_S)

    def wait_s(self, address: str) -> float:
        """Seconds for which an address is not heard; 0 if it is."""
        heard_s: float = self.get(address, (0, 0.0))[1]
        return max(0.0, heard_s - time.monotonic())

    def failed(self, address: str) -> int:
        """Counts a failure, and returns how many there were."""
        count: int = self.get(address, (0, 0.0))[0] + 1
        further = count - FREE_FAILURES
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(further, 20), LONGEST_WAIT_S) if further >= 0 else 0.0
        self.keep(address, (count, time.monotonic() + wait_s))
        return count

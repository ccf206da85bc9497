"""Tokens of the service: made, listed, revoked and checked."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tuner.errors import InputError, UnknownName
from tuner.results.record import utc_now
from tuner.service import stored_jobs as jobs
from tuner.service.stored_jobs import StoredToken
from tuner.store import Store

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
#: Addresses whose failures are remembered.
MOST_ADDRESSES = 10_000
#: Name of a login's cookie, seconds for which it holds, and logins at once; the oldest is ended for one more.
COOKIE, LASTS_S, MOST_SESSIONS = "tuner_session", 12 * 3600, 10_000


def create(store: Store, name: str, scopes: Sequence[str], days: float) -> str:
    """Makes a token.

    Returns:
        Its secret, which is kept nowhere.

    Raises:
        InputError: Name, scopes or days are wrong, or the name is taken.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"a token's name has up to 64 letters, digits and . _ @ -, got {name!r}; choose another"
        )
    if not scopes:
        raise InputError(f"a token has one scope or more of {', '.join(SCOPES)}, got none; add one")
    for scope in scopes:
        if scope not in SCOPES:
            raise UnknownName("scope", scope, SCOPES)
    if not 0 < days <= LONGEST_DAYS:
        raise InputError(f"a token is valid for up to {LONGEST_DAYS} days, got {days:g}; give e.g. 90")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    until = datetime.now(UTC) + timedelta(days=days)
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    ends = until.isoformat(timespec="microseconds")
    jobs.add_token(store, StoredToken(name, digest_of(secret), ordered, utc_now(), ends))
    return secret


def digest_of(secret: str) -> str:
    """What is stored of a secret: it has 256 random bits, so a plain hash cannot be reversed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


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
        self._tokens: tuple[StoredToken, ...] = ()
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
        valid = (token for token in self._tokens if token.name == name and token.valid)
        return next((Caller(name, frozenset(token.scopes)) for token in valid), None)

    def refresh(self) -> None:
        """Reads the tokens again, so that new ones count and revoked ones do not.

        Raises:
            StoreTrouble: The database cannot be used; the tokens known before go on counting.
        """
        self._tokens = tuple(jobs.tokens(self._store))
        if time.monotonic() - self._noted_s > NOTE_EVERY_S:
            self.note_use()

    def note_use(self) -> None:
        """Stores when tokens were last used.

        Raises:
            StoreTrouble: The database cannot be written.
        """
        self._noted_s = time.monotonic()
        times, self._used = self._used, {}
        if times:
            jobs.note_uses(self._store, times)


class Throttle:
    """Slows down addresses that present wrong tokens."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def wait_s(self, address: str) -> float:
        """Seconds for which an address is not heard; 0 if it is."""
        count, last_s = self._failures.get(address, (0, 0.0))
        if count < FREE_FAILURES:
            return 0.0
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(count - FREE_FAILURES, 20), LONGEST_WAIT_S)
        return max(0.0, last_s + wait_s - time.monotonic())

    def failed(self, address: str) -> int:
        """Counts a failure, and returns how many there were."""
        count = self._failures.pop(address, (0, 0.0))[0] + 1
        if len(self._failures) >= MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count, time.monotonic()
        return count


class LoginSessions:
    """Browsers that are logged in, by the hash of their cookie."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[str, float]] = {}

    def begin(self, name: str) -> str:
        """Begins a session of the token of a name, and returns its cookie."""
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions[digest_of(cookie)] = name, time.monotonic() + LASTS_S
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return cookie

    def name(self, cookie: str) -> str | None:
        """Name of the token that a session was begun with; None if there is none, or it has ended."""
        name, until_s = self._sessions.get(digest_of(cookie), (None, 0.0))
        return name if time.monotonic() < until_s else None

    def end(self, cookie: str) -> None:
        """Ends a session."""
        self._sessions.pop(digest_of(cookie), None)

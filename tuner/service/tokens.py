"""Tokens of the service: made, listed, revoked and checked."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tuner.errors import InputError, TunerError, UnknownName
from tuner.results.record import utc_now
from tuner.store import Store, access
from tuner.store.access import StoredToken

#: What a token may allow; ``admin`` includes the others.
READ, SUBMIT, RECORDS, ADMIN = "read", "submit", "records", "admin"
SCOPES = (READ, SUBMIT, RECORDS, ADMIN)
#: Beginning of every secret, by which people and scanners know one.
PREFIX = "tuner_"
SECRET_BYTES = 32
LONGEST_DAYS = 3650
#: Names of tokens.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: Seconds between two looks at the stored tokens, and between two notes of when they were used.
LOOK_EVERY_S, NOTE_EVERY_S = 1.0, 30.0
#: Failures of an address that cost nothing yet; the wait doubles with each further one up to a limit, seconds.
FREE_FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S = 5, 1.0, 300.0
#: Addresses whose failures are remembered.
MOST_ADDRESSES = 10_000


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
    access.add(
        store,
        StoredToken(name, digest_of(secret), ordered, utc_now(), until.isoformat(timespec="microseconds")),
    )
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


#: Who asks from this machine while there are no tokens.
READER, LOCAL_ADMIN = Caller("local", frozenset((READ,))), Caller("local", frozenset(SCOPES))


class TokenRegistry:
    """Knows the tokens, and who presents one.

    Attributes:
        is_open: True while no token was ever made: then everyone on this machine may read.
    """

    def __init__(self, store: Store, local_admin: bool = False) -> None:
        """Reads the tokens.

        Args:
            store: Where they are.
            local_admin: True to let everyone on this machine do everything while no token was ever made.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        self._store, self._local_admin = store, local_admin
        self._used: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._tokens: tuple[StoredToken, ...] = ()
        self.refresh()

    @property
    def is_open(self) -> bool:
        """True while no token was ever made: then everyone on this machine may read."""
        return not self._tokens

    @property
    def anyone(self) -> Caller:
        """Who asks without a token, while that is allowed."""
        return LOCAL_ADMIN if self._local_admin else READER

    def caller(self, secret: str) -> Caller | None:
        """Who presents a secret; None if it is no valid token.

        The time that it takes tells nothing of the stored tokens.
        """
        presented, found = digest_of(secret), None
        for token in self._tokens:
            if hmac.compare_digest(presented, token.digest):
                found = token
        if found is None or not found.valid:
            return None
        self._used[found.name] = utc_now()
        return Caller(found.name, frozenset(found.scopes))

    def still(self, name: str) -> Caller | None:
        """The caller of a name, for a session that a token began; None if it is no longer valid."""
        found = next((token for token in self._tokens if token.name == name and token.valid), None)
        return None if found is None else Caller(name, frozenset(found.scopes))

    def refresh(self) -> None:
        """Reads the tokens again, so that new ones count and revoked ones do not."""
        self._tokens = tuple(access.every(self._store))

    def start(self) -> None:
        """Starts looking for changes."""
        self._thread = threading.Thread(target=self._watch, name="tokens", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops looking, and notes when tokens were used."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._note()

    def _watch(self) -> None:
        noted_s = time.monotonic()
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                self.refresh()
            except TunerError as error:
                logging.getLogger(__name__).warning("the tokens known before go on counting: %s", error)
            if time.monotonic() - noted_s > NOTE_EVERY_S:
                noted_s = time.monotonic()
                self._note()

    def _note(self) -> None:
        times, self._used = self._used, {}
        if times:
            try:
                access.used(self._store, times)
            except TunerError as error:
                logging.getLogger(__name__).warning("when tokens were used is not noted: %s", error)


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
        if len(self._failures) >= MOST_ADDRESSES:
            oldest = min(self._failures, key=lambda each: self._failures[each][1])
            del self._failures[oldest]
        count = self._failures.get(address, (0, 0.0))[0] + 1
        self._failures[address] = count, time.monotonic()
        return count

    def succeeded(self, address: str) -> None:
        """Forgets the failures of an address."""
        self._failures.pop(address, None)


#: Name of the cookie.
COOKIE = "tuner_session"
#: Seconds for which a login holds.
LASTS_S = 12 * 3600
#: Logins at once; the oldest is ended for one more.
MOST = 10_000


@dataclass(frozen=True)
class LoginSession:
    """A browser that is logged in.

    Attributes:
        name: Name of the token; empty for a browser that may read without one.
        csrf: What its forms carry, so that no other page can send them.
        until_s: When it ends, by `time.monotonic`.
    """

    name: str
    csrf: str
    until_s: float


class LoginSessions:
    """Logins by the hash of their cookie."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, LoginSession] = OrderedDict()

    def begin(self, name: str) -> tuple[str, LoginSession]:
        """Begins one. Returns the cookie, and the session."""
        cookie = secrets.token_urlsafe(32)
        session = LoginSession(name, secrets.token_urlsafe(32), time.monotonic() + LASTS_S)
        self._kept[_digest(cookie)] = session
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return cookie, session

    def of(self, cookie: str) -> LoginSession | None:
        """The session of a cookie; None if there is none, or it has ended."""
        session = self._kept.get(_digest(cookie)) if cookie else None
        return session if session is not None and time.monotonic() < session.until_s else None

    def end(self, cookie: str) -> None:
        """Ends one."""
        self._kept.pop(_digest(cookie), None)


def is_same(one: str, other: str) -> bool:
    """Compares two secrets in a time that tells nothing of them."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()

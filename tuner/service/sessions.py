"""Browsers that are logged in: a cookie stands for a token, and for nothing after the server has ended."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

#: Name of the cookie.
COOKIE = "tuner_session"
#: Seconds for which a login holds.
LASTS_S = 12 * 3600
#: Logins at once; the oldest is ended for one more.
MOST = 10_000


@dataclass(frozen=True)
class Session:
    """A browser that is logged in.

    Attributes:
        name: Name of the token; empty for a browser that may read without one.
        csrf: What its forms carry, so that no other page can send them.
        until_s: When it ends, by `time.monotonic`.
    """

    name: str
    csrf: str
    until_s: float


class Sessions:
    """Logins by the hash of their cookie."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Session] = OrderedDict()

    def begin(self, name: str) -> tuple[str, Session]:
        """Begins one. Returns the cookie, and the session."""
        cookie = secrets.token_urlsafe(32)
        session = Session(name, secrets.token_urlsafe(32), time.monotonic() + LASTS_S)
        self._kept[_digest(cookie)] = session
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return cookie, session

    def of(self, cookie: str) -> Session | None:
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

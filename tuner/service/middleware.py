"""Stands before every request: who may ask from where, how much may come, and a line of log for each."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from tuner.service.metrics import Metrics
from tuner.service.settings import Settings

#: What an ASGI application is made of.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Methods that change nothing.
SAFE = ("GET", "HEAD", "OPTIONS")
#: Bytes of a body; of one of records.
MOST_BYTES, MOST_RECORDS_BYTES = 2 << 20, 2 << 30
#: Seconds within which the next piece of a body must come.
PIECE_WITHIN_S = 30.0
RECORDS = "/v1/records"

_LOG = logging.getLogger("tuner.service.requests")
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
        b"base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class BadBody(HTTPException):
    """A body is larger than it may be, or does not come."""


class SecurityMiddleware:
    """Wraps the application."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        """Wraps it.

        Args:
            app: The application.
            settings: How the server runs.
            metrics: Counts requests.
        """
        self._app, self._metrics = app, metrics
        self._names = settings.host_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.perf_counter()
        sent = _TrackedSend(send)
        scope["state"] = {**scope.get("state", {}), "caller": "-"}
        refused = self._refusal(scope)
        try:
            if refused is not None:
                await sent.refuse(*refused)
            else:
                await self._app(scope, _bounded(scope, receive), sent)
        except BadBody as error:
            await sent.refuse(error.status_code, "BadBody", str(error.detail))
        except asyncio.CancelledError:
            raise
        except Exception:
            _LOG.exception("a request failed")
            await sent.refuse(500, "Trouble", "the server failed to answer; its log says more")
        finally:
            self._tell(scope, sent, time.perf_counter() - begun_s)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Why a request is not heard; None if it is."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._names is not None and name.casefold() not in self._names:
            return (
                421,
                "UnknownHost",
                (
                    "this server is not called by that name; use the name that it was started with, or start "
                    "it with --allow-host NAME"
                ),
            )
        if scope["method"] in SAFE:
            return None
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "OtherOrigin", "a page of another site may not send requests here"
        if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "OtherOrigin", "a page of another site may not send requests here"
        length = headers.get(b"content-length", "0")
        if not length.isdigit() or int(length) > _most_bytes(scope):
            return 413, "TooLarge", f"a body has up to {_most_bytes(scope)} bytes here"
        return None

    def _tell(self, scope: Scope, sent: _TrackedSend, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.request(scope["method"], route, sent.status, seconds)
        client = scope.get("client") or ("-", 0)
        _LOG.info(
            {
                "request": scope["method"], "path": scope["path"][:500], "status": sent.status,
                "ms": round(seconds * 1e3, 2), "bytes": sent.bytes, "client": client[0],
                "caller": scope["state"].get("caller", "-"),
            }
        )  # fmt: skip


class _TrackedSend:
    """Passes a response on, with the headers that all have, and remembers what was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.bytes = 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in _HEADERS if each[0] not in own)]
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, status: int, kind: str, why: str) -> None:
        """Sends an error, unless a response has begun."""
        if self.status:
            return
        body = json.dumps({"error": {"kind": kind, "message": why}}).encode()
        headers = [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]  # fmt: skip
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def _most_bytes(scope: Scope) -> int:
    return MOST_RECORDS_BYTES if scope["path"].endswith(RECORDS) else MOST_BYTES


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """Receives a body that is neither too large nor too slow."""
    most, got, whole = _most_bytes(scope), 0, scope["method"] in SAFE

    async def received() -> Message:
        nonlocal got, whole
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), PIECE_WITHIN_S)
        except TimeoutError:
            raise BadBody(408, f"the next piece of a body comes within {PIECE_WITHIN_S:g} s") from None
        if message["type"] == "http.request":
            got += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if got > most:
                raise BadBody(413, f"a body has up to {most} bytes here")
        return message

    return received

"""Who asks: by a token in a header, by the cookie of a login, or as anyone on this machine."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from fastapi import Request

from tuner.service.middleware import SAFE
from tuner.service.responses import Refused
from tuner.service.state import Service
from tuner.service.tokens import ADMIN, COOKIE, READ, RECORDS, SUBMIT, Caller, LoginSession, is_same

#: Seconds that a wrong token takes to be refused.
SLOW_S = 0.2
#: Header in which scripts of our pages send what forms carry in a field.
CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf"

_LOG = logging.getLogger("tuner.service.access")


def service_of(request: Request) -> Service:
    """The server's state."""
    service: Service = request.app.state.service
    return service


def session_of(request: Request) -> LoginSession | None:
    """The session of a browser; None without one."""
    return service_of(request).sessions.of(request.cookies.get(COOKIE, ""))


async def caller_of(request: Request) -> Caller | None:
    """Who asks; None if nobody is known.

    Raises:
        Refused: A token is wrong, or too many were.
    """
    service, address = service_of(request), request.client.host if request.client else "-"
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    caller: Caller | None
    if secret:
        caller = await checked(service, address, secret.strip() if scheme.lower() == "bearer" else "")
    elif service.registry.is_open:
        caller = service.registry.anyone
    else:
        session = session_of(request)
        found = service.registry.still(session.name) if session is not None else None
        if found is not None and session is not None and request.method not in SAFE:
            check_csrf(session, request.headers.get(CSRF_HEADER, ""))
        caller = found
    request.scope["state"]["caller"] = caller.name if caller else "-"
    return caller


async def checked(service: Service, address: str, secret: str) -> Caller:
    """Who presents a secret.

    Raises:
        Refused: It is no valid token, or this address has presented too many wrong ones.
    """
    wait_s = service.throttle.wait_s(address)
    if wait_s > 0:
        why = "too many wrong tokens came from your address; wait"
        raise Refused(429, why, {"retry-after": str(math.ceil(wait_s))})
    caller = service.registry.caller(secret)
    if caller is None:
        count = service.throttle.failed(address)
        service.metrics.refused()
        _LOG.warning({"refused": "a wrong token", "client": address, "failures": count})
        await asyncio.sleep(SLOW_S)
        raise Refused(
            401, "the token is unknown, expired or revoked; ask the operator for another",
            {"www-authenticate": "Bearer"},
        )  # fmt: skip
    service.throttle.succeeded(address)
    return caller


def check_csrf(session: LoginSession, told: str) -> None:
    """Refuses what another page has made a browser send.

    Raises:
        Refused: It does not carry what our forms do.
    """
    if not is_same(session.csrf, told):
        raise Refused(403, "the form was not made by this server, or is too old; open the page again")


def needs(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: whoever asks must have a scope."""

    async def allowed(request: Request) -> Caller:
        caller = await caller_of(request)
        if caller is None:
            raise Refused(
                401, f"this needs a token of scope {scope}; send it as Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )  # fmt: skip
        if not caller.may(scope):
            hint = (
                "start the server with --local-admin, or make a token"
                if caller.name == "local"
                else ("ask the operator for another")
            )
            raise Refused(403, f"this needs the scope {scope}, which {caller.name} does not have; {hint}")
        return caller

    return allowed


#: Dependencies of the scopes.
reads, submits, sends_records, administers = needs(READ), needs(SUBMIT), needs(RECORDS), needs(ADMIN)

"""Who asks and may do what; responses: JSON with an entity tag, errors, and work that blocks in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import anyio.to_thread
from fastapi import Depends, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from tuner.errors import EnvironmentTrouble, InputError, NothingFound, PlanError, TunerError
from tuner.service.snapshots import OpenSnapshot, json_bytes
from tuner.service.state import REFUSED, Service
from tuner.service.tokens import COOKIE, READ, RECORDS, SUBMIT, Caller

T = TypeVar("T")

#: Header with the number of the snapshot.
SNAPSHOT = "x-tuner-snapshot"
#: Methods that change nothing.
SAFE = ("GET", "HEAD", "OPTIONS")
#: Seconds that a wrong token takes to be refused.
SLOW_S = 0.2
#: Seconds after which a client should try again what the database or a device refused.
RETRY_AFTER_S = 5
#: The first of these that an error is, with its status: as the command line's exit codes 1, 2 and 3.
STATUSES: tuple[tuple[type[TunerError], int], ...] = (
    (NothingFound, 404), (InputError, 422), (EnvironmentTrouble, 503), (TunerError, 500),
)  # fmt: skip
#: What is told where the framework refuses a request.
RULES = {
    404: "there is nothing under this path", 405: "this path does not take that method",
    413: "a body has up to 2 MiB, one of records 2 GiB; send less at a time",
}  # fmt: skip

_LOG = logging.getLogger("tuner.service.access")


def service_of(request: Request) -> Service:
    """The server's state."""
    service: Service = request.app.state.service
    return service


def root_of(request: Request) -> str:
    """The path under which a proxy serves this; empty for none."""
    return str(request.scope.get("root_path", ""))


# --- who asks ------------------------------------------


async def caller_of(request: Request) -> Caller | None:
    """Who asks: by a token in a header, by the cookie of a login, or as anyone on this machine.

    Raises:
        HTTPException: A token is wrong, or too many were; or another page has made a browser send the cookie.
    """
    service = service_of(request)
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    caller: Caller | None = None
    if secret:
        caller = await checked(request, secret.strip() if scheme.lower() == "bearer" else "")
    elif service.registry.is_open:
        caller = service.registry.anyone
    elif (name := service.sessions.name(request.cookies.get(COOKIE, ""))) is not None:
        named = "origin" in request.headers or request.headers.get("sec-fetch-site") == "same-origin"
        if request.method not in SAFE and not named:  # the guard has refused other origins
            raise HTTPException(403, "a browser that is logged in says which page a request comes from")
        caller = service.registry.still(name)
    request.scope["state"]["caller"] = caller.name if caller else "-"
    return caller


async def checked(request: Request, secret: str) -> Caller:
    """Who presents a secret.

    Raises:
        HTTPException: It is no valid token, or this address has presented too many wrong ones.
    """
    service, address = service_of(request), request.client.host if request.client else "-"
    caller = service.registry.caller(secret)
    if caller is not None:
        return caller  # whatever else came from this address; it says nothing of the wrong ones
    wait_s = service.throttle.wait_s(address)
    if wait_s > 0:
        why = "too many wrong tokens came from your address; wait"
        raise HTTPException(429, why, {"retry-after": str(math.ceil(wait_s))})
    count = service.throttle.failed(address)
    REFUSED.inc()
    _LOG.warning({"refused": "a wrong token", "client": address, "failures": count})
    await asyncio.sleep(SLOW_S)
    why = "the token is unknown, expired or revoked; ask the operator for another"
    raise HTTPException(401, why, {"www-authenticate": "Bearer"})


_BEARER = HTTPBearer(auto_error=False, description="A token, where there are any.")


def needs(*scopes: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency: whoever asks must have one of some scopes."""
    named = " or ".join(scopes)

    async def allowed(request: Request, _: Annotated[object, Security(_BEARER)]) -> Caller:
        caller = await caller_of(request)
        if caller is None:
            why = f"this needs a token of scope {named}; send it as Authorization: Bearer TOKEN"
            raise HTTPException(401, why, {"www-authenticate": "Bearer"})
        if not any(map(caller.may, scopes)):
            own = "start the server with --local-admin, or make a token"
            hint = own if caller.name == "local" else "ask the operator for another"
            raise HTTPException(403, f"this needs the scope {named}, which {caller.name} does not have; {hint}")
        return caller

    return allowed


#: Whoever asks, with the scope that a route needs.
Reads = Annotated[Caller, Depends(needs(READ))]
Submits = Annotated[Caller, Depends(needs(SUBMIT))]
Follows = Annotated[Caller, Depends(needs(READ, SUBMIT))]
Sends = Annotated[Caller, Depends(needs(RECORDS))]


def is_local(request: Request) -> bool:
    """True if no page of another site has made a browser ask."""
    return request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")


# --- responses -----------------------------------------


async def in_thread(limit: anyio.CapacityLimiter, work: Callable[[], T]) -> T:
    """Does work that computes, in a thread, as soon as a limit admits it."""
    return await anyio.to_thread.run_sync(work, limiter=limit)


async def working(request: Request, work: Callable[[], T]) -> T:
    """Does what reads or writes the database, in a thread."""
    return await in_thread(service_of(request).working, work)


def tagged(
    request: Request, body: bytes, snapshot: int, media: str = "application/json", basis: bytes = b"",
    more: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """A body with its entity tag; without the body if the client has it already.

    Args:
        request: What is asked.
        body: The body.
        snapshot: Number of the snapshot.
        media: Media type.
        basis: What the tag is made of: the body without what says nothing new; the body itself by default.
        more: More headers.
    """
    tag = f'"{hashlib.sha256(basis or body).hexdigest()[:32]}"'
    headers = {"etag": tag, SNAPSHOT: str(snapshot), "cache-control": "no-cache", **(more or {})}
    tags = [known.strip().removeprefix("W/") for known in request.headers.get("if-none-match", "").split(",")]
    if "*" in tags or tag in tags:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)


async def answered(
    request: Request, work: Callable[[OpenSnapshot], Any], view: OpenSnapshot | None = None
) -> Response:
    """What a snapshot, the present one by default, tells as JSON; worked out in a thread."""
    rests_on = view or service_of(request).cache.present
    data = await working(request, lambda: json_bytes(work(rests_on)))
    return tagged(request, data, rests_on.manifest.number)


# --- errors --------------------------------------------


def status_of(error: TunerError) -> int:
    """The status of an error."""
    return next(status for kind, status in STATUSES if isinstance(error, kind))


class ErrorDetail(BaseModel):
    """What is wrong: the rule, the value and the remedy; for a plan, where."""

    kind: str
    message: str
    line: int | None = None
    key: str | None = None


class Refusal(BaseModel):
    """The body of every answer that is none."""

    error: ErrorDetail


#: How requests may be refused, for the description of the interface.
REFUSALS: dict[int | str, dict[str, Any]] = {code: {"model": Refusal} for code in (401, 403, 404, 422, 503)}


def error_json(error: TunerError | ValidationError) -> dict[str, Any]:
    """An error as a JSON object."""
    if isinstance(error, ValidationError):
        return {"kind": "InputError", "message": complaint(error.errors())}
    place = {"line": error.line, "key": error.key} if isinstance(error, PlanError) and error.line else {}
    return {"kind": type(error).__name__, "message": str(error), **place}


def complaint(errors: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the first value that is not as documented."""
    where = ".".join(map(str, errors[0]["loc"]))
    return f"{where}: {errors[0]['msg']}, got {str(errors[0].get('input'))[:80]!r}; see /docs"


def failed(request: Request, error: Exception) -> Response:
    """Answers an error: ours, a value that is not as documented, a request that may not be made, a mistake."""
    headers: Mapping[str, str] = {}
    if isinstance(error, TunerError):
        status, told = status_of(error), error_json(error)
        headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    elif isinstance(error, RequestValidationError):
        status, told = 422, {"kind": "InputError", "message": complaint(error.errors())}
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers or {}
        if status == 401 and wants_page(request) and request.method == "GET":
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(
                f"{root_of(request)}/login?next={quote(request.scope['path'] + query)}", 303
            )
        told = {"kind": "Refused", "message": RULES.get(status, str(error.detail))}
    else:
        status, told = 500, {"kind": "Trouble", "message": "the server failed to answer; its log says more"}
    if wants_page(request):
        page: Response = request.app.state.error_page(request, status, told["message"], headers)
        return page
    return JSONResponse({"error": told}, status, dict(headers))


def wants_page(request: Request) -> bool:
    """True if a browser asks for a page."""
    return not request.scope["path"].startswith("/v1") and "text/html" in request.headers.get("accept", "")

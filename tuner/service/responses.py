"""Who asks and may do what; what routes depend on; JSON with an entity tag, and errors as JSON."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from tuner.errors import PlanError, TunerError
from tuner.service.snapshots import OpenSnapshot
from tuner.service.state import Service
from tuner.service.tokens import COOKIE, READ, RECORDS, SUBMIT, Caller, digest_of

#: Header with the number of the snapshot.
SNAPSHOT = "x-tuner-snapshot"
#: Methods that change nothing.
SAFE = ("GET", "HEAD", "OPTIONS")
#: Seconds that a wrong token takes to be refused.
SLOW_S = 0.2
#: Exit code of the command line -> status; of other errors it is 500.
STATUSES = {1: 404, 2: 422, 3: 503}
#: What is told where the framework refuses a request.
RULES = {
    404: "there is nothing under this path", 405: "this path does not take that method",
    413: "a body has up to 2 MiB, one of records 2 GiB; send less at a time",
}  # fmt: skip

_LOG = logging.getLogger("tuner.service.access")


async def service_of(request: Request) -> Service:
    """The server's state."""
    return cast(Service, request.app.state.service)


Serves = Annotated[Service, Depends(service_of)]
#: An object of JSON.
Json = dict[str, Any]


def keys(**types: str) -> Any:
    """What the description of the interface says of an object: its keys, with their types in JSON Schema."""
    of: Json = {name: {"type": some.split(" or ")} for name, some in types.items()}
    return Field(json_schema_extra={"required": [*of], "properties": of})


async def present(service: Serves) -> OpenSnapshot:
    """The present snapshot."""
    return service.cache.present


Present = Annotated[OpenSnapshot, Depends(present)]


def root_of(request: Request) -> str:
    """The path under which a proxy serves this; empty for none."""
    return str(request.scope.get("root_path", ""))


# --- who asks ------------------------------------------


async def caller_of(request: Request, service: Service) -> Caller | None:
    """Who asks: by a token in a header, by the cookie of a login, or as anyone on this machine.

    Raises:
        HTTPException: A token is wrong, or too many were; or another page has made a browser send the cookie.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if secret:
        return await checked(request, service, secret.strip() if scheme.lower() == "bearer" else "")
    if service.registry.is_open:
        return service.registry.anyone
    name = service.sessions.get(digest_of(request.cookies.get(COOKIE, "")))
    marked = "origin" in request.headers or request.headers.get("sec-fetch-site") == "same-origin"
    if name and request.method not in SAFE and not marked:  # the guard has refused other origins
        raise HTTPException(403, "a browser that is logged in says which page a request comes from")
    return service.registry.still(name) if name else None


async def checked(request: Request, service: Service, secret: str) -> Caller:
    """Who presents a secret.

    Raises:
        HTTPException: It is no valid token, or this address has presented too many wrong ones.
    """
    address = request.client.host if request.client else "-"
    caller = service.registry.caller(secret)
    if caller is not None:
        return caller  # whatever else came from this address; it says nothing of the wrong ones
    wait_s = service.throttle.wait_s(address)
    if wait_s > 0:
        why = "too many wrong tokens came from your address; wait"
        raise HTTPException(429, why, {"retry-after": str(math.ceil(wait_s))})
    count = service.throttle.failed(address)
    _LOG.warning({"refused": "a wrong token", "client": address, "failures": count})
    await asyncio.sleep(SLOW_S)
    why = "the token is unknown, expired or revoked; ask the operator for another"
    raise HTTPException(401, why, {"www-authenticate": "Bearer"})


_BEARER = HTTPBearer(auto_error=False, description="A token, where there are any.")


def needs(*scopes: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency: whoever asks must have one of some scopes."""
    named = " or ".join(scopes)

    async def allowed(request: Request, service: Serves, _: Annotated[object, Security(_BEARER)]) -> Caller:
        caller = await caller_of(request, service)
        if caller is None:
            why = f"this needs a token of scope {named}; send it as Authorization: Bearer TOKEN"
            raise HTTPException(401, why, {"www-authenticate": "Bearer"})
        request.scope["state"]["caller"] = caller.name
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


class ErrorDetail(BaseModel):
    """What is wrong: the rule, the value and the remedy; for a plan, where."""

    kind: str
    message: str
    line: int | None = None
    key: str | None = None


class Refusal(BaseModel):
    """The body of every answer that is none."""

    error: ErrorDetail


#: How requests may be refused, for the description of the interface; always as JSON, whatever a route answers.
_REFUSAL: Json = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}
REFUSALS: dict[int | str, Json] = dict.fromkeys((400, 401, 403, 404, 408, 413, 421, 422, 429, 503), _REFUSAL)


def described(error: Exception) -> tuple[int, Json]:
    """The status of an error, and its JSON: ours, a wrong value, a refused request, or a mistake here."""
    if isinstance(error, ValidationError | RequestValidationError):
        first = error.errors()[0]
        where, got = ".".join(map(str, first["loc"])), str(first.get("input"))[:80]
        return 422, {"kind": "InputError", "message": f"{where}: {first['msg']}, got {got!r}; see /docs"}
    if isinstance(error, HTTPException):
        why = RULES.get(error.status_code, str(error.detail))
        return error.status_code, {"kind": "Refused", "message": why}
    if not isinstance(error, TunerError):
        return 500, {"kind": "Trouble", "message": "the server failed to answer; its log says more"}
    place = {"line": error.line, "key": error.key} if isinstance(error, PlanError) and error.line else {}
    status = STATUSES.get(error.exit_code, 500)
    return status, {"kind": type(error).__name__, "message": str(error), **place}

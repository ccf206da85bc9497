"""Responses: JSON with an entity tag, and work that blocks in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import anyio.to_thread
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from tuner.errors import EnvironmentTrouble, InputError, NothingFound, PlanError, TunerError
from tuner.service.snapshots import etag, told_as_json
from tuner.service.state import Service

T = TypeVar("T")

JSON = "application/json"
#: Header with the number of the snapshot.
SNAPSHOT = "x-tuner-snapshot"


async def in_thread(limit: anyio.CapacityLimiter, work: Callable[[], T]) -> T:
    """Does work that computes, in a thread, as soon as a limit admits it."""
    return await anyio.to_thread.run_sync(work, limiter=limit)


async def working(service: Service, work: Callable[[], T]) -> T:
    """Does what reads or writes the database, in a thread."""
    return await in_thread(service.working, work)


def tagged(request: Request, body: bytes, tag: str, snapshot: int, media: str = JSON, **more: str) -> Response:
    """A body with its entity tag; without the body if the client has it already."""
    headers = {"etag": tag, SNAPSHOT: str(snapshot), "cache-control": "no-cache", **more}
    known = request.headers.get("if-none-match", "")
    tags = [each.strip().removeprefix("W/") for each in known.split(",")]
    if "*" in tags or tag in tags:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)


def told(request: Request, data: Any, snapshot: int) -> Response:
    """Data as JSON, tagged."""
    body = told_as_json(data).encode()
    return tagged(request, body, etag(body), snapshot)


def page_bounds(limit: int, most: int = 500) -> int:
    """Items of a page, within bounds."""
    return max(1, min(limit, most))


#: Seconds after which a client should try again what the database or a device refused.
RETRY_AFTER_S = 5
#: The first of these that an error is, with its status: as the command line's exit codes 1, 2 and 3.
STATUSES: tuple[tuple[type[TunerError], int], ...] = (
    (NothingFound, 404), (InputError, 422), (EnvironmentTrouble, 503), (TunerError, 500),
)  # fmt: skip


class Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


def status_of(error: TunerError) -> int:
    """The status of an error."""
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def error_json(error: TunerError) -> dict[str, Any]:
    """An error as a JSON object."""
    found: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, PlanError) and error.line:
        found |= {"line": error.line, "key": error.key}
    return found


def tuner_error(request: Request, error: Exception) -> Response:
    """Answers an error of ours."""
    assert isinstance(error, TunerError)
    status = status_of(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return answer(request, status, error_json(error), headers)


def refused(request: Request, error: Exception) -> Response:
    """Answers a request that may not be made."""
    assert isinstance(error, Refused)
    if error.status == 401 and wants_page(request) and request.method == "GET":
        from urllib.parse import quote

        root = request.scope.get("root_path", "")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{root}/login?next={quote(request.scope['path'] + query)}", 303)
    return answer(request, error.status, {"kind": "Refused", "message": str(error)}, error.headers)


def http_error(request: Request, error: Exception) -> Response:
    """Answers what the framework refuses: an unknown path, a method that is not there."""
    assert isinstance(error, HTTPException)
    what = {404: "there is nothing under this path", 405: "this path does not take that method"}
    message = what.get(error.status_code, str(error.detail))
    return answer(request, error.status_code, {"kind": "Refused", "message": message}, error.headers or {})


def invalid(request: Request, error: Exception) -> Response:
    """Answers parameters or a body of another form than documented."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = f"{where}: {first['msg']}; see /docs"
    return answer(request, 422, {"kind": "InputError", "message": message}, {})


def trouble(request: Request, error: Exception) -> Response:
    """Answers our own mistakes; the log has the traceback."""
    message = "the server failed to answer; its log says more"
    return answer(request, 500, {"kind": "Trouble", "message": message}, {})


def answer(request: Request, status: int, what: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """An error as JSON, or as a page where a browser asks for one."""
    if wants_page(request):
        page: Response = request.app.state.error_page(request, status, str(what["message"]), headers)
        return page
    return JSONResponse({"error": dict(what)}, status, dict(headers))


def wants_page(request: Request) -> bool:
    """True if a browser asks for a page."""
    return not request.scope["path"].startswith("/v1") and "text/html" in request.headers.get("accept", "")

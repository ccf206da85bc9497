"""The application: routes, the guard before them, what machines ask, and the server's loop."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuner.errors import EnvironmentTrouble, TunerError
from tuner.service import answers, dashboard, job_queue, pages, records
from tuner.service.responses import REFUSALS, SAFE, Json, Reads, Serves, is_local, keys
from tuner.service.state import REQUESTS, SECONDS, Service, Settings, metrics_text
from tuner.version import __version__

router = APIRouter(tags=["machines"])
#: A server that has not reached its database for so many seconds is not ready.
NOT_READY_S = 60.0
#: Bytes of a body; seconds within which it must come, and bytes for each of which there is one second more.
MOST_BYTES, BODY_WITHIN_S, LEAST_BYTES_PER_S = 2 << 20, 30.0, 64 << 10
#: Seconds within which the head of a request must come.
HEAD_WITHIN_S = 30.0
#: Seconds that requests may take to end when the server ends.
END_WITHIN_S = 5
#: Seconds after which a thread that computes lets others go on.
SWITCH_S = 0.0005
#: Connections and requests at once; more are told to come back.
MOST_AT_ONCE = 2000
#: Connections without a request.
MOST_SILENT = 500
#: Methods that are counted by their names.
METHODS = (*SAFE, "POST", "PUT", "PATCH", "DELETE")
#: Headers of every response.
HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_LOG = logging.getLogger("tuner.service.requests")


@router.get("/healthz", summary="Is the server alive?")
async def healthz() -> Annotated[Json, keys(ok="boolean", version="string")]:
    """200 as long as it answers at all."""
    return {"ok": True, "version": __version__}


@router.get("/readyz", summary="Is the server ready?", responses={503: {"description": "Not now."}})
async def readyz(service: Serves, response: Response) -> Annotated[Json, keys(ready="boolean")]:
    """200 if it has reached its database within the last minute."""
    ready = time.monotonic() - service.cache.looked_s < NOT_READY_S
    response.status_code = 200 if ready else 503
    return {"ready": ready, "snapshot": service.cache.present.manifest.number}


@router.get("/openapi.json", summary="This description, for programs")
async def openapi(request: Request, caller: Reads) -> Json:
    """OpenAPI; /docs shows it to people."""
    app: FastAPI = request.app
    return app.openapi()


@router.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
def metrics(service: Serves, caller: Reads) -> Response:
    """Requests, answers, jobs, rows and the process itself, in Prometheus' text format."""
    return Response(metrics_text(service.store, service.cache), media_type=CONTENT_TYPE_LATEST)


# --- the guard -----------------------------------------


class Guard:
    """Stands before every request: who may ask from where, how much may come, and a line of log for each."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Wraps the application."""
        self._app, self._names = app, service.settings.host_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, status, size = time.perf_counter(), 0, 0
        scope["state"] = {**scope.get("state", {}), "caller": "-"}

        async def respond(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            size += len(message.get("body", b""))
            await send(message)

        try:
            app = self._refusal(Request(scope)) or self._app
            await app(scope, _timely(scope, receive), respond)
        except Exception:  # the application has answered it
            _LOG.exception("a request failed")
        finally:
            seconds, route = time.perf_counter() - begun_s, getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in METHODS else "other"
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(route).observe(seconds)
            client, caller = scope.get("client") or ("-", 0), scope["state"]["caller"]
            line = {"request": method, "path": scope["path"][:500], "status": status}
            line |= {"ms": round(seconds * 1e3, 2), "bytes": size, "client": client[0], "caller": caller}
            _LOG.info(line)

    def _refusal(self, request: Request) -> Response | None:
        """Why a request is not heard; None if it is."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        status, kind, why = 403, "OtherOrigin", "a page of another site may not send requests here"
        if self._names is not None and name.casefold() not in self._names:
            status, kind = 421, "UnknownHost"
            why = "this server is not called by that name; use its own, or start it with --allow-host NAME"
        elif request.method in SAFE or (
            is_local(request) and origin in (None, f"http://{host}", f"https://{host}")
        ):
            return None
        return JSONResponse({"error": {"kind": kind, "message": why}}, status, {"connection": "close"})


def _timely(scope: Scope, receive: Receive) -> Receive:
    """Receives a body that is not too slow."""
    begun_s, size, whole = time.monotonic(), 0, scope["method"] in SAFE

    async def received() -> Message:
        nonlocal size, whole
        if whole:
            return await receive()
        left_s = begun_s + BODY_WITHIN_S + size / LEAST_BYTES_PER_S - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), left_s)
        except TimeoutError:
            rule = f"a body comes within {BODY_WITHIN_S:g} s and one more for each {LEAST_BYTES_PER_S} bytes"
            raise HTTPException(408, rule, {"connection": "close"}) from None
        size, whole = size + len(message.get("body", b"")), not message.get("more_body", False)
        return message

    return received


class Protocol(H11Protocol):
    """HTTP over a connection, which is closed if no whole head of a request comes for a while.

    Of too many that wait for one, the one that waits longest is closed: others find a place.
    """

    _silent: ClassVar[dict[Protocol, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits while no request is under way: from its answer on, or from its first byte."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        super().connection_lost(exc)
        self._heard()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._heard()
        elif self not in self._silent:
            self._silent[self] = self.loop.call_later(HEAD_WITHIN_S, self.transport.close)
            if len(self._silent) > MOST_SILENT:
                (oldest := next(iter(self._silent)))._heard()
                oldest.transport.close()

    def _heard(self) -> None:
        if deadline := self._silent.pop(self, None):
            deadline.cancel()


# --- the server ----------------------------------------

ABOUT = """Which kernel and config to use for a problem on a device, from measured records; and jobs that
measure more. Answers are those of the command line's `--json`. A kernel is code: none is taken over HTTP.

Send a token as `Authorization: Bearer TOKEN`. Without tokens, only the server's own machine is answered."""


def create_app(service: Service) -> Guard:
    """The application of a server.

    Args:
        service: What it holds; it stays open as long as the application is used.
    """
    app = FastAPI(
        title="tile-tuner", version=__version__, description=ABOUT, root_path=service.settings.root_path,
        docs_url=None, redoc_url=None, openapi_url=None, max_body_size=MOST_BYTES, responses=REFUSALS,
    )  # fmt: skip
    for kind in (TunerError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, pages.failed)
    app.state.service = service
    own = Path(__file__).parent / "static"
    app.mount("/assets", StaticFiles(directory=own, packages=[("plotly", "package_data")]))
    for module in (answers, records, job_queue, pages, dashboard):
        app.include_router(module.router)
    app.include_router(router)
    return Guard(app, service)


class JsonLines(logging.Formatter):
    """One line of JSON for each message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a message that is JSON already keeps its keys, others have their traceback with them."""
        own = {"from": record.name, "message": super().format(record)}
        line = record.msg if isinstance(record.msg, dict) else own
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"at": at, "level": record.levelname.lower()} | line)


def run(settings: Settings) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        InputError: The settings would let strangers in.
        StoreTrouble: The database cannot be used.
        EnvironmentTrouble: The port is taken.
    """
    with Service.open(settings) as service:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
        for name in ("tuner.service", "uvicorn.error"):
            logging.getLogger(name).setLevel(logging.INFO)
        # A thread that computes an answer lets others go on after this time, not after Python's 5 ms.
        sys.setswitchinterval(SWITCH_S)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
                proxy_headers=settings.proxied, forwarded_allow_ips="127.0.0.1,::1", server_header=False,
                timeout_graceful_shutdown=END_WITHIN_S, limit_concurrency=MOST_AT_ONCE, lifespan="on",
                timeout_keep_alive=30, h11_max_incomplete_event_size=64 << 10, http=Protocol,
            )
        )  # fmt: skip
        service.cache.present.warm()
        # What was read until now stays: looking through it for garbage would hold up answers, for a tenth of a
        # second each time.
        gc.collect()
        gc.freeze()
        gc.enable()
        try:
            server.run()
        except SystemExit as error:
            raise EnvironmentTrouble(
                f"the server could not bind to {settings.host} port {settings.port} (its own words are above); "
                "choose another with --host or --port"
            ) from error

"""The application: routes, pages, errors, and the guard before them."""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from tuner.errors import EnvironmentTrouble, TunerError
from tuner.service import answers, dashboard, forms, job_routes, pages, records, responses
from tuner.service.access import reads, service_of
from tuner.service.middleware import SecurityMiddleware
from tuner.service.rendering import page
from tuner.service.responses import working
from tuner.service.settings import Settings
from tuner.service.state import Service
from tuner.service.tokens import Caller
from tuner.version import __version__

machine_router = APIRouter(tags=["machines"])
#: A server that has not reached its database for so many seconds is not ready.
NOT_READY_S = 60.0


@machine_router.get("/healthz", summary="Is the server alive?")
async def healthz() -> Response:
    """200 as long as it answers at all."""
    return JSONResponse({"ok": True, "version": __version__})


@machine_router.get("/readyz", summary="Is the server ready?", responses={503: {"description": "Not now."}})
async def readyz(request: Request) -> Response:
    """200 if it has reached its database within the last minute."""
    cache = service_of(request).cache
    ago_s = time.monotonic() - cache.looked_s
    ready = ago_s < NOT_READY_S
    told = {"ready": ready, "snapshot": cache.present.manifest.number}
    return JSONResponse(told, 200 if ready else 503)


@machine_router.get("/openapi.json", summary="This description, for programs")
async def openapi(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """OpenAPI; /docs shows it to people."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@machine_router.get("/metrics", summary="Figures for Prometheus")
async def metrics(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """Requests, answers, jobs, rows and the process itself, in Prometheus' text format."""
    service = service_of(request)
    text = await working(service, service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


docs_router = APIRouter(include_in_schema=False)


@docs_router.get("/docs")
async def docs(request: Request, caller: Annotated[Caller, Depends(reads)]) -> Response:
    """Every route with its parameters, its body and an example."""
    app: FastAPI = request.app
    described = app.openapi()
    base = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            group = groups.setdefault(told["tags"][0].capitalize(), [])
            group.append(_route(base, path, method, told, described))
    values = {"groups": groups, "about": described["info"]["description"], "base": base}
    return page(request, "docs", caller, values)


def _route(
    base: str, path: str, method: str, told: Mapping[str, Any], described: Mapping[str, Any]
) -> dict[str, Any]:
    content = told.get("requestBody", {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}), described)
    return {
        "id": f"{method}-{path.strip('/').replace('/', '-')}", "method": method.upper(), "path": path,
        "summary": told.get("summary", ""), "description": told.get("description", ""),
        "parameters": [each | {"kind": _kind(each["schema"])} for each in told.get("parameters", [])],
        "body": list(_keys(schema)), "example": _example(base, path, method, told, schema),
    }  # fmt: skip


def _keys(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for name, each in schema.get("properties", {}).items():
        yield {"name": name, "kind": _kind(each), "description": each.get("description", "")}


def _resolved(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = described["components"]["schemas"][name] if name else schema
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _example(base: str, path: str, method: str, told: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A command for a shell that asks this."""
    given = [each for each in told.get("parameters", []) if "example" in each]
    query = "".join(f" --data-urlencode {each['name']}='{each['example']}'" for each in given)
    parts = ['curl -H "Authorization: Bearer $TUNER_TOKEN"']
    if method == "get" and query:
        parts.append(f"-G{query}")
    if method == "post" and "example" in schema:
        parts.append(f"-H 'Content-Type: application/json' -d '{json.dumps(schema['example'])}'")
    elif method == "post" and path.endswith("/records"):
        parts.append("--data-binary @records.jsonl.zst")
    elif method == "post":
        parts.append("-X POST")
    return f"{' '.join(parts)} {base}{path}"


ABOUT = """Which kernel and config to use for a problem on a device, from measured records; and jobs that
measure more. Answers are those of the command line's `--json`. A kernel is code: none is taken over HTTP.

Send a token as `Authorization: Bearer TOKEN`. Without tokens, only the server's own machine is answered."""


def create_app(service: Service) -> SecurityMiddleware:
    """The application of a server.

    Args:
        service: What it holds; it stays open as long as the application is used.
    """
    app = FastAPI(
        title="tile-tuner", version=__version__, description=ABOUT, root_path=service.settings.root_path,
        docs_url=None, redoc_url=None, openapi_url=None,
    )  # fmt: skip
    app.state.service = service
    app.state.streams = 0
    app.state.error_page = pages.error_page
    app.include_router(machine_router)
    for module in (answers, records, job_routes, pages, forms):
        app.include_router(module.router)
    app.include_router(docs_router)
    app.include_router(dashboard.router)
    app.add_exception_handler(TunerError, responses.tuner_error)
    app.add_exception_handler(responses.Refused, responses.refused)
    app.add_exception_handler(RequestValidationError, responses.invalid)
    app.add_exception_handler(HTTPException, responses.http_error)
    app.add_exception_handler(Exception, responses.trouble)
    return SecurityMiddleware(app, service.settings, service.metrics)


#: Seconds that requests may take to end when the server ends.
END_WITHIN_S = 5
#: Seconds after which a thread that computes lets others go on.
SWITCH_S = 0.0005
#: Connections and requests at once; more are told to come back.
MOST_AT_ONCE = 2000


class JsonLines(logging.Formatter):
    """One line of JSON for each message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a message that is JSON already keeps its keys."""
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
        }
        if isinstance(record.msg, dict):
            told |= record.msg
        else:
            told |= {"from": record.name, "message": record.getMessage()}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def run(settings: Settings) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        InputError: The settings would let strangers in.
        StoreTrouble: The database cannot be used.
        EnvironmentTrouble: The port is taken.
    """
    with Service.open(settings) as service:
        _log_json_lines()
        # A thread that computes an answer lets others go on after this time, not after Python's 5 ms.
        sys.setswitchinterval(SWITCH_S)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
                proxy_headers=settings.proxied, forwarded_allow_ips="127.0.0.1,::1", server_header=False,
                timeout_graceful_shutdown=END_WITHIN_S, limit_concurrency=MOST_AT_ONCE, lifespan="on",
                timeout_keep_alive=30, h11_max_incomplete_event_size=64 << 10,
            )
        )  # fmt: skip
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


def _log_json_lines() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("tuner.service", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)

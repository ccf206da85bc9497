"""Pages for people: overview, problems, a device, kernels, what is wanted; files that pages need."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from tuner.errors import NothingFound, TunerError
from tuner.service.access import reads, service_of
from tuner.service.page_values import device_values, overview_values, problem_values, wanted_values
from tuner.service.records import problems_page
from tuner.service.rendering import FOLDER, page, question
from tuner.service.responses import working
from tuner.service.tokens import SUBMIT, Caller
from tuner.store.streams import Selection

router = APIRouter(include_in_schema=False)
Reads = Annotated[Caller, Depends(reads)]
#: Rows of a page.
ROWS = 100
TITLES = {404: "Not found", 401: "Log in", 403: "Not allowed", 422: "That cannot be asked", 503: "Not now"}
#: Files that pages need -> media type.
MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@router.get("/")
async def overview(request: Request, caller: Reads) -> Response:
    """What runs, what changed last night, which devices there are."""
    service = service_of(request)
    values = await working(service, lambda: overview_values(service))
    more = {"may_submit": caller.may(SUBMIT), "asked": "", "refused": ""}
    return page(request, "overview", caller, values | more)


@router.get("/ask")
async def ask(request: Request, caller: Reads, q: str = "", device: str = "") -> Response:
    """Leads from a problem in words to its page."""
    from tuner.lookup.stale import builtin_now
    from tuner.service.questions import asked_of

    try:
        asked = asked_of({"problem": q[:200], "device": device[:200]}, builtin_now(), {})
    except TunerError as error:
        service = service_of(request)
        values = await working(service, lambda: overview_values(service))
        more = {"may_submit": caller.may(SUBMIT), "asked": q[:200], "refused": str(error)}
        return page(request, "overview", caller, values | more, 422)
    key = asked.problem
    told = {
        "operation": key.operation, "shape": key.dims, "dtype": key.dtype, "layout": key.layout,
        "precision": key.precision, **key.told_epilogue, "regime": asked.regime, "device": device[:200],
    }  # fmt: skip
    return RedirectResponse(f"{request.scope.get('root_path', '')}/problem?{question(told)}", 303)


@router.get("/problems")
async def problems(
    request: Request, caller: Reads, operation: str = "", shape: str = "", device: str = "", after: int = 0
) -> Response:
    """The problems that were measured."""
    from tuner.lookup.stale import builtin_now

    service, view = service_of(request), service_of(request).cache.present
    wanted = Selection.parsed(operation[:100], shape[:100], device[:200], "")
    found = await working(service, lambda: problems_page(view.store, wanted, max(0, min(after, 2**62)), ROWS))
    names = sorted({each.name for each in view.snapshot.devices()})
    from urllib.parse import urlencode

    values = {
        "page": found, "after": after, "limit": ROWS, "device_names": names,
        "operations": sorted(builtin_now().operations), "query": urlencode(
            {"operation": operation, "shape": shape, "device": device}
        ),
        "wanted": {"operation": operation, "shape": shape, "device": device},
    }  # fmt: skip
    return page(request, "problems", caller, values)


@router.get("/problem")
async def problem(request: Request, caller: Reads) -> Response:
    """The answer to a problem, its champions and trials."""
    service = service_of(request)
    values = await working(service, lambda: problem_values(service, request.query_params))
    return page(request, "problem", caller, values | {"may_submit": _may_submit(caller, values)})


def _may_submit(caller: Caller, values: Mapping[str, Any]) -> bool:
    return caller.may(SUBMIT) and bool(values["job_device"])


@router.get("/device")
async def device(request: Request, caller: Reads, name: str = "") -> Response:
    """A device with its champions below its limits."""
    service = service_of(request)
    values = await working(service, lambda: device_values(service, name[:200]))
    return page(request, "device", caller, values)


@router.get("/kernels")
async def kernels(request: Request, caller: Reads) -> Response:
    """Every kernel, with parameters and rules."""
    from tuner.declare.catalogue import kernels_json
    from tuner.lookup.stale import builtin_now

    groups: dict[str, list[dict[str, Any]]] = {}
    for each in kernels_json(builtin_now()):
        groups.setdefault(each["operation"], []).append(each)
    return page(request, "kernels", caller, {"groups": groups})


@router.get("/wanted")
async def wanted(request: Request, caller: Reads) -> Response:
    """What was asked and has no exact answer."""
    service = service_of(request)
    return page(request, "wanted", caller, await working(service, lambda: wanted_values(service)))


# --- errors and files ----------------------------------


def error_page(request: Request, status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An error as a page."""
    values = {"status": status, "message": message, "title": TITLES.get(status, "That did not work")}
    return page(request, "error", None, values, status, headers)


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """Stylesheet, scripts, and the library of plots: everything comes from here."""
    found = await working(service_of(request), lambda: _asset(name))
    if found is None:
        raise NothingFound("there is no such file")
    data, packed, media = found
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type=media, headers={**headers, "content-encoding": "gzip"})
    return Response(data, media_type=media, headers=headers)


@functools.lru_cache(maxsize=16)
def _asset(name: str) -> tuple[bytes, bytes, str] | None:
    """A file, the same compressed, and its media type; only files that are listed are found."""
    places = {path.name: path for path in (FOLDER / "static").iterdir() if path.suffix in MEDIA}
    if name == "plotly.js":
        import plotly

        places[name] = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    if name not in places:
        return None
    data = places[name].read_bytes()
    return data, gzip.compress(data, 6, mtime=0), f"{MEDIA[places[name].suffix]}; charset=utf-8"

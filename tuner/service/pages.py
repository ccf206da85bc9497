"""Pages for people: overview, problems, devices, jobs with their forms, login; and files that pages need."""

from __future__ import annotations

import functools
import gzip
import importlib.metadata
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from tuner.declare.catalogue import kernels_json
from tuner.declare.problem import worded
from tuner.errors import NothingFound, TunerError
from tuner.lookup.stale import builtin_now
from tuner.results.units import answer_speed, clock, duration
from tuner.service import job_queue
from tuner.service import stored_jobs as jobs
from tuner.service.answers import AsQuery, QuestionBody, Text, view_of
from tuner.service.page_values import (
    ORDERS,
    device_values,
    link_json,
    overview_values,
    problem_rows,
    problem_values,
    record_values,
    wanted_rows,
)
from tuner.service.records import After, Selected
from tuner.service.responses import Reads, Submits, checked, complaint, root_of, service_of, status_of, working
from tuner.service.snapshots import json_bytes
from tuner.service.tokens import COOKIE, LASTS_S, READ, SUBMIT, Caller
from tuner.version import __version__

router = APIRouter(include_in_schema=False)
#: Rows of a page, wanted problems, and events and problems of one job that are shown.
ROWS, WANTED, EVENTS, PROBLEMS = 100, 200, 100, 500
TITLES = {404: "Not found", 401: "Log in", 403: "Not allowed", 422: "That cannot be asked", 503: "Not now"}
#: Files that pages need -> media type.
MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOLDER = Path(__file__).parent


# --- rendering -----------------------------------------


def when(text: str | None) -> Markup:
    """A time to the minute, UTC, which says it in full on request."""
    try:
        moment = datetime.fromisoformat(text or "").astimezone(UTC)
    except ValueError:
        return Markup("{}").format((text or "-")[:40])
    shown = f"{moment:%Y-%m-%d %H:%M}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(text, (text or "")[:19], shown)


def lasted(job: Mapping[str, Any]) -> str:
    """How long a job ran, or has run."""
    if not job["started_at"]:
        return "-"
    ended = datetime.fromisoformat(job["ended_at"]) if job["ended_at"] else datetime.now(UTC)
    return clock((ended - datetime.fromisoformat(job["started_at"])).total_seconds())


def result_of(job: jobs.Job) -> Mapping[str, Any] | None:
    """The champion that a job for one problem reported."""
    return job.report if isinstance(job.report, dict) and "kernel" in job.report else None


def problem_words(row: Mapping[str, Any]) -> str:
    """The problem of a row in a few words."""
    sizes = " x ".join(str(size) for size in row["shape"].values())
    layout, precision = row.get("layout", ""), row.get("precision", "ieee")
    return worded(row["operation"], sizes, row["dtype"], layout, precision, row.get("epilogue", ""))


def question_query(row: Mapping[str, Any]) -> str:
    """The problem and the device of a row as the query of a link."""
    device = row["device"]
    names = ("operation", "dtype", "layout", "precision", "epilogue", "regime")
    values = {name: row.get(name, "") for name in names}
    values["dims"] = ",".join(f"{name}={size}" for name, size in row["shape"].items())
    values["device"] = device["name"] if isinstance(device, Mapping) else device
    return urlencode({name: value for name, value in values.items() if value})


#: Name in templates -> filter.
FILTERS = {
    "duration": lambda seconds: "-" if seconds is None else duration(seconds), "speed": answer_speed,
    "when": when, "lasted": lasted, "problem": problem_words, "question": question_query, "quote": shlex.quote,
}  # fmt: skip


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of pages."""
    loader = jinja2.FileSystemLoader(FOLDER / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS
    environment.globals |= {"version": __version__, "plotly": importlib.metadata.version("plotly")}
    environment.policies["json.dumps_function"] = lambda data, **_: json_bytes(data).decode()
    return environment


def page(
    request: Request, template: str, caller: Caller | None, values: Mapping[str, Any], status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """A page.

    Args:
        request: What is asked.
        template: Name of the template, without its ending.
        caller: Who asks; None for nobody who is known.
        values: What the template shows.
        status: Status of the response.
        headers: More headers.
    """
    service = service_of(request)
    shared = {
        "root": root_of(request), "caller": caller, "open": service.registry.is_open,
        "may_submit": caller is not None and caller.may(SUBMIT), "here": request.scope["path"],
        "snapshot": service.cache.present.manifest.number,
    }  # fmt: skip
    text = templates().get_template(f"{template}.html").render(shared | dict(values))
    return HTMLResponse(text, status, {"cache-control": "no-store", **(headers or {})})


def error_page(request: Request, status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An error as a page."""
    values = {"status": status, "message": message, "title": TITLES.get(status, "That did not work")}
    return page(request, "error", None, values, status, headers)


def redirect(request: Request, target: str) -> RedirectResponse:
    """Leads to a path of this server."""
    return RedirectResponse(f"{root_of(request)}{target}", 303)


# --- what there is -------------------------------------


@router.get("/")
async def overview(request: Request, caller: Reads) -> Response:
    """What runs, what changed last night, which devices there are."""
    service = service_of(request)
    return page(request, "overview", caller, await working(request, lambda: overview_values(service)))


@router.get("/ask")
async def ask(request: Request, caller: Reads, q: Text = "", device: Text = "") -> Response:
    """Leads from a problem in words to its page."""
    try:
        asked = QuestionBody(problem=q, device=device).read()
    except TunerError as error:
        service = service_of(request)
        values = await working(request, lambda: overview_values(service))
        return page(request, "overview", caller, values | {"asked": q, "refused": str(error)}, 422)
    return redirect(request, f"/problem?{question_query(link_json(asked.problem, asked.device, asked.regime))}")


@router.get("/problems")
async def problems(
    request: Request, caller: Reads, wanted: Selected, sort: Text = "", after: After = 0
) -> Response:
    """The problems that were measured or published."""
    view = service_of(request).cache.present
    selected = vars(wanted) | {"shape": ",".join(map(str, wanted.shape))}
    rows = await working(request, lambda: problem_rows(view, wanted, sort))
    values = {
        "problems": rows[after : after + ROWS], "count": len(rows), "after": after, "limit": ROWS,
        "next": after + ROWS if len(rows) > after + ROWS else None, "orders": ORDERS, "sort": sort,
        "device_names": sorted({info.name for info in view.snapshot.devices()}),
        "operations": sorted(builtin_now().operations), "query": urlencode(selected), "wanted": selected,
    }  # fmt: skip
    return page(request, "problems", caller, values)


@router.get("/problem")
async def problem(request: Request, caller: Reads, question: AsQuery) -> Response:
    """The answer to a problem, its champions and trials."""
    service, view, asked = service_of(request), await view_of(request, question.snapshot), question.read()
    return page(
        request, "problem", caller, await working(request, lambda: problem_values(service, view, asked))
    )


@router.get("/device")
async def device(request: Request, caller: Reads, name: Text = "") -> Response:
    """A device with its champions below its limits."""
    service = service_of(request)
    return page(request, "device", caller, await working(request, lambda: device_values(service, name)))


@router.get("/kernels")
async def kernels(request: Request, caller: Reads) -> Response:
    """Every kernel, with parameters and rules."""
    return page(request, "kernels", caller, {"kernels": kernels_json(builtin_now())})


@router.get("/wanted")
async def wanted(request: Request, caller: Reads) -> Response:
    """What was asked and has no exact answer."""
    rows = await working(request, lambda: wanted_rows(service_of(request)))
    saves_s = sum(row["saves_s"] for row in rows)
    return page(request, "wanted", caller, {"wanted": rows[:WANTED], "saves_s": saves_s})


@router.get("/records/{record_id}")
async def record(request: Request, caller: Reads, record_id: str) -> Response:
    """Everything that is known of a measurement, of the database or published."""
    view = service_of(request).cache.present
    return page(request, "record", caller, await working(request, lambda: record_values(view, record_id)))


@router.get("/docs")
async def docs(request: Request, caller: Reads) -> Response:
    """Every route with its parameters, its body and an example."""
    app: FastAPI = request.app
    described = app.openapi()
    routes = [
        {"path": path, "method": method, **route}
        for path, methods in described["paths"].items()
        for method, route in methods.items()
    ]
    base = f"{request.url.scheme}://{request.url.netloc}{root_of(request)}"
    return page(request, "docs", caller, {"described": described, "routes": routes, "base": base})


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """Stylesheet, scripts, and the library of plots: everything comes from here."""
    data, packed, media = await working(request, lambda: _asset(name))
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type=media, headers={**headers, "content-encoding": "gzip"})
    return Response(data, media_type=media, headers=headers)


@functools.lru_cache(maxsize=16)
def _asset(name: str) -> tuple[bytes, bytes, str]:
    """A file, the same compressed, and its media type; only files that are listed are found."""
    places = {path.name: path for path in (FOLDER / "static").iterdir() if path.suffix in MEDIA}
    if name == "plotly.js":
        import plotly

        places[name] = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    if name not in places:
        raise NothingFound("there is no such file")
    data = places[name].read_bytes()
    return data, gzip.compress(data, 6, mtime=0), f"{MEDIA[places[name].suffix]}; charset=utf-8"


# --- login ---------------------------------------------


@router.get("/login")
async def login(request: Request, next: str = "/") -> Response:
    """The form."""
    return page(request, "login", None, {"next": local(next)})


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Exchanges a token for a cookie that scripts cannot read, and other sites' requests do not carry."""
    form = await request.form(max_fields=5, max_part_size=4096)
    target = local(str(form.get("next", "/")))
    try:
        caller = await checked(request, str(form.get("token", "")).strip())
        if not caller.may(READ):
            raise HTTPException(403, "pages need a token of scope read; this one does not have it")
    except HTTPException as error:
        values = {"next": target, "refused": error.detail}
        return page(request, "login", None, values, error.status_code, error.headers)
    response = redirect(request, target)
    response.set_cookie(
        COOKIE, service_of(request).sessions.begin(caller.name), max_age=LASTS_S, path=root_of(request) or "/",
        httponly=True, samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


def local(target: str) -> str:
    """A path of this server, whatever was asked: nobody is led elsewhere by a link to the login."""
    is_path = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_path and target.isprintable() else "/"


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Ends the session."""
    service_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    response = redirect(request, "/login")
    response.delete_cookie(COOKIE, path=root_of(request) or "/")
    return response


# --- jobs ----------------------------------------------


@router.get("/jobs")
async def listing(request: Request, caller: Reads, state: Text = "", before: After = 0) -> Response:
    """The jobs, and a form for a new one."""
    return await _jobs(request, caller, {}, state, before)


async def _jobs(
    request: Request, caller: Caller, form: Mapping[str, str], state: str = "", before: int = 0,
    refused: str = "", status: int = 200,
) -> Response:  # fmt: skip
    service, chosen = service_of(request), state if state in jobs.STATES else ""
    found = await working(request, lambda: job_queue.jobs_page(service.store, chosen or None, before, ROWS))
    latest = await working(
        request, lambda: jobs.latest(service.store, [chosen] if chosen else [], ROWS, before)
    )
    values = {
        "chosen": chosen, "refused": refused, "specs": service.pool.names, "form": form,
        "results": {job.id: result_of(job) for job in latest},
    }  # fmt: skip
    return page(request, "jobs", caller, found | values, status)


@router.post("/jobs/new")
async def submit(request: Request, caller: Submits) -> Response:
    """Submits a job from a form, whose empty fields do not count."""
    form = await request.form(max_fields=10, max_part_size=job_queue.LONGEST_PLAN)
    fields = {name: str(value).strip() for name, value in form.items() if isinstance(value, str)}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value and name != "problem"}
    try:
        if "plan" not in given:
            given["problem"] = {"problem": fields.get("problem", "")}
        job, _ = await job_queue.submitted(request, job_queue.NewJob.model_validate(given), caller)
    except ValidationError as error:
        return await _jobs(request, caller, fields, refused=complaint(error.errors()), status=422)
    except TunerError as error:
        return await _jobs(request, caller, fields, refused=str(error), status=status_of(error))
    return redirect(request, f"/jobs/{job.id}")


@router.get("/jobs/{job_id}")
async def one(request: Request, caller: Reads, job_id: str) -> Response:
    """A job, live."""
    store, devices = service_of(request).store, service_of(request).pool.devices

    def values() -> dict[str, Any]:
        job = job_queue.job_of(store, job_id)
        events = jobs.events(store, job)
        report = job.report if isinstance(job.report, dict) else {}
        is_linked = job.asked["kind"] == "problem" and job.device in devices
        link = job.asked["problem"] | {"device": devices[job.device][0].info.name} if is_linked else None
        return {
            "job": job_queue.job_json(job, job_queue.places_of(store)), "events": events[-EVENTS:],
            "problems": report.get("problems", [])[:PROBLEMS], "link": link,
            "result": result_of(job),
        }  # fmt: skip

    return page(request, "job", caller, await working(request, values))


@router.post("/jobs/{job_id}/cancel")
async def cancel(request: Request, caller: Submits, job_id: str) -> Response:
    """Cancels a job from a form."""
    return redirect(request, f"/jobs/{(await job_queue.cancelled(request, job_id)).id}")

"""Pages for people: overview, problems, devices, jobs with their forms, login, errors."""

import functools
import importlib.metadata
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import jinja2
from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from markupsafe import Markup
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from tuner.declare.catalogue import kernels_json
from tuner.declare.problem import worded
from tuner.errors import TunerError
from tuner.lookup.stale import builtin_now
from tuner.results.units import answer_speed, clock, duration
from tuner.service import job_queue, page_values
from tuner.service import stored_jobs as jobs
from tuner.service.answers import AsQuery, Text
from tuner.service.client import encoded, question_of
from tuner.service.records import After, Selected, known_record
from tuner.service.responses import Reads, Serves, Submits, checked, described, root_of
from tuner.service.snapshots import json_bytes
from tuner.service.state import Service
from tuner.service.tokens import COOKIE, LASTS_S, READ, SECRET_BYTES, SUBMIT, Caller, digest_of
from tuner.store import listing
from tuner.version import __version__

router = APIRouter(include_in_schema=False)
#: Rows of a page, wanted problems, and events and problems of one job that are shown.
ROWS, WANTED, EVENTS, PROBLEMS = 100, 200, 100, 500
#: Seconds after which a client should try again what the database or a device refused.
RETRY_AFTER_S = 5
#: Who is not known.
NOBODY = Caller("", frozenset())
TITLES = {404: "Not found", 401: "Log in", 403: "Not allowed", 422: "That cannot be asked", 503: "Not now"}


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


def problem_words(row: Mapping[str, Any]) -> str:
    """The problem of a row in a few words."""
    sizes = " x ".join(str(size) for size in row["shape"].values())
    layout, precision = row.get("layout", ""), row.get("precision", "ieee")
    return worded(row["operation"], sizes, row["dtype"], layout, precision, row.get("epilogue", ""))


def question_query(row: Mapping[str, Any]) -> str:
    """The problem and the device of a row as the query of a link."""
    device = row["device"]
    return encoded(question_of(row) | {"device": device["name"] if isinstance(device, Mapping) else device})


#: Name in templates -> filter.
FILTERS = {
    "duration": lambda seconds: duration(seconds) if seconds else "-", "speed": answer_speed,
    "when": when, "lasted": lasted, "problem": problem_words, "question": question_query, "quote": shlex.quote,
}  # fmt: skip


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of pages."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS
    environment.globals |= {"version": __version__, "plotly": importlib.metadata.version("plotly")}
    environment.policies["json.dumps_function"] = lambda data, **_: json_bytes(data).decode()
    return environment


@dataclass(frozen=True)
class Page:
    """Renders pages for one request.

    Attributes:
        request: What is asked.
        service: The server.
        caller: Who asks.
    """

    request: Request
    service: Service
    caller: Caller = NOBODY

    def show(
        self, template: str, code: int = 200, headers: Mapping[str, str] | None = None, **values: Any
    ) -> Response:
        """A page of a template, which shows some values."""
        shared = {
            "root": root_of(self.request), "caller": self.caller, "open": self.service.registry.is_open,
            "may_submit": self.caller.may(SUBMIT),
            "here": self.request.scope["path"], "snapshot": self.service.cache.present.manifest.number,
        }  # fmt: skip
        text = templates().get_template(f"{template}.html").render(shared | values)
        return HTMLResponse(text, code, {"cache-control": "no-store", **(headers or {})})

    def lead(self, target: str) -> RedirectResponse:
        """Leads to a path of this server."""
        return RedirectResponse(f"{root_of(self.request)}{target}", 303)


async def read_page(request: Request, service: Serves, caller: Reads) -> Page:
    """Pages for whoever may read."""
    return Page(request, service, caller)


async def submit_page(request: Request, service: Serves, caller: Submits) -> Page:
    """Pages for whoever may submit jobs."""
    return Page(request, service, caller)


ReadPage = Annotated[Page, Depends(read_page)]
SubmitPage = Annotated[Page, Depends(submit_page)]


async def failed(request: Request, error: Exception) -> Response:
    """Answers an error: as JSON, or as a page to a browser, which may have to log in first."""
    status, detail = described(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    headers |= (error.headers or {}) if isinstance(error, HTTPException) else {}
    wants_json = request.scope["path"].startswith("/v1") or "text/html" not in request.headers.get("accept", "")
    if wants_json:
        return JSONResponse({"error": detail}, status, headers)
    page = Page(request, request.app.state.service)
    if status == 401 and request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        return page.lead(f"/login?next={quote(request.scope['path'] + query)}")
    title = TITLES.get(status, "That did not work")
    return page.show("error", status, headers, status=status, message=detail["message"], title=title)


# --- what there is -------------------------------------


@router.get("/")
def overview(page: ReadPage) -> Response:
    """What runs, what changed last night, which devices there are."""
    return page.show("overview", **page_values.overview_values(page.service))


@router.get("/problems")
def problems(page: ReadPage, wanted: Selected, sort: Text = "", after: After = 0) -> Response:
    """The problems that were measured or published."""
    view = page.service.cache.present
    selected = vars(wanted) | {"shape": ",".join(map(str, wanted.shape))}
    rows = page_values.problem_rows(view, wanted, sort)
    return page.show(
        "problems", problems=rows[after : after + ROWS], count=len(rows), after=after, limit=ROWS,
        next=after + ROWS if len(rows) > after + ROWS else None, orders=page_values.ORDERS, sort=sort,
        device_names=sorted({info.name for info in view.snapshot.devices()}),
        operations=sorted(builtin_now().operations), query=urlencode(selected), wanted=selected,
    )  # fmt: skip


@router.get("/problem")
def problem(page: ReadPage, question: AsQuery) -> Response:
    """The answer to a problem, its champions and trials."""
    view = page.service.cache.view(question.snapshot)
    return page.show("problem", **page_values.problem_values(page.service, view, question.read()))


@router.get("/device")
def device(page: ReadPage, name: Text = "") -> Response:
    """A device with its champions below its limits."""
    return page.show("device", **page_values.device_values(page.service, name))


@router.get("/kernels")
def kernels(page: ReadPage) -> Response:
    """Every kernel, with parameters and rules."""
    return page.show("kernels", kernels=kernels_json(builtin_now()))


@router.get("/wanted")
def wanted(page: ReadPage) -> Response:
    """What was asked and has no exact answer."""
    rows = page_values.wanted_rows(page.service)
    return page.show("wanted", wanted=rows[:WANTED], saves_s=sum(row["saves_s"] for row in rows))


@router.get("/records/{record_id}")
def record(page: ReadPage, record_id: str) -> Response:
    """Everything that is known of a measurement, of the database or published."""
    record, retraction = known_record(page.service.cache.present, record_id)
    link = record.problem.as_keys() | {"device": record.device.name, "regime": record.regime}
    return page.show("record", record=record, fields=listing.record_json(record, retraction), link=link)


@router.get("/docs")
def docs(page: ReadPage) -> Response:
    """Every route with its parameters, its body and an example."""
    described, url = page.request.app.openapi(), page.request.url
    routes = [
        {"path": path, "method": method, **route}
        for path, methods in described["paths"].items()
        for method, route in methods.items()
    ]
    base = f"{url.scheme}://{url.netloc}{root_of(page.request)}"
    return page.show("docs", described=described, routes=routes, base=base)


# --- login ---------------------------------------------


@router.get("/login")
def login(request: Request, service: Serves, next: str = "/") -> Response:
    """The form."""
    return Page(request, service).show("login", next=local(next))


@router.post("/login")
async def log_in(
    request: Request, service: Serves, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/"
) -> Response:
    """Exchanges a token for a cookie that scripts cannot read, and other sites' requests do not carry."""
    page, target = Page(request, service), local(next)
    try:
        caller = await checked(request, service, token.strip())
        if not caller.may(READ):
            raise HTTPException(403, "pages need a token of scope read; this one does not have it")
    except HTTPException as error:
        return page.show("login", error.status_code, error.headers, next=target, refused=error.detail)
    cookie, response = secrets.token_urlsafe(SECRET_BYTES), page.lead(target)
    service.sessions.keep(digest_of(cookie), caller.name)
    response.set_cookie(
        COOKIE, cookie, max_age=LASTS_S, path=root_of(request) or "/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


def local(target: str) -> str:
    """A path of this server, whatever was asked: nobody is led elsewhere by a link to the login."""
    is_path = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_path and target.isprintable() else "/"


@router.post("/logout")
def log_out(request: Request, service: Serves) -> Response:
    """Ends the session."""
    service.sessions.forget(digest_of(request.cookies.get(COOKIE, "")))
    response = Page(request, service).lead("/login")
    response.delete_cookie(COOKIE, path=root_of(request) or "/")
    return response


# --- jobs ----------------------------------------------


class JobForm(BaseModel):
    """A job as it is filled in."""

    problem: str = ""
    plan: str = ""
    device: str = ""
    seconds: float | None = None
    priority: int = 0


@router.get("/jobs")
def listing_page(page: ReadPage, state: Text = "", before: After = 0) -> Response:
    """The jobs, and a form for a new one."""
    return _jobs(page, JobForm(), state if state in jobs.STATES else "", before)


def _jobs(
    page: Page, form: JobForm, chosen: str = "", before: int = 0, refused: str = "", status: int = 200
) -> Response:
    listed = job_queue.jobs_page(page.service.store, chosen, before, ROWS)
    specs = page.service.pool.names
    return page.show("jobs", status, **listed, chosen=chosen, refused=refused, specs=specs, form=form)


@router.post("/jobs/new")
def submit(page: SubmitPage, form: Annotated[JobForm, Form()]) -> Response:
    """Submits a job from a form."""
    try:
        problem = None if form.plan else {"problem": form.problem}
        new = job_queue.NewJob.model_validate(vars(form) | {"problem": problem})
        job, _ = job_queue.submit(page.service, new, page.caller.name)
    except (TunerError, ValidationError) as error:
        status, detail = described(error)
        return _jobs(page, form, refused=detail["message"], status=status)
    return page.lead(f"/jobs/{job.id}")


@router.get("/jobs/{job_id}")
def one(page: ReadPage, job_id: str) -> Response:
    """A job, live."""
    store, devices = page.service.store, page.service.pool.devices
    row = job_queue.job_of(store, job_id)
    (job,) = job_queue.jobs_json(store, row)
    is_linked = "problem" in row.asked and row.device in devices
    link = row.asked["problem"] | {"device": devices[row.device].info.name} if is_linked else None
    problems = (row.report or {}).get("problems", [])[:PROBLEMS]
    values = {"job": job, "problems": problems, "link": link, "figures": page_values.job_figures(store, row)}
    return page.show("job", **values, events=jobs.events(store, row)[-EVENTS:])


@router.post("/jobs/{job_id}/cancel")
def cancel(page: SubmitPage, job_id: str) -> Response:
    """Cancels a job from a form."""
    return page.lead(f"/jobs/{job_queue.cancel(page.service, job_id).id}")

"""Log in, log out; forms that submit and cancel jobs; the pages of jobs."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from tuner.errors import InputError, TunerError
from tuner.lookup.asking import parse_key
from tuner.service import job_queue, rendering
from tuner.service.access import CSRF_FIELD, check_csrf, checked, reads, service_of
from tuner.service.job_routes import jobs_page, submitted
from tuner.service.rendering import page, session_needed, set_cookie
from tuner.service.responses import Refused, status_of, working
from tuner.service.tokens import COOKIE, READ, SUBMIT, Caller
from tuner.store import jobs

router = APIRouter(include_in_schema=False)
Reads = Annotated[Caller, Depends(reads)]
#: Jobs of a page, and events of one job that are shown.
ROWS, EVENTS = 100, 100


@router.get("/login")
async def login(request: Request, next: str = "/") -> Response:
    """The form."""
    return page(request, "login", None, {"next": local(next), "refused": ""})


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Exchanges a token for a cookie that scripts cannot read."""
    service, form = service_of(request), await request.form(max_fields=5, max_part_size=4096)
    target = local(str(form.get("next", "/")))
    address = request.client.host if request.client else "-"
    try:
        caller = await checked(service, address, str(form.get("token", "")).strip())
        if not caller.may(READ):
            raise Refused(403, "pages need a token of scope read; this one does not have it")
    except Refused as error:
        values = {"next": target, "refused": str(error)}
        return page(request, "login", None, values, error.status, error.headers)
    cookie, _ = service.sessions.begin(caller.name)
    response = RedirectResponse(request.scope.get("root_path", "") + target, 303)
    set_cookie(request, response, cookie)
    return response


def local(target: str) -> str:
    """A path of this server, whatever was asked: nobody is led elsewhere by a link to the login."""
    parts = urlsplit(target)
    plain = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith("//")
    return target if plain and "\\" not in target and target.isprintable() else "/"


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Ends the session."""
    form = await request.form(max_fields=5, max_part_size=4096)
    check_csrf(session_needed(request), str(form.get(CSRF_FIELD, "")))
    service_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}/login", 303)
    response.delete_cookie(COOKIE, path=root or "/")
    return response


async def sender(request: Request, form: Any) -> Caller:
    """Who sends a form that changes something.

    Raises:
        Refused: The form is not ours, or the token does not allow it.
    """
    service, session = service_of(request), session_needed(request)
    check_csrf(session, str(form.get(CSRF_FIELD, "")))
    caller = service.registry.anyone if service.registry.is_open else service.registry.still(session.name)
    if caller is None or not caller.may(SUBMIT):
        raise Refused(403, "this needs the scope submit")
    request.scope["state"]["caller"] = caller.name
    return caller


@router.get("/jobs")
async def listing(request: Request, caller: Reads, state: str = "", before: int = 0) -> Response:
    """The jobs, and a form for a new one."""
    return await _jobs(request, caller, state, max(0, min(before, 2**62)), {}, "")


async def _jobs(
    request: Request, caller: Caller, state: str, before: int, form: dict[str, str], refused: str,
    status: int = 200,
) -> Response:  # fmt: skip
    service = service_of(request)
    chosen = state if state in jobs.STATES else ""
    found = await working(service, lambda: jobs_page(service, chosen or None, before, ROWS))
    fields = ("problem", "plan", "seconds", "device", "priority")
    values = {
        "jobs": found["jobs"], "counts": found["counts"], "next": found["next"], "chosen": chosen,
        "may_submit": caller.may(SUBMIT) and bool(service.pool.names), "refused": refused,
        "specs": service.pool.names, "form": {name: form.get(name, "") for name in fields},
    }  # fmt: skip
    return page(request, "jobs", caller, values, status)


@router.post("/jobs/new")
async def submit(request: Request) -> Response:
    """Submits a job from a form."""
    form = await request.form(max_fields=10, max_part_size=job_queue.LONGEST_PLAN)
    caller, service = await sender(request, form), service_of(request)
    told = {name: str(value).strip() for name, value in form.items() if isinstance(value, str)}
    try:
        job, _ = await submitted(service, _submission(told), caller)
    except TunerError as error:
        return await _jobs(request, caller, "", 0, told, str(error), status_of(error))
    return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs/{job.id}", 303)


def _submission(told: dict[str, str]) -> job_queue.Submission:
    """A job from the fields of a form."""
    try:
        seconds = float(told["seconds"]) if told.get("seconds") else None
        priority = int(told.get("priority") or 0)
    except ValueError:
        raise InputError("seconds and priority are numbers; correct them") from None
    if told.get("plan"):
        return job_queue.Submission(None, told["plan"], told.get("device", ""), seconds, None, priority)
    key = parse_key(told.get("problem", "")[:200])
    problem = {
        "operation": key.operation, "dims": key.dims, "dtype": key.dtype, "layout": key.layout,
        "precision": key.precision, **key.told_epilogue,
    }  # fmt: skip
    return job_queue.Submission(problem, "", told.get("device", ""), seconds, None, priority)


@router.get("/jobs/{job_id}")
async def one(request: Request, caller: Reads, job_id: str) -> Response:
    """A job, live."""
    service = service_of(request)

    def found() -> dict[str, Any]:
        job = job_queue.found(service.store, job_id)
        order = [each.id for each in job_queue.queue(service.store)] if job.state == jobs.QUEUED else []
        told = job_queue.job_json(job, order.index(job.id) + 1 if job.id in order else None)
        events = [each for each in jobs.events(service.store, job) if each.kind != jobs.PROGRESS]
        report = job.report if isinstance(job.report, dict) else {}
        return {
            "job": told, "events": events[-EVENTS:], "problems": report.get("problems", [])[:500],
            "link": _link(told, service), "may_submit": caller.may(SUBMIT),
        }  # fmt: skip

    return page(request, "job", caller, await working(service, found))


def _link(told: dict[str, Any], service: Any) -> str:
    """The query of the page of a job's problem; empty for a plan."""
    if told["asked"]["kind"] != "problem" or told["device"] not in service.pool.devices:
        return ""
    return rendering.question(
        told["asked"]["problem"] | {"device": service.pool.devices[told["device"]][0].info.name}
    )


@router.post("/jobs/{job_id}/cancel")
async def cancel(request: Request, job_id: str) -> Response:
    """Cancels a job from a form."""
    form = await request.form(max_fields=5, max_part_size=4096)
    await sender(request, form)
    service = service_of(request)
    job = await working(service, lambda: job_queue.cancel(service.store, job_id))
    if service.supervisor is not None:
        service.supervisor.wake()
    return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs/{job.id}", 303)

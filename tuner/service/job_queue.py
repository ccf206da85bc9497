"""Jobs: checked before they are stored, and their routes: submit, look at, follow, cancel."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from tuner.declare import catalogue
from tuner.declare.problem import check_sizes
from tuner.errors import InputError, NothingFound, PlanError
from tuner.lookup.stale import builtin_now
from tuner.night.plan import Complaints, document_of, plan_of
from tuner.service import stored_jobs as jobs
from tuner.service.answers import RequestedProblem, Text
from tuner.service.pool import DevicePool, allowed_file, allowed_json, node
from tuner.service.records import After
from tuner.service.responses import Follows, Submits, root_of, service_of, working
from tuner.service.stored_jobs import Job
from tuner.service.supervisor import queue
from tuner.service.tokens import READ, Caller
from tuner.store import Store

router = APIRouter(prefix="/v1", tags=["jobs"])
#: Seconds between two looks for events, event streams at once, and seconds that one lasts.
LOOK_EVERY_S, MOST_STREAMS, STREAM_S = 0.5, 100, 3600.0
#: Characters of a plan, and its problems.
LONGEST_PLAN, MOST_PROBLEMS = 256 << 10, 10_000
#: How often a mark may stand in a plan; numbers of more than 20 digits, and more than 40 dots in a line.
MOST_MARKS, TOO_LONG = {"[": 2000, "{": 2000, ".": 2000, ",": 10_000}, re.compile(r"[0-9_]{21}|(\.[^.\n]*){41}")
#: Seconds and trials of a job, and how far off its deadline may be.
LONGEST_SECONDS, MOST_TRIALS, LONGEST_WAIT = 7 * 86400.0, 1_000_000, timedelta(days=3650)
#: Unfinished jobs, of one submitter and in all.
MOST_OF_ONE, MOST_JOBS = 1000, 5000
#: Of a job, what only this node uses.
HIDDEN = ("same", "node", "process", "number")
#: What errors call a plan that was submitted.
PLAN = Path("plan")


State = Annotated[Literal[jobs.STATES], Query(description="Only jobs of this state.")]  # type: ignore[valid-type]
ManyJobs = Annotated[int, Query(ge=1, le=1000, description="Jobs of a page.")]


class ProblemOfJob(RequestedProblem):
    """A problem to tune."""

    file: str = Field("", max_length=1000, description="A kernel file that the operator has allowed.")
    kernels: list[Text] = Field(default=[], max_length=100, description="Only these kernels compete.")


class NewJob(BaseModel):
    """A job: a problem, or a plan."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"problem": {"operation": "gemm", "dims": [1024, 1024, 1024]}, "seconds": 60}
        },
    )

    problem: ProblemOfJob | None = Field(None, description="A problem to tune.")
    plan: str = Field("", max_length=LONGEST_PLAN, description="A plan, as TOML text.")
    device: Text = Field("", description="A device of this node.")
    seconds: float | None = Field(None, gt=0, le=LONGEST_SECONDS, description="Budget of all of it.")
    trials: int | None = Field(None, gt=0, le=MOST_TRIALS, description="Budget of a problem, in trials.")
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(0, description="Among jobs of one submitter.")
    deadline: datetime | Literal[""] = Field("", description="When it must have ended, ISO 8601.")


# --- submitted and cancelled ---------------------------


def submit(store: Store, pool: DevicePool, new: NewJob, submitter: str) -> tuple[Job, bool]:
    """Checks a job and stores it.

    Returns:
        The job, or the equal one that is unfinished; and whether it is new.

    Raises:
        InputError: A value is wrong; for a plan, a `PlanError` with line and key.
    """
    if (new.problem is None) == (not new.plan):
        raise InputError("a job has a problem or a plan, got both or neither; give the one or the other")
    deadline = _deadline(new.deadline) if new.deadline else ""
    if new.problem is not None:
        spec = pool.spec(new.device)
        asked = _problem(store, new.problem, pool.targets(spec))
    else:
        asked, device = _plan(store, new.plan)
        spec = pool.spec(new.device or ("" if pool.cluster else device))
    asked |= {"seconds": new.seconds, "trials": new.trials}
    same = hashlib.sha256(json.dumps([asked, spec, node()], sort_keys=True).encode()).hexdigest()
    unfinished = jobs.unfinished_of(store)
    if unfinished.get(submitter, 0) >= MOST_OF_ONE or sum(unfinished.values()) >= MOST_JOBS:
        rule = f"there are up to {MOST_JOBS} unfinished jobs, {MOST_OF_ONE} of one submitter"
        raise InputError(f"{rule}; wait until some have ended, or cancel some")
    return jobs.submit(store, Job(asked, same, node(), submitter, spec, new.priority, deadline))


def _deadline(when: datetime) -> str:
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    if not timedelta(0) < when - datetime.now(UTC) < LONGEST_WAIT:
        raise InputError(
            f"a deadline is in the future, within {LONGEST_WAIT.days} days, got {when}; correct it"
        )
    return when.astimezone(UTC).isoformat(timespec="microseconds")


def _problem(store: Store, asked: ProblemOfJob, targets: Collection[str]) -> dict[str, Any]:
    """A checked problem, written out in full, for which each of some targets has a kernel."""
    file = allowed_file(store, asked.file) if asked.file else None
    kernels = catalogue.from_file(file) if file else builtin_now()
    if file and not asked.problem and not asked.operation:
        asked = asked.model_copy(update={"operation": kernels.kernels[-1].operation})
    key, regime = asked.key(kernels), asked.checked_regime()
    problem = key.of_operation(kernels.operation(key.operation))
    check_sizes(problem)
    for target in targets:
        if not kernels.serving(problem, target, tuple(asked.kernels)):
            raise InputError(
                f"{key.operation} has no kernel for {target} that is for {problem}; choose another"
            )
    names = ("operation", "dtype", "layout", "precision")
    full = {name: getattr(key, name) for name in names} | {"shape": key.dims, "regime": regime}
    full |= {"kernels": asked.kernels, "file": str(file or ""), **problem.told_epilogue}
    what = f"{key} {regime}".removesuffix(" cold")
    return {"kind": "problem", "what": what, "problem": full, "files": [str(file)] if file else []}


def _plan(store: Store, text: str) -> tuple[dict[str, Any], str]:
    """A checked plan, and the device that it names."""
    check_bounds(text)
    try:
        document, complaints = document_of(text, PLAN)
        files = _files(store, document, complaints)
        plan = plan_of(document, Path("/nothing") / PLAN, complaints)
    except RecursionError:
        raise PlanError(f"{PLAN}: brackets of a plan nest a few levels deep; correct it") from None
    if len(plan.items) > MOST_PROBLEMS:
        rule = f"problems: a plan that is submitted has at most {MOST_PROBLEMS} problems"
        raise complaints.about(("problems", 0), f"{rule}, got {len(plan.items)}; use fewer sizes, or split it")
    if plan.watch.rollback != "report":
        rule = "rollback: a plan that is submitted takes no champion back by itself; leave it out"
        raise complaints.about(("watch", "rollback"), rule)
    until = plan.until.isoformat("minutes") if plan.until is not None else ""
    what = f"plan of {len(plan.items)} problem{'s' if len(plan.items) != 1 else ''}"
    limits = {"plan_seconds": plan.seconds, "until": until}
    return {"kind": "plan", "what": what, "plan": text, "files": files, **limits}, plan.device


def check_bounds(text: str) -> None:
    """Refuses what would take a parser long or much memory, before it is parsed.

    Raises:
        PlanError: A mark stands in it too often, a line has too many dots, or a number too many digits.
    """
    for mark, most in MOST_MARKS.items():
        if (count := text.count(mark)) > most:
            raise PlanError(
                f"{PLAN}: a plan that is submitted has up to {most} {mark!r}, got {count}; split it"
            )
    if TOO_LONG.search(text):
        raise PlanError(f"{PLAN}: a line of a plan has up to 40 dots, and a number 20 digits; correct it")


def _files(store: Store, document: Mapping[str, Any], complaints: Complaints) -> list[str]:
    """The kernel files that a plan names, if they are allowed; its other mistakes are for its own checks."""
    files = []
    for kind, key in (("problems", "file"), ("surveys", "file"), ("surveys", "shapes")):
        tables = document.get(kind)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            file = table.get(key) if isinstance(table, dict) else None
            with complaints.noting((kind, index, key), f"{key}: "):
                if file is not None and str(allowed_file(store, str(file))) != file:
                    raise InputError(f"a plan that is submitted names a file by its whole path, got {file!r}")
            files += [file] if file is not None else []
    complaints.check()
    return files


def cancel(store: Store, job_id: str) -> Job:
    """Cancels a job: one that waits ends at once, one that runs keeps what it has measured.

    Raises:
        NothingFound: There is no such job.
        InputError: It has ended.
    """
    job = job_of(store, job_id)
    is_changed = (
        jobs.change(store, job.id, [jobs.QUEUED], jobs.CANCELLED, "cancelled while it waited")
        or jobs.change(store, job.id, [jobs.RUNNING], jobs.STOPPING, "cancelled")
    )  # fmt: skip
    job = job_of(store, job_id)
    if not is_changed and job.state != jobs.STOPPING:
        raise InputError(f"a job can be cancelled until it ends, job {job.id} is {job.state}")
    return job


# --- looked at -----------------------------------------


def job_of(store: Store, job_id: str, caller: Caller | None = None) -> Job:
    """The job of an id.

    Args:
        store: The store.
        job_id: The id.
        caller: Who asks; without the scope to read, one sees jobs of one's own.

    Raises:
        InputError: It is no id.
        NothingFound: There is none.
    """
    job = jobs.job(store, job_id)
    if job is None or (caller and job.submitter != caller.name and not caller.may(READ)):
        raise NothingFound(f"there is no job {job_id}; GET /v1/jobs lists them")
    return job


def jobs_page(
    store: Store, state: str | None, before: int, limit: int, submitter: str | None = None
) -> dict[str, Any]:
    """A page of jobs, of one submitter or of all, latest first, with places in the queue, and counts."""
    latest = jobs.latest(store, [state] if state else [], limit + 1, before, submitter)
    places = places_of(store)
    page = [job_json(job, places) | {"report": None} for job in latest[:limit]]
    more = latest[limit - 1].number if len(latest) > limit else None
    return {"jobs": page, "counts": jobs.counts(store), "next": more}


def places_of(store: Store) -> dict[str, int]:
    """Id of a job that waits -> its place in the queue, from 1."""
    return {job.id: place for place, job in enumerate(queue(store), 1)}


def job_json(job: Job, places: Mapping[str, int] = {}) -> dict[str, Any]:
    """A job as a JSON object, with its place in the queue; null for what is not yet."""
    keys = {name: value for name, value in vars(job).items() if name not in HIDDEN}
    keys |= {name: keys[name] or None for name in ("deadline", "progress", "started_at", "ended_at")}
    return keys | {"what": job.asked.get("what", job.asked["kind"]), "position": places.get(job.id)}


# --- routes --------------------------------------------


@router.post("/jobs", status_code=202, summary="Submits a job")
async def submit_one(request: Request, caller: Submits, job: NewJob) -> Response:
    """Stores a job: 202, or 200 with the equal one that is unfinished. A plan's errors tell line and key."""
    stored, new = await submitted(request, job, caller)
    headers = {"location": f"{root_of(request)}/v1/jobs/{stored.id}"}
    return JSONResponse(job_json(stored) | {"new": new}, 202 if new else 200, headers)


async def submitted(request: Request, job: NewJob, caller: Caller) -> tuple[Job, bool]:
    """Checks and stores a job, and has it started."""
    service = service_of(request)
    stored = await working(request, lambda: submit(service.store, service.pool, job, caller.name))
    service.wake()
    return stored


async def cancelled(request: Request, job_id: str) -> Job:
    """Cancels a job."""
    service = service_of(request)
    job = await working(request, lambda: cancel(service.store, job_id))
    service.wake()
    return job


@router.get("/jobs", summary="Jobs: the queue in its order, then those that run and have ended")
async def listing(
    request: Request, caller: Follows, state: State | None = None, before: After = 0, limit: ManyJobs = 100
) -> Response:
    """Queued jobs have their position. `next` is the `before` of the next page, null after the last."""
    store = service_of(request).store
    only = None if caller.may(READ) else caller.name
    return JSONResponse(await working(request, lambda: jobs_page(store, state, before, limit, only)))


@router.get("/jobs/{job_id}", summary="A job: state, progress, report")
async def one(request: Request, caller: Follows, job_id: str) -> Response:
    """Everything about a job; the report is what the command printed."""
    store = service_of(request).store
    job = await working(request, lambda: job_json(job_of(store, job_id, caller), places_of(store)))
    return JSONResponse(job)


@router.post("/jobs/{job_id}/cancel", summary="Cancels a job; what it has measured is kept")
async def cancel_one(request: Request, caller: Submits, job_id: str) -> Response:
    """A job that waits ends at once, one that runs is interrupted in an orderly way."""
    return JSONResponse(job_json(await cancelled(request, job_id)))


async def _counted(request: Request) -> AsyncIterator[None]:
    """Counts a stream as long as it is open.

    Raises:
        HTTPException: As many are open as may be.
    """
    service = service_of(request)
    if service.streams >= MOST_STREAMS:
        why = f"{MOST_STREAMS} event streams are open; ask for the job itself"
        raise HTTPException(503, why, {"retry-after": "5"})
    service.streams += 1
    try:
        yield
    finally:
        service.streams -= 1


@router.get(
    "/jobs/{job_id}/events", summary="What happens to a job, as it happens", dependencies=[Depends(_counted)],
    responses={200: {"content": {"text/event-stream": {}}}},
)  # fmt: skip
async def events(
    request: Request, caller: Follows, job_id: str,
    last_event_id: Annotated[str, Header(max_length=20, description="Only what came after this event.")] = "",
) -> Response:  # fmt: skip
    """Server-sent events: `state` and `progress`, with the id of the last state. The stream ends with the job.

    After a broken connection, browsers ask for what came after the last event that they have.
    """
    store = service_of(request).store
    job = await working(request, lambda: job_of(store, job_id, caller))
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    return EventSourceResponse(_events(request, job, after), ping=15)


def _news(store: Store, job: Job, after: int) -> tuple[Job, Sequence[Any]]:
    """A job as it is, and then its events after one of them: the last of all is stored with its state."""
    return job_of(store, job.id), jobs.events(store, job, after)


async def _events(request: Request, job: Job, after: int) -> AsyncIterator[ServerSentEvent]:
    store, progress = service_of(request).store, job.progress if job.ended_at else {}
    for _ in range(int(STREAM_S / LOOK_EVERY_S)):
        job, events = await working(request, functools.partial(_news, store, job, after))
        if job.progress != progress:
            progress = job.progress
            yield ServerSentEvent(json.dumps(progress), event="progress", id=str(after))
        for event in events:
            after, data = event.number, event.said | {"at": event.at, "state": event.kind}
            yield ServerSentEvent(json.dumps(data), event="state", id=str(after))
        if job.ended_at:
            return
        await asyncio.sleep(LOOK_EVERY_S)


@router.get("/allowed", summary="Kernel files that jobs may name")
async def allowed_files(request: Request, caller: Submits) -> Response:
    """What the operator has allowed on this node."""
    store = service_of(request).store
    return JSONResponse({"allowed": await working(request, lambda: allowed_json(store))})

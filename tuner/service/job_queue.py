"""Jobs: checked before they are stored, and their routes: submit, look at, follow, cancel."""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from tuner.declare import catalogue
from tuner.errors import InputError, NothingFound, PlanError
from tuner.lookup.stale import builtin_now
from tuner.night.plan import Complaints, Plan, document_of, plan_of
from tuner.results.record import ProblemKey
from tuner.service import stored_jobs as jobs
from tuner.service.answers import RequestedProblem, Text
from tuner.service.pool import allowed_json, check_allowed, node
from tuner.service.records import After
from tuner.service.responses import Follows, Json, Refusal, Serves, Submits, keys, root_of
from tuner.service.state import Service
from tuner.service.stored_jobs import JobRow
from tuner.service.supervisor import queue
from tuner.service.tokens import READ, Caller
from tuner.store import Store

router = APIRouter(prefix="/v1", tags=["jobs"])
#: Seconds between two looks for events, event streams at once, and seconds that one lasts.
LOOK_EVERY_S, MOST_STREAMS, STREAM_S = 0.5, 100, 3600.0
#: Characters of a plan.
LONGEST_PLAN = 256 << 10
#: How often a mark may stand in a plan; numbers of more than 20 digits, and more than 40 dots in a line.
MOST_MARKS = {"[": 2000, "{": 2000, ".": 2000, "=": 4000, ",": 10_000}
TOO_LONG = re.compile(r"[0-9_]{21}|(\.[^.\n]*){41}")
#: Seconds and trials of a job, and how far off its deadline may be.
LONGEST_SECONDS, MOST_TRIALS, LONGEST_WAIT = 7 * 86400.0, 1_000_000, timedelta(days=3650)
#: Unfinished jobs of one submitter.
MOST_OF_ONE = 1000
#: Of a job, what only this node uses.
HIDDEN = ("same", "node", "process", "number")
#: A job as documentation shows it.
EXAMPLE: Any = {"problem": {"operation": "gemm", "dims": [1024, 1024, 1024]}, "seconds": 60}
#: A job as it is told; the report is that of its night.
_TEXTS = dict.fromkeys(("id", "state", "what", "why", "device", "submitter"), "string")
JobJson = Annotated[Json, keys(**_TEXTS, champion="object or null", report="object or null")]
#: What errors call a plan that was submitted.
PLAN = Path("plan")


State = Annotated[Literal["", *jobs.STATES], Query(description="Only jobs of this state.")]  # type: ignore[valid-type]
ManyJobs = Annotated[int, Query(ge=1, le=1000, description="Jobs of a page.")]


class ProblemOfJob(RequestedProblem):
    """A problem to tune."""

    file: str = Field("", max_length=1000, description="A kernel file that the operator has allowed.")
    kernels: list[Text] = Field(default=[], max_length=100, description="Only these kernels compete.")


class NewJob(BaseModel):
    """A job: a problem, or a plan."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})

    problem: ProblemOfJob | None = Field(None, description="A problem to tune.")
    plan: str = Field("", max_length=LONGEST_PLAN, description="A plan, as TOML text.")
    device: Text = Field("", description="A device of this node.")
    seconds: float | None = Field(None, gt=0, le=LONGEST_SECONDS, description="Budget of all of it.")
    trials: int | None = Field(None, gt=0, le=MOST_TRIALS, description="Budget of a problem, in trials.")
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(0, description="Among jobs of one submitter.")
    deadline: datetime | Literal[""] = Field("", description="When it must have ended, ISO 8601.")


# --- submitted and cancelled ---------------------------


def submit(service: Service, new: NewJob, submitter: str) -> tuple[JobRow, bool]:
    """Checks a job, stores it, and has it started. A job for a problem is a plan of that problem alone.

    Returns:
        The job, or the equal one that is unfinished; and whether it is new.

    Raises:
        InputError: A value is wrong; for a plan, a `PlanError` with line and key.
    """
    if (new.problem is None) == (not new.plan):
        raise InputError("a job has a problem or a plan, got both or neither; give the one or the other")
    store, pool, deadline = service.store, service.pool, _deadline(new.deadline) if new.deadline else ""
    unfinished = [job for job in jobs.unfinished(store, node()) if job.submitter == submitter]
    if len(unfinished) >= MOST_OF_ONE:
        rule = f"there are up to {MOST_OF_ONE} unfinished jobs of one submitter"
        raise InputError(f"{rule}; wait until some have ended, or cancel some")
    text = new.plan if new.problem is None else problem_plan(store, new.problem, new)
    plan, asked = _plan(store, text)
    spec = pool.spec(new.device or ("" if pool.cluster else plan.defaults.device))
    asked |= {"kind": "plan" if new.problem is None else "problem", "seconds": new.seconds or plan.seconds}
    same = hashlib.sha256(json.dumps([asked, spec, node()], sort_keys=True).encode()).hexdigest()
    columns = {"asked": asked, "node": node(), "submitter": submitter, "device": spec, "deadline": deadline}
    stored = jobs.submit(store, same, new.priority, **columns)
    service.wake()
    return stored


def _deadline(when: datetime) -> str:
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    if not timedelta(0) < when - datetime.now(UTC) < LONGEST_WAIT:
        raise InputError(f"a deadline lies ahead, within {LONGEST_WAIT.days} days, got {when}; correct it")
    return when.astimezone(UTC).isoformat(timespec="microseconds")


def problem_plan(store: Store, problem: ProblemOfJob, budget: NewJob) -> str:
    """The plan of one problem; texts of JSON are texts of TOML, too."""
    if problem.file:
        check_allowed(store, problem.file)
    kernels = catalogue.from_file(Path(problem.file)) if problem.file else builtin_now()
    if problem.file and not problem.problem and not problem.operation:
        problem = problem.model_copy(update={"operation": kernels.kernels[-1].operation})
    key = problem.key(kernels)
    values = {name: getattr(key, name) for name in ("operation", "dtype", "layout", "precision", "epilogue")}
    values |= {"file": problem.file, "regime": problem.regime or "cold", "kernels": problem.kernels}
    values |= {"seconds": budget.seconds, "trials": budget.trials}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value]
    sizes = ", ".join(f"{json.dumps(name)} = {size}" for name, size in key.dims.items())
    return "\n".join(["[[problems]]", *lines, f"set = {{{sizes}}}", "[watch]", "problems = 0", ""])


def _plan(store: Store, text: str) -> tuple[Plan, dict[str, Any]]:
    """A checked plan, and what is stored of it."""
    asked: dict[str, Any]
    check_bounds(text)
    try:
        document, complaints = document_of(text, PLAN)
        files = _files(store, document, complaints)
        plan = plan_of(document, Path("/nothing") / PLAN, complaints)
    except RecursionError:
        raise PlanError(f"{PLAN}: brackets of a plan nest a few levels deep; correct it") from None
    if plan.watch.rollback != "report":
        rule = "rollback: a plan that is submitted takes no champion back by itself; leave it out"
        complaints.note(("watch", "rollback"), rule)
        complaints.check()
    asked = {"what": f"plan of {len(plan.items)} problems", "plan": text, "files": files}
    if len(plan.items) == 1 and not plan.surveys:
        (item,) = plan.items
        key = ProblemKey.of(item.problem)
        what = f"{key} {item.regime}".removesuffix(" cold")
        asked |= {"what": what, "problem": key.as_keys() | {"regime": item.regime}}
    return plan, asked


def check_bounds(text: str) -> None:
    """Refuses what would take a parser long or much memory, before it is parsed.

    Raises:
        PlanError: A mark stands in it too often, a line has too many dots, or a number too many digits.
    """
    for mark, most in MOST_MARKS.items():
        if (count := text.count(mark)) > most:
            raise PlanError(f"{PLAN}: a submitted plan has up to {most} {mark!r}, got {count}; split it")
    if TOO_LONG.search(text):
        raise PlanError(f"{PLAN}: a line of a plan has up to 40 dots, and a number 20 digits; correct it")


def _files(store: Store, document: Mapping[str, Any], complaints: Complaints) -> list[str]:
    """The kernel files that a plan names, if they are allowed; its other mistakes are for its own checks."""
    files = []
    for kind, key in (("problems", "file"), ("surveys", "file"), ("surveys", "shapes")):
        tables = document.get(kind)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict) and key in table:
                files.append(str(table[key]))
                with complaints.noting((kind, index, key), f"{key}: "):
                    check_allowed(store, files[-1])
    complaints.check()
    return files


def cancel(service: Service, job_id: str) -> JobRow:
    """Cancels a job: one that waits ends at once, one that runs keeps what it has measured.

    Raises:
        NothingFound: There is no such job.
        InputError: It has ended.
    """
    store = service.store
    is_changed = job_of(store, job_id) and (
        jobs.change(store, job_id, [jobs.QUEUED], jobs.CANCELLED, "cancelled while it waited")
        or jobs.change(store, job_id, [jobs.RUNNING], jobs.STOPPING, "cancelled")
    )
    job = job_of(store, job_id)
    if not is_changed and job.state != jobs.STOPPING:
        raise InputError(f"a job can be cancelled until it ends, job {job.id} is {job.state}")
    service.wake()
    return job


# --- looked at -----------------------------------------


def job_of(store: Store, job_id: str, caller: Caller | None = None) -> JobRow:
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


def jobs_page(store: Store, state: str, before: int, limit: int, submitter: str = "") -> Json:
    """A page of jobs, of one submitter or of all: those that run, the queue in its order, the ended."""
    latest = jobs.latest(store, [state] if state else [], limit + 1, before, submitter)
    page = [job | {"report": None} for job in jobs_json(store, *latest[:limit])]
    page.sort(key=lambda job: (job["state"] not in (jobs.RUNNING, jobs.STOPPING), job["position"] or math.inf))
    more = latest[limit - 1].number if len(latest) > limit else None
    return {"jobs": page, "counts": jobs.counts(store), "next": more}


def jobs_json(store: Store, *rows: JobRow) -> list[dict[str, Any]]:
    """Jobs as JSON objects, with their places in the queue and their champions; null for what is not yet."""
    places = {job.id: place for place, job in enumerate(queue(store), 1)}
    objects = []
    for job in rows:
        keys = {name: value for name, value in job._mapping.items() if name not in HIDDEN}
        keys |= {name: keys[name] or None for name in ("deadline", "progress", "started_at", "ended_at")}
        problems = (job.report or {}).get("problems", [])
        keys["champion"] = problems[0]["after"] if len(problems) == 1 else None
        objects.append(keys | {"what": job.asked.get("what", "a job"), "position": places.get(job.id)})
    return objects


# --- routes --------------------------------------------


@router.post("/jobs", status_code=202, summary="Submits a job", responses={200: {"model": JobJson}})
def submit_one(request: Request, response: Response, service: Serves, caller: Submits, job: NewJob) -> JobJson:
    """Stores a job: 202, or 200 with the equal one that is unfinished. A plan's errors tell line and key."""
    stored, new = submit(service, job, caller.name)
    response.headers["location"] = f"{root_of(request)}/v1/jobs/{stored.id}"
    response.status_code = 202 if new else 200
    return jobs_json(service.store, stored)[0] | {"new": new}


@router.get("/jobs", summary="The latest jobs: those that run, the queue in its order, the ended")
def listing(
    service: Serves, caller: Follows, state: State = "", before: After = 0, limit: ManyJobs = 100
) -> Annotated[Json, keys(jobs="array", counts="object", next="integer or null")]:
    """Queued jobs have their position. `next` is the `before` of the next page, null after the last."""
    return jobs_page(service.store, state, before, limit, "" if caller.may(READ) else caller.name)


@router.get("/jobs/{job_id}", summary="A job: state, progress, report")
def one(service: Serves, caller: Follows, job_id: str) -> JobJson:
    """Everything about a job; the report is what the command printed."""
    return jobs_json(service.store, job_of(service.store, job_id, caller))[0]


@router.post("/jobs/{job_id}/cancel", summary="Cancels a job; what it has measured is kept")
def cancel_one(service: Serves, caller: Submits, job_id: str) -> JobJson:
    """A job that waits ends at once, one that runs is interrupted in an orderly way."""
    return jobs_json(service.store, cancel(service, job_id))[0]


def _followed(service: Serves, caller: Follows, job_id: str) -> JobRow:
    """The job of a stream, if one more may be open."""
    if service.streams >= MOST_STREAMS:
        why = f"{MOST_STREAMS} event streams are open; ask for the job itself"
        raise HTTPException(503, why, {"retry-after": "5"})
    return job_of(service.store, job_id, caller)


@router.get(
    "/jobs/{job_id}/events", summary="What happens to a job, as it happens",
    response_class=EventSourceResponse,
)  # fmt: skip
async def events(
    service: Serves, job: Annotated[JobRow, Depends(_followed)],
    last_event_id: Annotated[str, Header(max_length=20, description="Only what came after this event.")] = "",
) -> AsyncIterator[ServerSentEvent]:  # fmt: skip
    """Server-sent events: `state` and `progress`, with the id of the last state. The stream ends with the job.

    After a broken connection, browsers ask for what came after the last event that they have.
    """
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    progress = job.progress if job.ended_at else {}
    service.streams += 1
    try:
        for _ in range(int(STREAM_S / LOOK_EVERY_S)):
            # The job before its events: the last of them is stored with its state.
            job = await run_in_threadpool(job_of, service.store, job.id)
            if job.progress != progress:
                progress = job.progress
                yield ServerSentEvent(data=progress, event="progress", id=str(after))
            for event in await run_in_threadpool(jobs.events, service.store, job, after):
                after, data = event.number, event.said | {"at": event.at, "state": event.kind}
                yield ServerSentEvent(data=data, event="state", id=str(after))
            if job.ended_at:
                return
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        service.streams -= 1


@router.get("/allowed", summary="Kernel files that jobs may name", responses={422: {"model": Refusal}})
def allowed_files(service: Serves, caller: Submits) -> Annotated[Json, keys(allowed="array")]:
    """What the operator has allowed on this node."""
    return {"allowed": allowed_json(service.store)}

"""Routes of jobs: submit, look at, follow, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from tuner.service import job_queue
from tuner.service.access import reads, service_of, submits
from tuner.service.questions import LONGEST_TEXT
from tuner.service.responses import Refused, working
from tuner.service.state import Service
from tuner.service.tokens import Caller
from tuner.store import jobs
from tuner.store.jobs import Job, JobEvent

router = APIRouter(prefix="/v1", tags=["jobs"])
Reads = Annotated[Caller, Depends(reads)]
Submits = Annotated[Caller, Depends(submits)]
#: Seconds between two looks for events, event streams at once, and seconds that one lasts.
LOOK_EVERY_S, MOST_STREAMS, STREAM_S = 0.5, 100, 3600.0


class ProblemOfJob(BaseModel):
    """A problem to tune."""

    model_config = ConfigDict(extra="forbid")

    operation: str = Field("", max_length=LONGEST_TEXT, description="Name; may be left out with a file.")
    file: str = Field("", max_length=1000, description="A kernel file that the operator has allowed.")
    dims: list[int] | dict[str, int] = Field(description="Sizes, in the operation's order or by name.")
    dtype: str = Field("", max_length=LONGEST_TEXT)
    layout: str = Field("", max_length=LONGEST_TEXT)
    precision: str = Field("", max_length=LONGEST_TEXT)
    epilogue: str = Field("", max_length=LONGEST_TEXT)
    regime: str = Field("cold", max_length=LONGEST_TEXT)
    kernels: list[Annotated[str, Field(max_length=LONGEST_TEXT)]] = Field(
        default_factory=list, max_length=100, description="Only these kernels compete."
    )


class NewJob(BaseModel):
    """A job: a problem, or a plan."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"problem": {"operation": "gemm", "dims": [1024, 1024, 1024]}, "seconds": 60}
        },
    )

    problem: ProblemOfJob | None = Field(None, description="A problem to tune.")
    plan: str = Field("", max_length=job_queue.LONGEST_PLAN, description="A plan, as TOML text.")
    device: str = Field("", max_length=LONGEST_TEXT, description="A device of this node.")
    seconds: float | None = Field(None, description="Budget; of a plan, of all of it.")
    trials: int | None = Field(None, description="Budget of a problem, in trials.")
    priority: int = Field(0, description="The higher, the earlier among the jobs of one submitter.")
    deadline: str = Field("", max_length=LONGEST_TEXT, description="When it must have ended, ISO 8601.")


@router.post("/jobs", status_code=202, summary="Submits a job")
async def submit(request: Request, caller: Submits, job: NewJob) -> Response:
    """Stores a job: 202, or 200 with the equal one that is unfinished. A plan's errors tell line and key."""
    service = service_of(request)
    problem = job.problem.model_dump(exclude_defaults=True) if job.problem is not None else None
    told = job_queue.Submission(
        problem, job.plan, job.device, job.seconds, job.trials, job.priority, job.deadline
    )
    found, new = await submitted(service, told, caller)
    location = f"{request.scope.get('root_path', '')}/v1/jobs/{found.id}"
    body = job_queue.job_json(found) | {"new": new}
    return JSONResponse(body, 202 if new else 200, {"location": location})


async def submitted(service: Service, told: job_queue.Submission, caller: Caller) -> tuple[Job, bool]:
    """Checks and stores a job, and has it started."""
    found = await working(service, lambda: job_queue.submit(service.store, service.pool, told, caller.name))
    if service.supervisor is not None:
        service.supervisor.wake()
    return found


@router.get("/jobs", summary="Jobs: the queue in its order, then those that run and have ended")
async def listing(
    request: Request,
    caller: Reads,
    state: Annotated[
        Literal["queued", "running", "stopping", "done", "failed", "cancelled"] | None,
        Query(description="Only jobs of this state."),
    ] = None,
    before: Annotated[int, Query(ge=0, le=2**62, description="`next` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Jobs of a page.")] = 100,
) -> Response:
    """Queued jobs have their position. `next` is the `before` of the next page, null after the last."""
    service = service_of(request)
    return JSONResponse(await working(service, lambda: jobs_page(service, state, before, limit)))


def jobs_page(service: Service, state: str | None, before: int, limit: int) -> dict[str, Any]:
    """A page of jobs."""
    positions = {job.id: at for at, job in enumerate(job_queue.queue(service.store), 1)}
    found = jobs.latest(service.store, [state] if state else [], limit + 1, before)
    page = [job_queue.job_json(job, positions.get(job.id)) | {"report": None} for job in found[:limit]]
    return {
        "jobs": page, "counts": jobs.counts(service.store),
        "next": found[limit - 1].number if len(found) > limit else None,
    }  # fmt: skip


@router.get("/jobs/{job_id}", summary="A job: state, progress, report")
async def one(request: Request, caller: Reads, job_id: str) -> Response:
    """Everything about a job; the report is what the command printed."""
    service = service_of(request)

    def found() -> dict[str, Any]:
        job = job_queue.found(service.store, job_id)
        order = [each.id for each in job_queue.queue(service.store)] if job.state == jobs.QUEUED else []
        return job_queue.job_json(job, order.index(job.id) + 1 if job.id in order else None)

    return JSONResponse(await working(service, found))


@router.post("/jobs/{job_id}/cancel", summary="Cancels a job; what it has measured is kept")
async def cancel(request: Request, caller: Submits, job_id: str) -> Response:
    """A job that waits ends at once, one that runs is interrupted in an orderly way."""
    service = service_of(request)
    job = await working(service, lambda: job_queue.cancel(service.store, job_id))
    if service.supervisor is not None:
        service.supervisor.wake()
    return JSONResponse(job_queue.job_json(job))


@router.get(
    "/jobs/{job_id}/events", summary="What happens to a job, as it happens",
    responses={200: {"content": {"text/event-stream": {}}}},
)  # fmt: skip
async def events(
    request: Request, caller: Reads, job_id: str,
    last_event_id: Annotated[str, Header(max_length=20, description="Only what came after this event.")] = "",
) -> Response:  # fmt: skip
    """Server-sent events: `state` and `progress`, each with an id. The stream ends with the job.

    After a broken connection, browsers ask for what came after the last event that they have.
    """
    service = service_of(request)
    job = await working(service, lambda: job_queue.found(service.store, job_id))
    if request.app.state.streams >= MOST_STREAMS:  # no `await` from here until it is counted
        why = f"{MOST_STREAMS} event streams are open; ask for the job itself"
        raise Refused(503, why, {"retry-after": "5"})
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    request.app.state.streams += 1
    return _Counted(_events(service, job, after), ping=15, app=request.app)


class _Counted(EventSourceResponse):
    """A stream that is counted from when it is admitted until it ends, whether it was ever read or not."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], *, ping: int, app: FastAPI) -> None:
        super().__init__(events, ping=ping)
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._app.state.streams -= 1


async def _events(service: Service, job: Job, after: int) -> AsyncIterator[ServerSentEvent]:
    clock = asyncio.get_running_loop().time
    until_s = clock() + STREAM_S
    while clock() < until_s:
        found, ended = await working(service, lambda last=after: _news(service, job, last))  # type: ignore[misc]
        for each in found:
            after = each.number
            yield _event(each)
        if ended:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _news(service: Service, job: Job, after: int) -> tuple[list[JobEvent], bool]:
    """The events of a job after one, and whether no more will come."""
    now = job_queue.found(service.store, job.id)  # before the events: the last one is stored with the state
    found = jobs.events(service.store, job, after)
    return found, now.state not in jobs.UNFINISHED and len(found) < jobs.EVENTS_AT_ONCE


def _event(each: JobEvent) -> ServerSentEvent:
    if each.kind == jobs.PROGRESS:
        return ServerSentEvent(json.dumps(dict(each.said)), event="progress", id=str(each.number))
    data = json.dumps({"at": each.at, "state": each.kind, **each.said})
    return ServerSentEvent(data, event="state", id=str(each.number))


@router.get("/allowed", summary="Kernel files that jobs may name")
async def allowed_files(request: Request, caller: Submits) -> Response:
    """What the operator has allowed on this node."""
    service = service_of(request)
    found = await working(service, lambda: [each.to_json() for each in job_queue.files(service.store)])
    return JSONResponse({"allowed": found})

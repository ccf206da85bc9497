"""Routes of jobs: submit, look at, follow, cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from tuner.service import job_queue
from tuner.service.job_queue import NewJob, job_json, job_of
from tuner.service.responses import Reads, Refused, Submits, root_of, service_of, working
from tuner.service.state import Service
from tuner.service.tokens import Caller
from tuner.store import jobs
from tuner.store.jobs import Job, JobEvent

router = APIRouter(prefix="/v1", tags=["jobs"])
#: Seconds between two looks for events, event streams at once, and seconds that one lasts.
LOOK_EVERY_S, MOST_STREAMS, STREAM_S = 0.5, 100, 3600.0


@router.post("/jobs", status_code=202, summary="Submits a job")
async def submit(request: Request, caller: Submits, job: NewJob) -> Response:
    """Stores a job: 202, or 200 with the equal one that is unfinished. A plan's errors tell line and key."""
    stored, new = await submitted(request, job, caller)
    headers = {"location": f"{root_of(request)}/v1/jobs/{stored.id}"}
    return JSONResponse(job_json(stored) | {"new": new}, 202 if new else 200, headers)


async def submitted(request: Request, job: NewJob, caller: Caller) -> tuple[Job, bool]:
    """Checks and stores a job, and has it started."""
    service = service_of(request)
    stored = await working(request, lambda: job_queue.submit(service.store, service.pool, job, caller.name))
    service.wake()
    return stored


async def cancelled(request: Request, job_id: str) -> Job:
    """Cancels a job."""
    service = service_of(request)
    job = await working(request, lambda: job_queue.cancel(service.store, job_id))
    service.wake()
    return job


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
    store = service_of(request).store
    return JSONResponse(await working(request, lambda: job_queue.jobs_page(store, state, before, limit)))


@router.get("/jobs/{job_id}", summary="A job: state, progress, report")
async def one(request: Request, caller: Reads, job_id: str) -> Response:
    """Everything about a job; the report is what the command printed."""
    store = service_of(request).store
    return JSONResponse(await working(request, lambda: job_queue.placed_json(store, job_of(store, job_id))))


@router.post("/jobs/{job_id}/cancel", summary="Cancels a job; what it has measured is kept")
async def cancel(request: Request, caller: Submits, job_id: str) -> Response:
    """A job that waits ends at once, one that runs is interrupted in an orderly way."""
    return JSONResponse(job_json(await cancelled(request, job_id)))


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
    job = await working(request, lambda: job_of(service.store, job_id))
    if service.streams >= MOST_STREAMS:  # no `await` from here until it is counted
        why = f"{MOST_STREAMS} event streams are open; ask for the job itself"
        raise Refused(503, why, {"retry-after": "5"})
    after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    service.streams += 1
    return _CountedStream(_events(request, job, after), service)


class _CountedStream(EventSourceResponse):
    """A stream that is counted from when it is admitted until it ends, whether it was ever read or not."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], service: Service) -> None:
        super().__init__(events, ping=15)
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.streams -= 1


async def _events(request: Request, job: Job, after: int) -> AsyncIterator[ServerSentEvent]:
    store, clock = service_of(request).store, asyncio.get_running_loop().time

    def news() -> tuple[list[JobEvent], bool]:
        """The events after the last, and whether no more will come."""
        now = job_of(store, job.id)  # before the events: the last one is stored with the state
        found = jobs.events(store, job, after)
        return found, now.state not in jobs.UNFINISHED and len(found) < jobs.EVENTS_AT_ONCE

    until_s, ended = clock() + STREAM_S, False
    while clock() < until_s and not ended:
        found, ended = await working(request, news)
        for event in found:
            after, is_progress = event.number, event.kind == jobs.PROGRESS
            data: dict[str, Any] = dict(event.said)
            data = data if is_progress else {"at": event.at, "state": event.kind, **data}
            kind = "progress" if is_progress else "state"
            yield ServerSentEvent(json.dumps(data), event=kind, id=str(event.number))
        if not ended:
            await asyncio.sleep(LOOK_EVERY_S)


@router.get("/allowed", summary="Kernel files that jobs may name")
async def allowed_files(request: Request, caller: Submits) -> Response:
    """What the operator has allowed on this node."""
    store = service_of(request).store
    files = await working(request, lambda: [file.to_json() for file in job_queue.files(store)])
    return JSONResponse({"allowed": files})

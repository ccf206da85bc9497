"""Routes of records: pages of records, champions, problems; kernels and devices; records from elsewhere."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from tuner.declare.catalogue import kernels_json
from tuner.errors import InputError, NothingFound
from tuner.lookup.stale import builtin_now
from tuner.results.codec import storable
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, Record, Retraction, Role
from tuner.results.survey import Kept
from tuner.service.answers import LARGEST_DIM, LARGEST_NUMBER, AsQuery, Text, view_of
from tuner.service.responses import Reads, Sends, answered, service_of
from tuner.service.snapshots import OpenSnapshot
from tuner.service.state import Service
from tuner.store import Store, listing, retracting, watched
from tuner.store.exchange import BATCH, LinesFile, taken
from tuner.store.listing import Selection
from tuner.store.reading import Reader
from tuner.study.crowns import champions_page, history_of

#: Refused lines whose reasons are told.
REASONS = 100
#: Bytes of a body at the most; of its lines, unpacked: so many, and as many times those of the body.
MOST_PACKED, MOST_BYTES, LEAST_UNPACKED, MOST_PACKED_TIMES = 2 << 30, 8 << 30, 16 << 20, 100
#: Characters of a name, and of any other text, such as a compiler's messages.
LONGEST_NAME, LONGEST_TEXT = 200, 100_000
#: Seconds between two looks whether a sender is still there.
LOOK_EVERY_S = 1.0
#: What is counted of the lines that a program sends.
COUNTED = ("lines", "records", "champions", "retractions", "surveys", "known", "refused")

router = APIRouter(prefix="/v1", tags=["records"])
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page.")]
After = Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="`next` of the page before.")]


def _selection(operation: Text = "", shape: Text = "", device: Text = "", regime: Text = "") -> Selection:
    return Selection.parsed(operation, shape, device, regime)


Selected = Annotated[Selection, Depends(_selection)]


@router.get("/kernels", summary="Kernels with their parameters and constraints")
async def kernels(request: Request, caller: Reads, operation: Text = "", target: Text = "") -> Response:
    """As `tuner kernels --json`."""
    return await answered(request, lambda _: {"kernels": kernels_json(builtin_now(), operation, target)})


@router.get("/operations", summary="Operations: dims, dtypes, layouts")
async def operations(request: Request, caller: Reads) -> Response:
    """What can be asked about."""
    names = ("name", "dims", "dtypes", "layouts")
    declared = builtin_now().operations.values()
    described = [{name: getattr(operation, name) for name in names} for operation in declared]
    return await answered(request, lambda _: {"operations": described})


@router.get("/devices", summary="Devices of the records, and of this node")
async def devices(request: Request, caller: Reads) -> Response:
    """`here` are those that jobs may use, as `tuner devices --json` tells them."""
    here = [named[0].to_json() for named in service_of(request).pool.devices.values()]
    return await answered(
        request, lambda view: {"devices": [info.to_json() for info in view.snapshot.devices()], "here": here}
    )


@router.get("/problems", summary="Problems that were measured")
async def problems(
    request: Request, caller: Reads, wanted: Selected, after: After = 0, limit: Limit = 100
) -> Response:
    """A page; `next` is the `after` of the next one, null after the last."""
    return await answered(request, lambda view: problems_page(view.store, wanted, after, limit))


@router.get("/champions", summary="The present champions")
async def champions(
    request: Request, caller: Reads, wanted: Selected, after: After = 0, limit: Limit = 100
) -> Response:
    """A page; `next` is the `after` of the next one, null after the last."""
    return await answered(request, lambda view: champions_page(view.store, wanted, after, limit))


@router.get("/champions/history", summary="The champions that a problem has had")
async def history(request: Request, caller: Reads, question: AsQuery) -> Response:
    """Oldest first, the present one last, each with what it was compared with."""
    view, asked = await view_of(request, question.snapshot), question.read()

    def champions(view: OpenSnapshot) -> dict[str, Any]:
        answered_question = view.answer(asked).question
        assert answered_question is not None, "an answer has its question"
        return history_of(view.store, asked.problem, answered_question.device, asked.regime)

    return await answered(request, champions, view)


@router.get("/records", summary="Records, the latest first")
async def records(
    request: Request, caller: Reads, wanted: Selected, role: Role | None = None,
    outcome: Outcome | None = None, before: After = 0, limit: Limit = 50,
) -> Response:  # fmt: skip
    """A page, as `tuner records list --json`; `next` is the `before` of the next one."""
    only = [chosen.value for chosen in (role, outcome) if chosen is not None]
    return await answered(request, lambda view: _records_page(view.store, wanted, only, before, limit))


@router.get("/records/{record_id}", summary="Everything stored about a record")
async def record(request: Request, caller: Reads, record_id: str) -> Response:
    """As `tuner records show --json`, of published results, too; a record that was taken back is marked."""
    return await answered(request, lambda view: listing.record_json(*known_record(view, record_id)))


@router.get("/stats", summary="Counts of records by operation and device")
async def stats(request: Request, caller: Reads) -> Response:
    """As `tuner records stats --json`."""
    return await answered(request, lambda view: {"tallies": listing.tallies_json(view.store)})


@router.get("/wanted", summary="Problems that were asked and have no exact answer")
async def wanted(request: Request, caller: Reads, operation: Text = "", limit: Limit = 100) -> Response:
    """Those first by which tuning is expected to save the most time."""
    store = service_of(request).store
    return await answered(request, lambda _: wanted_json(store, operation, limit))


_LINES = {
    "description": "What `tuner records export` writes: JSON lines, plain or compressed by zstd.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@router.post(
    "/records",
    summary="Takes records from elsewhere",
    openapi_extra={"requestBody": _LINES},
    max_body_size=MOST_PACKED,
)
async def take(request: Request, caller: Sends) -> Response:
    """Stores the lines that are new; the same lines can be sent any number of times.

    Lines that are no records are refused one by one, with the reason; the others are stored.
    """
    async with anyio.NamedTemporaryFile(prefix="tuner-records-") as file:
        async for piece in request.stream():
            await file.write(piece)
        await file.flush()
        storing = asyncio.create_task(_take(service_of(request), Path(str(file.name))))
        leaving = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait((storing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not storing.done():
                raise HTTPException(499, "the sender is gone; what was stored stays")
            return JSONResponse(storing.result())
        finally:
            storing.cancel()
            leaving.cancel()


async def _take(service: Service, path: Path) -> dict[str, Any]:
    """Stores a file in a thread, which ends soon if this is cancelled: sender or server are gone."""
    is_over = threading.Event()
    work = functools.partial(take_file, service.store, path, is_over.is_set)
    try:
        async with service.taking:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=service.working)
    finally:
        is_over.set()


async def _until_gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_EVERY_S)


def take_file(store: Store, path: Path, is_over: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Stores what is new of a file of records, in batches: what was stored stays if a later line is damaged.

    Args:
        store: The store.
        path: The file.
        is_over: Tells after each batch whether nobody waits for the answer any more.

    Returns:
        ``lines``, counts of new ``records``, ``champions``, ``retractions`` and ``surveys``, and of what was
        ``known``; ``refused``, and the ``reasons`` of the first of these.

    Raises:
        InputError: The file is damaged.
        StoreTrouble: The database cannot be written.
    """
    most_bytes = min(MOST_BYTES, LEAST_UNPACKED + MOST_PACKED_TIMES * path.stat().st_size)
    file, counts, reasons = LinesFile(path, most_bytes=most_bytes), Counter[str](), list[dict[str, Any]]()
    lines = file.contents()
    while not is_over() and (batch := list(itertools.islice(lines, BATCH))):
        batch = batch[:-1] if file.damage else batch
        flaws = {number: item if isinstance(item, str) else flaw_of(item) for number, item in batch}
        counts.update(asdict(taken(store, [line for line in batch if not flaws[line[0]]])))
        refused = [{"line": number, "reason": flaw[:500]} for number, flaw in flaws.items() if flaw]
        counts.update(lines=len(batch), refused=len(refused))
        reasons += refused
    if file.damage:
        raise InputError(f"{file.damage}; send it again, nothing is stored twice")
    return {name: counts[name] for name in COUNTED} | {"reasons": reasons[:REASONS]}


def flaw_of(item: Kept | None) -> str:
    """What cannot be true of something that was sent, in words; empty if nothing is seen."""
    records = [item] if isinstance(item, Record) else []
    if isinstance(item, Champion):
        records = [record for record in (item.record, item.baseline) if record]
        if not 0 <= item.speedup < math.inf:
            return f"a speed-up is a ratio of times, got {item.speedup}"
    for text in _texts(item):
        if len(text) > LONGEST_TEXT or storable(text) != text:
            rule = f"a text has up to {LONGEST_TEXT} characters, and none that databases refuse"
            return f"{rule}, got {len(text)}, {text[:40]!r}"
    for record in records:
        problem, device = record.problem, record.device
        names = problem.operation, problem.layout, record.kernel, record.regime, device.name
        if long := [name for name in names if len(name) > LONGEST_NAME]:
            return f"a name has up to {LONGEST_NAME} characters, got {len(long[0])}"
        if not all(1 <= size <= LARGEST_DIM for size in problem.dims.values()):
            return f"a dim is a whole number of 1 to {LARGEST_DIM}, got {problem}"[:LONGEST_NAME]
        if odd := [value for value in record.config.values() if not isinstance(value, int | float | str)]:
            return f"a config has numbers and texts, got {odd[0]!r}"[:LONGEST_NAME]
        if wrong := [sample_s for sample_s in record.measurement.samples_s if not 0 < sample_s < math.inf]:
            return f"a sample is a time in seconds above 0, got {wrong[0]}"
    return ""


def _texts(value: Any) -> Iterator[str]:
    """All texts of what was sent."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _texts(part))
    elif isinstance(value, tuple | list):
        yield from (text for part in value for text in _texts(part))
    elif is_dataclass(value):
        yield from (text for part in vars(value).values() for text in _texts(part))


def known_record(view: OpenSnapshot, record_id: str) -> tuple[Record, Retraction | None]:
    """The record of an id, of the database or published, and its retraction.

    Raises:
        InputError: The text is no id.
        NothingFound: No record has it.
    """
    try:
        return listing.record_named(view.store, record_id, "this server")
    except NothingFound:
        for result in view.snapshot.standing(""):
            for record in (result.champion.record, result.champion.baseline, *result.runners_up):
                if record is not None and record.id == record_id:
                    return record, None
        raise


def _records_page(
    store: Reader, wanted: Selection, only: Sequence[str], before: int, limit: int
) -> dict[str, Any]:
    """A page of records, newest first, and where the next page begins; see `tuner.store.listing.latest`."""
    found = listing.latest(store, wanted, limit + 1, before=before, only=only)
    gone = retracting.retracted(store, [record.id for _, record in found])
    page = [listing.record_json(record, gone.get(record.id)) for _, record in found[:limit]]
    return {"records": page, "next": found[limit - 1][0] if len(found) > limit else None}


def problems_page(store: Reader, wanted: Selection, after: int, limit: int) -> dict[str, Any]:
    """A page of problems that were measured, with counts of their trials."""

    def fits(measured: listing.MeasuredProblem) -> bool:
        device = wanted.device.casefold()
        names = "", measured.device.name.casefold(), measured.device.uuid.casefold()
        return wanted.has(measured.problem) and wanted.regime in ("", measured.regime) and device in names

    found = [measured.to_json() for measured in listing.problems(store) if fits(measured)]
    more = after + limit if len(found) > after + limit else None
    return {"problems": found[after : after + limit], "count": len(found), "next": more}


def wanted_json(store: Reader, operation: str = "", limit: int = 100) -> dict[str, Any]:
    """What was asked and has no exact answer."""
    return {"wanted": [problem.to_json() for problem in watched.demand(store, operation=operation)[:limit]]}

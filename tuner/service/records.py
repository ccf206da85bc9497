"""Routes of records: pages of records, champions, problems; kernels and devices; records from elsewhere."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from tuner.declare.catalogue import kernels_json
from tuner.errors import InputError
from tuner.lookup.stale import builtin_now
from tuner.results.measurement import Outcome
from tuner.results.record import Role
from tuner.service.answers import LARGEST_NUMBER, AsQuery, Text, view_of
from tuner.service.responses import Reads, Sends, answered, service_of, working
from tuner.service.snapshots import OpenSnapshot
from tuner.store import Store, listing, retracting, watched
from tuner.store.exchange import BATCH, LinesFile, taken
from tuner.store.listing import Selection
from tuner.store.reading import Reader
from tuner.study.crowns import champions_page, history_of

#: Refused lines whose reasons are told.
REASONS = 100
#: Bytes of all lines at the most, unpacked.
MOST_BYTES = 8 << 30
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
    """As `tuner records show --json`; a record that was taken back is told, and marked."""
    return await answered(
        request, lambda view: listing.record_json(*listing.record_named(view.store, record_id, "this server"))
    )


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


@router.post("/records", summary="Takes records from elsewhere", openapi_extra={"requestBody": _LINES})
async def take(request: Request, caller: Sends) -> Response:
    """Stores the lines that are new; the same lines can be sent any number of times.

    Lines that are no records are refused one by one, with the reason; the others are stored.
    """
    service = service_of(request)
    async with anyio.NamedTemporaryFile(prefix="tuner-records-") as file:
        async for piece in request.stream():
            await file.write(piece)
        await file.flush()
        path = Path(str(file.name))
        async with service.taking:
            return JSONResponse(await working(request, lambda: take_file(service.store, path)))


def take_file(store: Store, path: Path) -> dict[str, Any]:
    """Stores what is new of a file of records, in batches: what was stored stays if a later line is damaged.

    Returns:
        ``lines``, counts of new ``records``, ``champions``, ``retractions`` and ``surveys``, and of what was
        ``known``; ``refused``, and the ``reasons`` of the first of these.

    Raises:
        InputError: The file is damaged.
        StoreTrouble: The database cannot be written.
    """
    file = LinesFile(path, most_bytes=MOST_BYTES)
    counts, reasons = Counter[str](), list[dict[str, Any]]()
    lines = file.contents()
    while batch := list(itertools.islice(lines, BATCH)):
        batch = batch[:-1] if file.damage else batch
        refused = [(number, content) for number, content in batch if isinstance(content, str)]
        stored, more = _stored(store, [line for line in batch if not isinstance(line[1], str)])
        counts.update(stored, lines=len(batch), refused=len(refused) + len(more))
        reasons += [{"line": number, "reason": why[:500]} for number, why in sorted(refused + more)]
    if file.damage:
        raise InputError(f"{file.damage}; send it again, nothing is stored twice")
    return {name: counts[name] for name in COUNTED} | {"reasons": reasons[:REASONS]}


def _stored(store: Store, lines: list[Any]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Counts of what is new of some lines, and those that the store refuses, each with its reason."""
    try:
        counts = asdict(taken(store, lines))
        return Counter({name: counts[name] for name in counts if name in COUNTED}), []
    except InputError as error:
        if len(lines) == 1:
            return Counter(), [(lines[0][0], str(error))]
    half = len(lines) // 2
    (first, refused), (second, more) = (_stored(store, part) for part in (lines[:half], lines[half:]))
    return first + second, refused + more


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

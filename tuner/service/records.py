"""Routes of records: pages of records, champions, problems; kernels and devices; records from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from tuner.declare.catalogue import kernels_json
from tuner.lookup.stale import builtin_now
from tuner.results.measurement import Outcome
from tuner.results.record import Role
from tuner.service.access import reads, sends_records, service_of
from tuner.service.answers import parameters
from tuner.service.first_answers import asked_in
from tuner.service.intake import Intake
from tuner.service.questions import LONGEST_TEXT
from tuner.service.responses import told, working
from tuner.service.tokens import Caller
from tuner.store import demand, listing, retracting
from tuner.store.reading import Reader
from tuner.store.record_forms import found_record, record_json, selection, tallies_json
from tuner.store.streams import Selection
from tuner.study.crowns import champions_page, history_of

router = APIRouter(prefix="/v1", tags=["records"])
Reads = Annotated[Caller, Depends(reads)]
Sends = Annotated[Caller, Depends(sends_records)]
Text = Annotated[str, Query(max_length=LONGEST_TEXT)]
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page.")]
After = Annotated[int, Query(ge=0, le=2**62, description="`next` of the page before.")]


@router.get("/kernels", summary="Kernels with their parameters and constraints")
async def kernels(request: Request, caller: Reads, operation: Text = "", target: Text = "") -> Response:
    """As `tuner kernels --json`."""
    number = service_of(request).shelf.present.manifest.number
    found = await working(service_of(request), lambda: kernels_json(builtin_now(), operation, target))
    return told(request, {"kernels": found}, number)


@router.get("/operations", summary="Operations: dims, dtypes, layouts")
async def operations(request: Request, caller: Reads) -> Response:
    """What can be asked about."""
    number = service_of(request).shelf.present.manifest.number
    return told(request, {"operations": _operations_json()}, number)


@router.get("/devices", summary="Devices of the records, and of this node")
async def devices(request: Request, caller: Reads) -> Response:
    """`here` are those that jobs may use, as `tuner devices --json` tells them."""
    service = service_of(request)
    view = service.shelf.present
    known = await working(service, lambda: [each.to_json() for each in view.snapshot.devices()])
    here = [devices[0].to_json() for devices in service.offer.devices.values()]
    return told(request, {"devices": known, "here": here}, view.manifest.number)


@router.get("/problems", summary="Problems that were measured")
async def problems(
    request: Request, caller: Reads, operation: Text = "", shape: Text = "", device: Text = "",
    regime: Text = "", after: After = 0, limit: Limit = 100,
) -> Response:  # fmt: skip
    """A page; `next` is the `after` of the next one, null after the last."""
    service, view = service_of(request), service_of(request).shelf.present
    wanted = selection(operation, shape, device, regime)
    found = await working(service, lambda: problems_page(view.store, wanted, after, limit))
    return told(request, found, view.manifest.number)


@router.get("/champions", summary="The present champions")
async def champions(
    request: Request, caller: Reads, operation: Text = "", shape: Text = "", device: Text = "",
    regime: Text = "", after: After = 0, limit: Limit = 100,
) -> Response:  # fmt: skip
    """A page; `next` is the `after` of the next one, null after the last."""
    service, view = service_of(request), service_of(request).shelf.present
    wanted = selection(operation, shape, device, regime)
    found = await working(service, lambda: champions_page(view.store, wanted, after, limit))
    return told(request, found, view.manifest.number)


@router.get("/champions/history", openapi_extra=parameters(), summary="The champions that a problem has had")
async def history(request: Request, caller: Reads) -> Response:
    """Oldest first, the present one last, each with what it was compared with."""
    service = service_of(request)

    def found() -> tuple[dict[str, Any], int]:
        view, asked = asked_in(service, request.query_params)
        where = view.answer(asked).question
        assert where is not None, "an answer has its question"
        return history_of(view.store, asked.problem, where.device, asked.regime), view.manifest.number

    return told(request, *await working(service, found))


@router.get("/records", summary="Records, the latest first")
async def records(
    request: Request, caller: Reads, operation: Text = "", shape: Text = "", device: Text = "",
    regime: Text = "", role: Role | None = None, outcome: Outcome | None = None, before: After = 0,
    limit: Limit = 50,
) -> Response:  # fmt: skip
    """A page, as `tuner records list --json`; `next` is the `before` of the next one."""
    service, view = service_of(request), service_of(request).shelf.present
    wanted = selection(operation, shape, device, regime)
    only = [each.value for each in (role, outcome) if each is not None]
    found = await working(service, lambda: _records_page(view.store, wanted, only, before, limit))
    return told(request, found, view.manifest.number)


@router.get("/records/{record_id}", summary="Everything stored about a record")
async def record(request: Request, caller: Reads, record_id: str) -> Response:
    """As `tuner records show --json`; a record that was taken back is told, and marked."""
    service, view = service_of(request), service_of(request).shelf.present
    found = await working(service, lambda: record_json(*found_record(view.store, record_id, "this server")))
    return told(request, found, view.manifest.number)


@router.get("/stats", summary="Counts of records by operation and device")
async def stats(request: Request, caller: Reads) -> Response:
    """As `tuner records stats --json`."""
    service, view = service_of(request), service_of(request).shelf.present
    found = await working(service, lambda: tallies_json(view.store))
    return told(request, {"tallies": found}, view.manifest.number)


@router.get("/wanted", summary="Problems that were asked and have no exact answer")
async def wanted(request: Request, caller: Reads, operation: Text = "", limit: Limit = 100) -> Response:
    """Those first by which tuning is expected to save the most time."""
    service, view = service_of(request), service_of(request).shelf.present
    found = await working(service, lambda: demand.read(service.store, operation=operation)[:limit])
    return told(request, {"wanted": [each.to_json() for each in found]}, view.manifest.number)


@router.post(
    "/records",
    summary="Takes records from elsewhere",
    openapi_extra={
        "requestBody": {
            "description": "What `tuner records export` writes: JSON lines, plain or compressed by zstd.",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def take(request: Request, caller: Sends) -> Response:
    """Stores the lines that are new; the same lines can be sent any number of times.

    Lines that are no records are refused one by one, with the reason; the others are stored. What was stored
    stays if the stream breaks off.
    """
    service = service_of(request)
    intake = Intake(service.store)
    async with service.taking:
        async for piece in request.stream():
            if piece:
                await working(service, lambda piece=piece: intake.feed(piece))  # type: ignore[misc]
        taken = await working(service, intake.finish)
    return JSONResponse(taken.to_json())


def _operations_json() -> list[dict[str, Any]]:
    return [
        {
            "name": operation.name, "dims": list(operation.dims), "dtypes": list(operation.dtypes),
            "layouts": list(operation.layouts),
        }
        for operation in builtin_now().operations.values()
    ]  # fmt: skip


def _records_page(
    store: Reader, wanted: Selection, only: Sequence[str], before: int, limit: int
) -> dict[str, Any]:
    """A page of records, newest first.

    Args:
        store: The store.
        wanted: Which records.
        only: Roles and outcomes; any if empty.
        before: Position of the page before; 0 for the first page.
        limit: Records of a page.

    Returns:
        ``records``, and ``next``: where the next page begins, null after the last.
    """
    found = listing.records(store, wanted, only, before, limit + 1)
    gone = retracting.retracted(store, [record.id for _, record in found])
    page = [record_json(record, gone.get(record.id)) for _, record in found[:limit]]
    return {"records": page, "next": found[limit - 1][0] if len(found) > limit else None}


def problems_page(store: Reader, wanted: Selection, after: int, limit: int) -> dict[str, Any]:
    """A page of problems that were measured, with counts of their trials."""
    found = [each for each in listing.problems(store) if _is_wanted(each, wanted)]
    page = [each.to_json() for each in found[after : after + limit]]
    more = after + limit if len(found) > after + limit else None
    return {"problems": page, "count": len(found), "next": more}


def _is_wanted(each: Any, wanted: Selection) -> bool:
    fits = wanted.has(each.problem) and wanted.regime in ("", each.regime)
    return fits and wanted.device.casefold() in ("", each.device.name.casefold(), each.device.uuid.casefold())

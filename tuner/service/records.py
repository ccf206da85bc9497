"""Routes of records: pages of records, champions, problems; kernels and devices; records from elsewhere."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import zstandard
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from tuner.declare.catalogue import kernels_json
from tuner.errors import InputError
from tuner.lookup.stale import builtin_now
from tuner.results.measurement import Outcome
from tuner.results.record import Role
from tuner.service.access import reads, sends_records, service_of
from tuner.service.answers import asked_in, parameters
from tuner.service.questions import LONGEST_TEXT
from tuner.service.responses import told, working
from tuner.service.tokens import Caller
from tuner.store import Store, demand, listing, retracting
from tuner.store.exchange import BATCH, Counts, content_of, taken
from tuner.store.reading import Reader
from tuner.store.streams import Selection
from tuner.study.crowns import champions_page, history_of

#: Refused lines that are told one by one.
TOLD = 100
#: Bytes of a line, of all lines, and of the window of a compressed stream, at the most.
LONGEST_LINE_BYTES = 32 << 20
MOST_BYTES = 8 << 30
WINDOW_BYTES = 128 << 20
#: First bytes of a zstd frame, and of gzip.
ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
#: Bytes that are unpacked at a time: they may become 32,768 times as many.
AT_ONCE_BYTES = 1 << 10


@dataclass
class IntakeCounts:
    """What became of the lines.

    Attributes:
        lines: Lines read.
        records: New records.
        champions: New champions.
        retractions: New retractions.
        surveys: New parts of surveys.
        known: Lines whose content was stored already.
        refused: Lines that were refused.
        reasons: Number and reason of the first `TOLD` of these.
    """

    lines: int = 0
    records: int = 0
    champions: int = 0
    retractions: int = 0
    surveys: int = 0
    known: int = 0
    refused: int = 0
    reasons: list[dict[str, Any]] = field(default_factory=list)

    def add(self, counts: Counts) -> None:
        """Adds the counts of a batch."""
        for name in ("records", "champions", "retractions", "surveys", "known"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))

    def refuse(self, number: int, why: str) -> None:
        """Counts a line that is refused."""
        self.refused += 1
        if len(self.reasons) < TOLD:
            self.reasons.append({"line": number, "reason": why[:500]})

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Intake:
    """Takes a stream in, piece by piece, and stores it in batches.

    What was stored stays if the stream breaks off; the same stream can be sent again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest = bytearray()
        self._waiting: list[tuple[int, Any]] = []
        self._bytes = 0
        self._unpack: Any = None
        self._start: bytes | None = b""
        self.taken = IntakeCounts()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            InputError: The stream is no lines of records, or too long.
            StoreTrouble: The database cannot be written.
        """
        if self._start is not None:
            self._start += data
            if len(self._start) < len(ZSTD):
                return
            data, self._start = self._start, None
            self._begin(data)
        if self._unpack is None:
            self._take(data)
            return
        for at in range(0, len(data), AT_ONCE_BYTES):
            self._take(self._unpacked(data[at : at + AT_ONCE_BYTES]))

    def finish(self) -> IntakeCounts:
        """Stores what is left, after the last bytes.

        Raises:
            InputError: The stream ended early.
            StoreTrouble: The database cannot be written.
        """
        if self._start:
            data, self._start = self._start, None
            self._take(data)
        if self._unpack is not None and not self._unpack.eof:
            self._store_waiting()
            raise InputError("the compressed stream ends early; send it again, nothing is stored twice")
        if self._rest:
            self._line(bytes(self._rest))
            self._rest.clear()
        self._store_waiting()
        return self.taken

    def _begin(self, data: bytes) -> None:
        if data.startswith(GZIP):
            raise InputError("records are sent plain or compressed by zstd, got gzip; compress them by zstd")
        if data.startswith(ZSTD):
            self._unpack = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()

    def _unpacked(self, data: bytes) -> bytes:
        whole = b""
        try:
            while data:
                if self._unpack.eof:
                    self._unpack = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
                whole += self._unpack.decompress(data)
                data = self._unpack.unused_data
        except (zstandard.ZstdError, zlib.error) as error:
            raise InputError(f"the compressed stream is damaged ({error}); send it again") from error
        return whole

    def _take(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise InputError(f"records of {MOST_BYTES} bytes at the most are sent at once; send them in parts")
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._line(bytes(self._rest) + line)
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > LONGEST_LINE_BYTES:
            raise InputError(f"a line has {LONGEST_LINE_BYTES} bytes at the most; it is no line of records")

    def _line(self, line: bytes) -> None:
        self.taken.lines += 1
        try:
            told = content_of(line.decode())
        except UnicodeDecodeError as error:
            told = f"it is not UTF-8 text: {error}"
        if isinstance(told, str):
            self.taken.refuse(self.taken.lines, told)
        elif told is not None:
            self._waiting.append((self.taken.lines, told))
            if len(self._waiting) >= BATCH:
                self._store_waiting()

    def _store_waiting(self) -> None:
        if not self._waiting:
            return
        try:
            self.taken.add(taken(self._store, self._waiting))
        except InputError:
            self._one_by_one()
        self._waiting.clear()

    def _one_by_one(self) -> None:
        """Finds the lines of a batch that the store refuses."""
        for number, content in self._waiting:
            try:
                self.taken.add(taken(self._store, [(number, content)]))
            except InputError as error:
                self.taken.refuse(number, str(error))


router = APIRouter(prefix="/v1", tags=["records"])
Reads = Annotated[Caller, Depends(reads)]
Sends = Annotated[Caller, Depends(sends_records)]
Text = Annotated[str, Query(max_length=LONGEST_TEXT)]
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page.")]
After = Annotated[int, Query(ge=0, le=2**62, description="`next` of the page before.")]


@router.get("/kernels", summary="Kernels with their parameters and constraints")
async def kernels(request: Request, caller: Reads, operation: Text = "", target: Text = "") -> Response:
    """As `tuner kernels --json`."""
    number = service_of(request).cache.present.manifest.number
    found = await working(service_of(request), lambda: kernels_json(builtin_now(), operation, target))
    return told(request, {"kernels": found}, number)


@router.get("/operations", summary="Operations: dims, dtypes, layouts")
async def operations(request: Request, caller: Reads) -> Response:
    """What can be asked about."""
    number = service_of(request).cache.present.manifest.number
    return told(request, {"operations": _operations_json()}, number)


@router.get("/devices", summary="Devices of the records, and of this node")
async def devices(request: Request, caller: Reads) -> Response:
    """`here` are those that jobs may use, as `tuner devices --json` tells them."""
    service = service_of(request)
    view = service.cache.present
    known = await working(service, lambda: [each.to_json() for each in view.snapshot.devices()])
    here = [devices[0].to_json() for devices in service.pool.devices.values()]
    return told(request, {"devices": known, "here": here}, view.manifest.number)


@router.get("/problems", summary="Problems that were measured")
async def problems(
    request: Request, caller: Reads, operation: Text = "", shape: Text = "", device: Text = "",
    regime: Text = "", after: After = 0, limit: Limit = 100,
) -> Response:  # fmt: skip
    """A page; `next` is the `after` of the next one, null after the last."""
    service, view = service_of(request), service_of(request).cache.present
    wanted = Selection.parsed(operation, shape, device, regime)
    found = await working(service, lambda: problems_page(view.store, wanted, after, limit))
    return told(request, found, view.manifest.number)


@router.get("/champions", summary="The present champions")
async def champions(
    request: Request, caller: Reads, operation: Text = "", shape: Text = "", device: Text = "",
    regime: Text = "", after: After = 0, limit: Limit = 100,
) -> Response:  # fmt: skip
    """A page; `next` is the `after` of the next one, null after the last."""
    service, view = service_of(request), service_of(request).cache.present
    wanted = Selection.parsed(operation, shape, device, regime)
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
    service, view = service_of(request), service_of(request).cache.present
    wanted = Selection.parsed(operation, shape, device, regime)
    only = [each.value for each in (role, outcome) if each is not None]
    found = await working(service, lambda: _records_page(view.store, wanted, only, before, limit))
    return told(request, found, view.manifest.number)


@router.get("/records/{record_id}", summary="Everything stored about a record")
async def record(request: Request, caller: Reads, record_id: str) -> Response:
    """As `tuner records show --json`; a record that was taken back is told, and marked."""
    service, view = service_of(request), service_of(request).cache.present
    found = await working(
        service, lambda: listing.record_json(*listing.record_named(view.store, record_id, "this server"))
    )
    return told(request, found, view.manifest.number)


@router.get("/stats", summary="Counts of records by operation and device")
async def stats(request: Request, caller: Reads) -> Response:
    """As `tuner records stats --json`."""
    service, view = service_of(request), service_of(request).cache.present
    found = await working(service, lambda: listing.tallies_json(view.store))
    return told(request, {"tallies": found}, view.manifest.number)


@router.get("/wanted", summary="Problems that were asked and have no exact answer")
async def wanted(request: Request, caller: Reads, operation: Text = "", limit: Limit = 100) -> Response:
    """Those first by which tuning is expected to save the most time."""
    service, view = service_of(request), service_of(request).cache.present
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
    found = listing.latest(store, wanted, limit + 1, before=before, only=only)
    gone = retracting.retracted(store, [record.id for _, record in found])
    page = [listing.record_json(record, gone.get(record.id)) for _, record in found[:limit]]
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

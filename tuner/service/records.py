"""Routes of records: pages of records, champions, problems; kernels and devices; records from elsewhere."""

import asyncio
import functools
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request

from tuner.declare.catalogue import kernels_json
from tuner.errors import InputError, NothingFound
from tuner.lookup.stale import builtin_now
from tuner.results.codec import storable
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, Role
from tuner.results.survey import Kept
from tuner.service.answers import LARGEST_DIM, LARGEST_NUMBER, AsQuery, Text
from tuner.service.responses import Json, Present, Sends, Serves, keys, needs
from tuner.service.snapshots import OpenSnapshot
from tuner.service.tokens import READ
from tuner.store import Store, listing, retracting, watched
from tuner.store.exchange import BATCH, LinesFile, taken
from tuner.store.listing import MeasuredProblem, Selection
from tuner.study.crowns import history_json, reign, reign_json, reigns

#: Seconds between two looks whether a sender is still there.
LOOK_EVERY_S = 0.5
#: Refused lines whose reasons are told.
REASONS = 100
#: Bytes of a body at the most; of its lines, unpacked: so many, and as many times those of the body.
MOST_PACKED, MOST_BYTES, LEAST_UNPACKED, MOST_PACKED_TIMES = 2 << 30, 8 << 30, 16 << 20, 100
#: Characters of a name, and of any other text, such as a compiler's messages.
LONGEST_NAME, LONGEST_TEXT = 200, 100_000
#: What is counted of the lines that a program sends.
COUNTED = ("lines", "records", "champions", "retractions", "surveys", "known", "refused")

router = APIRouter(prefix="/v1", tags=["records"])
ProblemsJson = Annotated[Json, keys(problems="array", count="integer", next="integer or null")]
ChampionsJson = Annotated[Json, keys(champions="array", count="integer", next="integer or null")]
Taken = Annotated[Json, keys(reasons="array", **dict.fromkeys(COUNTED, "integer"))]
reading = APIRouter(dependencies=[Depends(needs(READ))])
Limit = Annotated[int, Query(ge=1, le=500, description="Items of a page.")]
After = Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="`next` of the page before.")]


def _selection(operation: Text = "", shape: Text = "", device: Text = "", regime: Text = "") -> Selection:
    return Selection.parsed(operation, shape, device, regime)


Selected = Annotated[Selection, Depends(_selection)]


@reading.get("/kernels", summary="Kernels with their parameters and constraints")
def kernels(operation: Text = "", target: Text = "") -> Annotated[Json, keys(kernels="array")]:
    """As `tuner kernels --json`."""
    return {"kernels": kernels_json(builtin_now(), operation, target)}


@reading.get("/operations", summary="Operations: dims, dtypes, layouts")
def operations() -> Annotated[Json, keys(operations="array")]:
    """What can be asked about."""
    names = ("name", "dims", "dtypes", "layouts")
    declared = builtin_now().operations.values()
    return {"operations": [{name: getattr(operation, name) for name in names} for operation in declared]}


@reading.get("/devices", summary="Devices of the records, and of this node")
def devices(service: Serves, view: Present) -> Annotated[Json, keys(devices="array", here="array")]:
    """`here` are those that jobs may use, as `tuner devices --json` tells them."""
    here = [device.to_json() for device in service.pool.devices.values()]
    return {"devices": [info.to_json() for info in view.snapshot.devices()], "here": here}


def selects(wanted: Selection, problem: ProblemKey, regime: str, *devices: str) -> bool:
    """True if a problem is wanted, on a device of one of these names, in this regime."""
    fits = wanted.device.casefold() in ("", *(device.casefold() for device in devices))
    return fits and wanted.has(problem) and wanted.regime in ("", regime)


def published_champions(view: OpenSnapshot, operation: str = "") -> list[Champion]:
    """The published champions of an operation, or of all."""
    return [result.champion for result in view.snapshot.standing(operation)]


@reading.get("/problems", summary="Problems that were measured")
def problems(view: Present, wanted: Selected, after: After = 0, limit: Limit = 100) -> ProblemsJson:
    """A page, with published results, which have no records; `next` is the `after` of the next one."""
    stored = listing.problems(view.store)
    here = {(one.problem, one.device.name, one.regime) for one in stored}
    elsewhere = [
        MeasuredProblem(record.problem, record.device, record.regime, 0, 0, 1, champion.crowned_at)
        for champion in published_champions(view, wanted.operation)
        if (record := champion.record) and (record.problem, record.device.name, record.regime) not in here
    ]
    fitting = [
        measured.to_json()
        for measured in (*stored, *elsewhere)
        if selects(wanted, measured.problem, measured.regime, measured.device.name, measured.device.uuid)
    ]
    more = after + limit if len(fitting) > after + limit else None
    return {"problems": fitting[after : after + limit], "count": len(fitting), "next": more}


@reading.get("/champions", summary="The present champions")
def champions(view: Present, wanted: Selected, after: After = 0, limit: Limit = 100) -> ChampionsJson:
    """A page, with published ones; `next` is the `after` of the next one, null after the last."""
    published = published_champions(view, wanted.operation)
    known = reigns(view.store, wanted.operation, wanted.device, wanted.regime, published=published)
    answering = [one for one in known if wanted.has(one.place.problem) and one.champion is not None]
    more = after + limit if len(answering) > after + limit else None
    page = [reign_json(one) for one in answering[after : after + limit]]
    return {"champions": page, "count": len(answering), "next": more}


@reading.get("/champions/history", summary="The champions that a problem has had")
def history(service: Serves, query: AsQuery) -> Annotated[Json, keys(history="array", log="array")]:
    """Oldest first, the present one last, each with what it was compared with."""
    view, question = service.cache.view(query.snapshot), query.read()
    device = view.answer(question).question.device  # type: ignore[union-attr]  # an answer has its question
    published = published_champions(view, question.problem.operation)
    return history_json(reign(view.store, question.problem, device.name, question.regime, published))


@reading.get("/records", summary="Records, the latest first")
def records(
    view: Present, wanted: Selected, role: Role | None = None, outcome: Outcome | None = None,
    before: After = 0, limit: Limit = 50,
) -> Annotated[Json, keys(records="array", next="integer or null")]:  # fmt: skip
    """A page, as `tuner records list --json`; `next` is the `before` of the next one."""
    latest = listing.latest(view.store, wanted, limit + 1, before=before, role=role, outcome=outcome)
    gone = retracting.retracted(view.store, [record.id for _, record in latest])
    page = [listing.record_json(record, gone.get(record.id)) for _, record in latest[:limit]]
    return {"records": page, "next": latest[limit - 1][0] if len(latest) > limit else None}


@reading.get("/records/{record_id}", summary="Everything stored about a record")
def record(view: Present, record_id: str) -> Annotated[Json, keys(id="string")]:
    """As `tuner records show --json`, of published results, too; a record that was taken back is marked."""
    return listing.record_json(*known_record(view, record_id))


@reading.get("/stats", summary="Counts of records by operation and device")
def stats(view: Present) -> Annotated[Json, keys(tallies="array")]:
    """As `tuner records stats --json`."""
    return {"tallies": [*listing.tallies(view.store), *listing.survey_tallies(view.store)]}


@reading.get("/wanted", summary="Problems that were asked and have no exact answer")
def wanted(service: Serves, operation: Text = "", limit: Limit = 100) -> Annotated[Json, keys(wanted="array")]:
    """Those first by which tuning is expected to save the most time."""
    demand = watched.demand(service.store, operation=operation)
    return {"wanted": [problem.to_json() for problem in demand[:limit]]}


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
async def take(request: Request, service: Serves, caller: Sends) -> Taken:
    """Stores the lines that are new; the same lines can be sent any number of times.

    Lines that are no records are refused one by one, with the reason; the others are stored.
    """
    async with anyio.NamedTemporaryFile(prefix="tuner-records-") as file:
        async for piece in request.stream():
            await file.write(piece)
        await file.flush()
        path, is_over = Path(str(file.name)), threading.Event()
        work = functools.partial(take_file, service.store, path, is_over.is_set)
        watching = asyncio.create_task(_until_gone(request, is_over))
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=service.taking)
        finally:
            is_over.set()
            watching.cancel()


async def _until_gone(request: Request, is_over: threading.Event) -> None:
    """Ends an intake whose sender is gone: what was stored stays."""
    while not await request.is_disconnected():
        await anyio.sleep(LOOK_EVERY_S)
    is_over.set()


def take_file(store: Store, path: Path, is_over: Callable[[], bool] = lambda: False) -> Json:
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


router.include_router(reading)

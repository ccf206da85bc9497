"""Routes of answers: best, many at once, export, snapshots."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from tuner.declare.catalogue import Catalogue
from tuner.errors import InputError, TunerError, UnknownName
from tuner.export import FORMATS, exported_files
from tuner.lookup.stale import builtin_now
from tuner.service.access import reads, service_of
from tuner.service.questions import KEYS, LONGEST_TEXT, LookupRequest, asked_of
from tuner.service.responses import error_json, in_thread, tagged, told, working
from tuner.service.snapshots import AnswerBody, OpenSnapshot, etag, manifest_json, told_as_json
from tuner.service.state import Service
from tuner.service.tokens import Caller

#: Seconds after which many questions of one request let others go on.
TURN_S = 0.02


async def _answer_body(service: Service, view: OpenSnapshot, request: LookupRequest) -> AnswerBody:
    """The answer to a question.

    One that rests on records takes a millisecond or two, one by a model several times that: those wait for each
    other only, one at a time.

    Raises:
        NothingFound: No config is legal.
        UnknownName: The device is unknown.
    """
    known = view.known(request)
    if known is not None:
        return known
    limit = service.quick if view.is_quick(request) else service.deep
    return await in_thread(limit, lambda: view.body(request))


def asked_in(
    service: Service, query: Mapping[str, str], also: tuple[str, ...] = ()
) -> tuple[OpenSnapshot, LookupRequest]:
    """The snapshot and the question of a query."""
    asked = question_in(query, also)
    return service.cache.view(number_of(query.get("snapshot", ""))), asked


def question_in(query: Mapping[str, str], also: tuple[str, ...] = ()) -> LookupRequest:
    """The question of a query, whose other keys are `also`."""
    known = (*KEYS, "snapshot", *also)
    for name in query:
        if name not in known:
            raise UnknownName("parameter", name[:80], known)
    return asked_of({name: value for name, value in query.items() if name in KEYS}, builtin_now(), {})


def number_of(text: str) -> int | None:
    """The number of a snapshot; None if the text is empty."""
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**62:
        raise InputError(
            f"a snapshot is named by its number, got {text[:40]!r}; an answer tells the present one"
        )
    return int(text)


async def answers_in_turns(
    service: Service,
    view: OpenSnapshot,
    questions: Sequence[str | Mapping[str, Any]],
    defaults: Mapping[str, str],
) -> list[bytes]:
    """Answers in the order of the questions, as JSON; other requests come between.

    Args:
        service: The server's state.
        view: The snapshot that answers.
        questions: In words or by keys.
        defaults: Values of keys that a question leaves out.
    """
    found: list[bytes] = []
    left = iter(questions)
    catalogue = builtin_now()
    while len(found) < len(questions):
        found += await in_thread(
            service.deep, lambda: list(_one_turn(service, view, left, defaults, catalogue))
        )
    return found


def _one_turn(
    service: Service, view: OpenSnapshot, left: Iterator[str | Mapping[str, Any]], defaults: Mapping[str, str],
    catalogue: Catalogue,
) -> Iterator[bytes]:  # fmt: skip
    until_s = time.monotonic() + TURN_S
    for question in left:
        try:
            asked = asked_of(question, catalogue, defaults)
            more, body = service.cache.retracted(view, asked), view.body(asked)
            body.count()
            yield body.with_number(view.manifest.number, more)
        except TunerError as error:
            yield told_as_json({"refused": error_json(error)}).encode()
        if time.monotonic() > until_s:
            return


router = APIRouter(prefix="/v1", tags=["answers"])
Reads = Annotated[Caller, Depends(reads)]
#: Problems of one request.
MOST_PROBLEMS = 1000

_EXAMPLES = {
    "problem": "gemm 4096 4096 4096 float32 nt", "operation": "gemm", "dims": "4096,4096,4096",
    "dtype": "float32", "layout": "nn", "precision": "ieee", "epilogue": "", "regime": "cold",
    "device": "NVIDIA H200", "kernel": "",
}  # fmt: skip
_ABOUT = {
    "problem": "The problem in words; instead of operation, dims, dtype, layout and precision.",
    "operation": "Name of an operation.",
    "dims": "Sizes in the operation's order, or by name: m=4096,n=4096,k=4096.",
    "dtype": "Element type; the operation's first by default.",
    "layout": "Layout; the operation's first by default.",
    "precision": "ieee, or emulated for any arithmetic that is as exact as the library's.",
    "epilogue": "What is done to the result: parts joined by +, such as bias-col+gelu; none by default.",
    "regime": "How time was taken: cold, hot, cold-graph or hot-graph; cold by default.",
    "device": "Name or uuid of a device in the records, or cpu, cuda:N of the server; its first by default.",
    "kernel": "Only this kernel.",
    "confirmed": "true for champions only that won again in a fresh process, or were published.",
}


_SCHEMAS = {"confirmed": {"type": "string", "enum": ["true", "false"]}}


def parameters(*more: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a question, for the description of the interface."""
    named = [
        {
            "name": name, "in": "query", "required": False, "description": _ABOUT[name],
            "schema": _SCHEMAS.get(name, {"type": "string", "maxLength": LONGEST_TEXT}),
            **({"example": _EXAMPLES[name]} if name in ("operation", "dims", "device") else {}),
        }
        for name in KEYS
    ]  # fmt: skip
    snapshot = {
        "name": "snapshot", "in": "query", "required": False,
        "description": "Number of a snapshot: repeats its answer, whatever was measured since.",
        "schema": {"type": "integer", "minimum": 1},
    }  # fmt: skip
    return {"parameters": [*named, snapshot, *more]}


_FORMAT = {
    "name": "format", "in": "query", "required": False, "description": "What to write.",
    "schema": {"type": "string", "enum": list(FORMATS), "default": "source"},
}  # fmt: skip
_FILE = {
    "name": "file", "in": "query", "required": False,
    "description": "Only the file of this name; several files come as a zip.",
    "schema": {"type": "string", "maxLength": LONGEST_TEXT},
}  # fmt: skip


class QuestionBody(BaseModel):
    """A question; its keys are those of GET /v1/best."""

    model_config = ConfigDict(extra="forbid")

    problem: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["problem"])
    operation: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["operation"])
    dims: list[int] | dict[str, int] | str | None = Field(None, description=_ABOUT["dims"])
    dtype: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["dtype"])
    layout: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["layout"])
    precision: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["precision"])
    epilogue: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["epilogue"])
    regime: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["regime"])
    device: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["device"])
    kernel: str | None = Field(None, max_length=LONGEST_TEXT, description=_ABOUT["kernel"])
    confirmed: bool | None = Field(None, description=_ABOUT["confirmed"])


class Questions(BaseModel):
    """Questions that are answered from one snapshot."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "problems": ["gemm 4096 4096 4096", {"operation": "gemv", "dims": [4096, 4096]}],
                "device": "NVIDIA H200",
            }
        },
    )

    problems: list[QuestionBody | str] = Field(
        max_length=MOST_PROBLEMS, min_length=1, description="Questions, or problems in words."
    )
    device: str = Field("", max_length=LONGEST_TEXT, description="Of questions that name none.")
    regime: str = Field("", max_length=LONGEST_TEXT, description="Of questions that name none.")
    snapshot: int | None = Field(None, ge=1, le=2**62, description="Number of a snapshot.")


@router.get("/best", openapi_extra=parameters(), summary="The kernel and config to use for a problem")
async def best(request: Request, caller: Reads) -> Response:
    """Answers as `tuner best --json` does, with the snapshot's number and without ages.

    With `If-None-Match` and the entity tag of an earlier answer, an unchanged one is 304.
    """
    service, query = service_of(request), request.query_params
    if query.get("snapshot"):
        view, lookup = await in_thread(service.deep, lambda: asked_in(service, query))
    else:
        view, lookup = service.cache.present, question_in(query)
    answer = await _answer_body(service, view, lookup)
    more = service.cache.retracted(view, lookup)
    if view.differs:
        more += f',"differs":{json.dumps(view.differs)}'
    service.metrics.answer(answer.answer.match)
    answer.count()
    body, number = answer.with_number(view.manifest.number, more), view.manifest.number
    return tagged(request, body, etag(body), number)


@router.post("/best", summary="Answers for up to 1,000 problems at once, from one snapshot")
async def best_of_many(request: Request, caller: Reads, questions: Questions) -> Response:
    """Answers in the order of the questions; one that has none is `{"refused": ...}` in its place."""
    service = service_of(request)
    view = await working(service, lambda: service.cache.view(questions.snapshot))
    defaults = {"device": questions.device, "regime": questions.regime}
    given = {name: value for name, value in defaults.items() if value}
    asked = [
        question if isinstance(question, str) else question.model_dump(exclude_none=True)
        for question in questions.problems
    ]
    found = await answers_in_turns(service, view, asked, given)
    body = b'{"snapshot":%d,"answers":[%s]}' % (view.manifest.number, b",".join(found))
    return tagged(request, body, etag(body), view.manifest.number)


@router.get("/export", openapi_extra=parameters(_FORMAT, _FILE), summary="The champion as files to take away")
async def export(request: Request, caller: Reads) -> Response:
    """The champion as source, binary, Python module or JSON, as `tuner export` writes it.

    One file comes as it is, several as a zip. `Repr-Digest` has the SHA-256 of what is sent.
    """
    service, query = service_of(request), request.query_params
    form, name = query.get("format", "source"), query.get("file", "")

    def files() -> tuple[dict[str, bytes], int]:
        view, asked = asked_in(service, query, ("format", "file"))
        catalogue = builtin_now()
        problem = asked.problem.of_operation(catalogue.operation(asked.problem.operation))
        return exported_files(view.answer(asked, catalogue), catalogue, problem, form), view.manifest.number

    made, number = await working(service, files)
    if name and name not in made:
        raise UnknownName("file of this export", name[:80], list(made))
    sent, data = (name, made[name]) if name else _as_one(made)
    digest = hashlib.sha256(data)
    return tagged(
        request, data, f'"{digest.hexdigest()[:32]}"', number, "application/octet-stream",
        **{
            "content-disposition": f'attachment; filename="{sent}"',
            "repr-digest": f"sha-256=:{base64.b64encode(digest.digest()).decode()}:",
        },
    )  # fmt: skip


def _as_one(files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Name and content of the only file, or of a zip, which is the same for the same files."""
    first = next(iter(files))
    if len(files) == 1:
        return first, files[first]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return f"{first.partition('.')[0]}.zip", packed.getvalue()


@router.get("/snapshots/{number}", summary="What a snapshot rests on")
async def snapshot(request: Request, caller: Reads, number: str) -> Response:
    """The manifest of a snapshot by its number, or of the present one: `latest`."""
    service = service_of(request)
    wanted = None if number == "latest" else number_of(number)
    view = await working(service, lambda: service.cache.view(wanted))
    return told(request, manifest_json(view), view.manifest.number)

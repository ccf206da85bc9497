"""Routes of answers: best, many at once, export, snapshots."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from tuner.errors import InputError, TunerError, UnknownName
from tuner.export import FORMATS, exported_files
from tuner.lookup.stale import builtin_now
from tuner.service.questions import KEYS, LONGEST_TEXT, LookupRequest, read_question
from tuner.service.responses import Reads, answered, error_json, in_thread, service_of, tagged, working
from tuner.service.snapshots import AnswerBody, OpenSnapshot, told_as_json
from tuner.service.state import Service

router = APIRouter(prefix="/v1", tags=["answers"])
#: Problems of one request, and those that are answered before other requests have a turn.
MOST_PROBLEMS, TURN = 1000, 10

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
_EXAMPLES = {"operation": "gemm", "dims": "4096,4096,4096", "device": "NVIDIA H200"}


def parameters(*more: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a question, for the description of the interface."""
    snapshot = "Number of a snapshot: repeats its answer, whatever was measured since."
    fields = []
    for name, about in _ABOUT.items():
        schema = {"enum": ["true", "false"]} if name == "confirmed" else {"maxLength": LONGEST_TEXT}
        example = {"example": _EXAMPLES[name]} if name in _EXAMPLES else {}
        fields.append(parameter(name, about, type="string", **schema) | example)
    return {"parameters": [*fields, parameter("snapshot", snapshot, type="integer", minimum=1), *more]}


def parameter(name: str, about: str, **schema: Any) -> dict[str, Any]:
    """A parameter of a query, for the description of the interface."""
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}


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


def question_in(query: Mapping[str, str], also: tuple[str, ...] = ()) -> LookupRequest:
    """The question of a query, whose other keys are `also`."""
    known = (*KEYS, "snapshot", *also)
    for name in query:
        if name not in known:
            raise UnknownName("parameter", name[:80], known)
    return read_question({name: value for name, value in query.items() if name in KEYS}, builtin_now())


async def view_of(request: Request, number: int | str | None) -> OpenSnapshot:
    """The snapshot of a number, or of the text of one; the present one without a number."""
    cache = service_of(request).cache
    if not number:
        return cache.present
    if not str(number).isdecimal() or not 0 < int(number) <= 2**62:
        raise InputError(
            f"a snapshot is named by its number, got {str(number)[:40]!r}; an answer tells the present one"
        )
    return await working(request, lambda: cache.view(int(number)))


def _whole(service: Service, view: OpenSnapshot, body: AnswerBody) -> bytes:
    """An answer with its snapshot, and what is no longer as it was then."""
    marks = {"retracted": service.cache.retraction(view, body.answer), "differs": view.differs}
    more = "".join(f',"{name}":{told_as_json(mark)}' for name, mark in marks.items() if mark)
    return body.with_number(view.manifest.number, more)


@router.get("/best", openapi_extra=parameters(), summary="The kernel and config to use for a problem")
async def best(request: Request, caller: Reads) -> Response:
    """Answers as `tuner best --json` does, with the snapshot's number and without ages.

    With `If-None-Match` and the entity tag of an earlier answer, an unchanged one is 304.
    """
    service, view = service_of(request), await view_of(request, request.query_params.get("snapshot"))
    asked = question_in(request.query_params)
    body = view.known(asked)
    if body is None:
        # An answer by records takes a millisecond or two, one by a model several times that: those wait for
        # each other only, one at a time.
        limit = service.quick if view.is_quick(asked) else service.deep
        body = await in_thread(limit, lambda: view.body(asked))
    service.metrics.answers.labels(body.answer.match).inc()
    return tagged(request, _whole(service, view, body), view.manifest.number)


@router.post("/best", summary="Answers for up to 1,000 problems at once, from one snapshot")
async def best_of_many(request: Request, caller: Reads, questions: Questions) -> Response:
    """Answers in the order of the questions; one that has none is `{"refused": ...}` in its place."""
    service, view = service_of(request), await view_of(request, questions.snapshot)
    shared = {"device": questions.device, "regime": questions.regime}
    defaults, catalogue = {name: value for name, value in shared.items() if value}, builtin_now()

    def answer(question: QuestionBody | str) -> bytes:
        named = question if isinstance(question, str) else question.model_dump(exclude_none=True)
        try:
            return _whole(service, view, view.body(read_question(named, catalogue, defaults)))
        except TunerError as error:
            return told_as_json({"refused": error_json(error)}).encode()

    answers: list[bytes] = []
    for start in range(0, len(questions.problems), TURN):
        some = questions.problems[start : start + TURN]
        answers += await in_thread(service.deep, functools.partial(list, map(answer, some)))
    body = b'{"snapshot":%d,"answers":[%s]}' % (view.manifest.number, b",".join(answers))
    return tagged(request, body, view.manifest.number)


_FORMAT = parameter("format", "What to write.", type="string", enum=list(FORMATS), default="source")
_FILE = parameter(
    "file", "Only the file of this name; several files come as a zip.", type="string", maxLength=LONGEST_TEXT
)


@router.get("/export", openapi_extra=parameters(_FORMAT, _FILE), summary="The champion as files to take away")
async def export(request: Request, caller: Reads) -> Response:
    """The champion as source, binary, Python module or JSON, as `tuner export` writes it.

    One file comes as it is, several as a zip. `Repr-Digest` has the SHA-256 of what is sent.
    """
    query = request.query_params
    view, asked = await view_of(request, query.get("snapshot")), question_in(query, ("format", "file"))
    form, name, catalogue = query.get("format", "source"), query.get("file", ""), builtin_now()

    def made() -> dict[str, bytes]:
        problem = asked.problem.of_operation(catalogue.operation(asked.problem.operation))
        return exported_files(view.answer(asked, catalogue), catalogue, problem, form)

    files = await working(request, made)
    if name and name not in files:
        raise UnknownName("file of this export", name[:80], list(files))
    name, data = (name, files[name]) if name else _as_one(files)
    digest = hashlib.sha256(data).digest()
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "repr-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
    }
    return tagged(request, data, view.manifest.number, "application/octet-stream", **headers)


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
    view = await view_of(request, None if number == "latest" else number)
    return await answered(request, lambda at: at.manifest.to_json() | {"differs": at.differs}, view)

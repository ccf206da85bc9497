"""Routes of answers: best, many at once, export, snapshots; and how a request names a problem."""

import base64
import contextlib
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.cli.options import read_shape, whole
from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import IEEE, PRECISIONS
from tuner.devices.protocol import REGIMES
from tuner.errors import EnvironmentTrouble, InputError, StoreTrouble, TunerError, UnknownName
from tuner.export import FORMATS, exported_files
from tuner.lookup.asking import parse_key
from tuner.lookup.snapshot import ANSWER
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey
from tuner.service.responses import ErrorDetail, Serves, described, is_local, needs, tagged
from tuner.service.snapshots import AnswerBody, LookupRequest, OpenSnapshot, json_bytes
from tuner.service.state import ANSWERS, Service
from tuner.service.tokens import READ

router = APIRouter(prefix="/v1", tags=["answers"], dependencies=[Depends(needs(READ))])
#: Largest size of a dim in a request; kernels count elements in 32 bits.
LARGEST_DIM = 2**31 - 1
#: Characters of a text in a request.
LONGEST_TEXT = 200
#: Largest number of a row: a database counts in 64 bits.
LARGEST_NUMBER = 2**62
#: Problems of one request.
MOST_PROBLEMS = 1000
#: What words may tell instead.
PROBLEM_KEYS = ("operation", "dims", "dtype", "layout", "precision", "epilogue")

#: Questions as documentation shows them.
EXAMPLE: Any = {"problems": ["gemm 4096 4096 4096"], "device": "NVIDIA H200"}
#: A text without control characters, which a database may refuse.
Text = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=r"^[^\x00-\x1f\x7f]*$")]
Regime = Literal["", *REGIMES]  # type: ignore[valid-type]
Dims = list[int] | dict[str, int] | str
SnapshotNumber = Annotated[
    int | None, Field(ge=1, le=LARGEST_NUMBER, description="Number of a snapshot, whose answer is repeated.")
]


# --- questions -----------------------------------------


class RequestedProblem(BaseModel):
    """A problem, in words or by operation, dims and more."""

    model_config = ConfigDict(extra="forbid")

    problem: Text = Field(default="", description="The problem in words, instead of the keys of its parts.")
    operation: Text = Field(default="", description="Name of an operation.", examples=["gemm"])
    dims: list[int] | Annotated[dict[str, int], Field(max_length=16)] | Text = Field(
        default="", examples=["4096,4096,4096"],
        description="Sizes in the operation's order, or by name: m=4096,n=4096,k=4096.",
    )  # fmt: skip
    dtype: Text = Field(default="", description="Element type; the operation's first by default.")
    layout: Text = Field(default="", description="Layout; the operation's first by default.")
    precision: Text = Field(default="", description="ieee, or emulated: any that is as exact as the library's.")
    epilogue: Text = Field(default="", description="What is done to the result, such as bias-col+gelu.")
    regime: Regime = Field(default="", description="How time was taken: cold, hot, cold-graph or hot-graph.")

    def key(self, catalogue: Catalogue) -> ProblemKey:
        """The key of the problem; one of an operation that is not declared needs dims by name, and a dtype.

        Raises:
            InputError: A value is missing or wrong.
        """
        if self.problem:
            beside = next((name for name in PROBLEM_KEYS if getattr(self, name)), "")
            if beside:
                raise InputError(f"problem says all of a problem in words, got {beside} beside it; keep one")
            key = parse_key(self.problem, catalogue)
        elif not self.operation:
            rule = "a question names a problem in words, or an operation and its dims"
            raise InputError(f"{rule}, got no operation; add one, e.g. gemm")
        elif declared := catalogue.operations.get(self.operation):
            words = self.dtype, self.layout, self.precision, self.epilogue
            key = ProblemKey.of(declared.problem(read_shape(declared, *_sizes(self.dims)), *words))
        else:
            key = self._undeclared(catalogue)
        if not all(1 <= size <= LARGEST_DIM for size in key.dims.values()):
            raise InputError(f"a dim is a whole number of 1 to {LARGEST_DIM}, got {key}; correct it")
        return key

    def _undeclared(self, catalogue: Catalogue) -> ProblemKey:
        places, sets = _sizes(self.dims)
        if places or not sets or not self.dtype or self.precision not in ("", *PRECISIONS):
            raise UnknownName("operation", self.operation, catalogue.operations)
        epilogue, precision = Epilogue.read(self.epilogue).text, self.precision or IEEE
        shape = tuple((name, whole(name, size)) for name, _, size in (pair.partition("=") for pair in sets))
        return ProblemKey(self.operation, shape, self.dtype, self.layout, precision, epilogue)


class QuestionBody(RequestedProblem):
    """A question; its keys are those of GET /v1/best."""

    device: Text = Field(
        default="", examples=["NVIDIA H200"],
        description="Name or uuid of a device in the records, or one of the server; its first by default.",
    )  # fmt: skip
    kernel: Text = Field(default="", description="Only this kernel.")
    confirmed: bool = Field(default=False, description="Only what won again, or was published.")
    invariant: Text = Field(
        default="", description="m for a config of a set that keeps a row's bits for any M."
    )

    def read(self, device: str = "", regime: str = "") -> LookupRequest:
        """What a lookup is asked, with the device and regime of questions that name none.

        Raises:
            InputError: A value is missing or wrong.
        """
        key, regime = self.key(builtin_now()), self.regime or regime or "cold"
        device = self.device or device
        return LookupRequest(key, device, regime, self.kernel, self.confirmed, self.invariant)


class QuestionOfQuery(QuestionBody):
    """The parameters of a question."""

    dims: Text = QuestionBody.model_fields["dims"]  # type: ignore[assignment]
    snapshot: SnapshotNumber = None


class ExportOfQuery(QuestionOfQuery):
    """The parameters of an export."""

    format: Text = Field("source", description="What to write.", json_schema_extra={"enum": list(FORMATS)})


class Questions(BaseModel):
    """Questions that are answered from one snapshot."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})

    problems: list[dict[str, Any] | str] = Field(
        max_length=MOST_PROBLEMS, min_length=1, description="Each has keys of GET /v1/best, or is its words."
    )
    device: Text = Field("", description="Of questions that name none.")
    regime: Regime = Field("", description="Of questions that name none.")
    snapshot: SnapshotNumber = None


class Answered(BaseModel):
    """An answer; its further keys are those of `tuner best --json`."""

    model_config = ConfigDict(extra="allow")

    kernel: str
    config: dict[str, Any]
    use: str = Field(description="`kernel`, or the library's name where the library is faster.")
    match: str = Field(description="What the answer rests on, such as `exact`.")
    expected_loss: float | None = Field(description="Share of time that the answer is expected to lose.")
    speedup: float | None
    time_s: float | None
    bits: str = Field(description="Class of bits of its results, where that was measured.")
    snapshot: int


class ManyAnswered(BaseModel):
    """Answers of one snapshot, in the order of their questions."""

    snapshot: int
    answers: list[Answered | dict[Literal["refused"], ErrorDetail]]


AsQuery = Annotated[QuestionOfQuery, Query()]
AsExport = Annotated[ExportOfQuery, Query()]


def _sizes(dims: Dims) -> tuple[list[str], list[str]]:
    """Dims by their places, and those by name as ``name=size``; a text has them with commas, or x, between."""
    if isinstance(dims, dict):
        return [], [f"{name}={size}" for name, size in dims.items()]
    parts = re.split(r",|(?<=\d)x(?=\d)", dims) if isinstance(dims, str) else map(str, dims)
    sizes = [size.strip() for size in parts if size.strip()]
    return [size for size in sizes if "=" not in size], [size for size in sizes if "=" in size]


# --- answers -------------------------------------------


def _marked(service: Service, view: OpenSnapshot, body: AnswerBody, counts: bool) -> tuple[bytes, bytes]:
    """An answer with what is no longer as it was then; and the same with its snapshot.

    Args:
        service: The server.
        view: The snapshot.
        body: The answer.
        counts: Whether the question counts as demand.
    """
    if counts:
        service.cache.count(view, body.answer)
    marks = service.cache.marks(view, body.answer)
    marked = b",%s" % json_bytes(marks)[1:-1] if marks else b""
    return body.text + marked, b'%s,"snapshot":%d%s}' % (body.text, view.manifest.number, marked)


@router.get("/best", summary="The kernel and config to use for a problem", responses={200: {"model": Answered}})
async def best(request: Request, service: Serves, question: AsQuery) -> Response:
    """Answers as `tuner best --json` does, with the snapshot's number and without ages.

    With `If-None-Match` and the entity tag of an earlier answer, an unchanged one is 304.
    """
    number, lookup, view = question.snapshot, question.read(), service.cache.present
    view = view if number is None else await run_in_threadpool(service.cache.view, number)
    body: AnswerBody | None = view.snapshot.known((ANSWER, lookup))
    if body is None:
        # Answers by results go first: they wait for one by a model at the most.
        async with contextlib.nullcontext() if view.is_quick(lookup.problem) else service.predicting:
            body = await anyio.to_thread.run_sync(view.body, lookup, limiter=service.answering)
    ANSWERS.labels(body.answer.match).inc()
    answer, data = _marked(service, view, body, counts=is_local(request))
    return tagged(request, data, view.manifest.number, basis=answer)


@router.post(
    "/best", summary="Answers for up to 1,000 problems at once", responses={200: {"model": ManyAnswered}}
)
def best_of_many(request: Request, service: Serves, questions: Questions) -> Response:
    """Answers in the order of the questions; one that has none is `{"refused": ...}` in its place."""
    view = service.cache.view(questions.snapshot)

    def answer(question: dict[str, Any] | str) -> bytes:
        try:
            keys = {"problem": question} if isinstance(question, str) else question
            lookup = QuestionBody.model_validate(keys).read(questions.device, questions.regime)
            return _marked(service, view, view.body(lookup), counts=is_local(request))[1]
        except (TunerError, ValidationError) as error:
            return json_bytes({"refused": described(error)[1]})

    answers = b",".join(map(answer, questions.problems))
    body = b'{"snapshot":%d,"answers":[%s]}' % (view.manifest.number, answers)
    return tagged(request, body, view.manifest.number)


@router.get("/export", summary="The champion as files to take away", response_class=Response)
def export(request: Request, service: Serves, wanted: AsExport) -> Response:
    """The champion as source, binary, Python module or JSON, as `tuner export` writes it.

    One file comes as it is, several as a zip. `Repr-Digest` has the SHA-256 of what is sent.
    """
    view, lookup, catalogue = service.cache.view(wanted.snapshot), wanted.read(), builtin_now()
    problem = lookup.problem.of_operation(catalogue.operation(lookup.problem.operation))
    try:
        files = exported_files(view.answer(lookup, catalogue), catalogue, problem, wanted.format)
    except StoreTrouble:
        raise
    except EnvironmentTrouble as error:
        raise InputError(f"this server cannot export it as {wanted.format}: {error}") from error
    name, data = _as_one(files)
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    headers = {
        "content-disposition": f'attachment; filename="{name}"', "repr-digest": f"sha-256=:{digest}:",
    }  # fmt: skip
    return tagged(request, data, view.manifest.number, "application/octet-stream", more=headers)


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

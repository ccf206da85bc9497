"""Jobs: what is submitted, checked before it is stored; the queue in its fair order."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import socket
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem, check_sizes
from tuner.devices.protocol import REGIMES
from tuner.errors import InputError, NothingFound, PlanError, UnknownName
from tuner.lookup.stale import builtin_now
from tuner.night.plan import document_of, plan_of
from tuner.service.pool import DevicePool
from tuner.service.questions import LONGEST_TEXT, check_dims, named_dims
from tuner.store import Store, access, jobs
from tuner.store.access import AllowedFile
from tuner.store.jobs import Job
from tuner.store.reading import Reader

#: Files beside a kernel's source that it may include.
HEADERS = ("*.cuh", "*.h", "*.hpp")


def node() -> str:
    """Name of this machine."""
    return socket.gethostname()[:200]


def allow(store: Store, path: Path) -> AllowedFile:
    """Allows a file on this machine, as it is now. The file is executed, to find what belongs to it.

    Raises:
        InputError: It declares no kernel.
    """
    path = path.resolve()
    covers = _covered(path)
    file = AllowedFile(str(path), digest_of(covers), tuple(map(str, covers)))
    access.allow(store, node(), file)
    return file


def disallow(store: Store, path: Path) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    access.disallow(store, node(), str(path.resolve()))


def files(store: Reader) -> list[AllowedFile]:
    """What is allowed on this machine."""
    return access.files(store, node())


def checked(store: Reader, text: str) -> Path:
    """The allowed file of a name, if it is still as it was allowed. Nothing is executed.

    Args:
        store: Where it is noted what is allowed.
        text: The path as `files` tells it, or the last part of it where no other file has that.

    Raises:
        InputError: It is not allowed, or has changed.
    """
    known = files(store)
    named = [file for file in known if text == file.path] or [
        file for file in known if text == Path(file.path).name
    ]
    if len(named) != 1:
        raise InputError(
            f"a job names a kernel file that the operator of this node has allowed, {text[:200]!r} is not; on "
            f"the node, run `tuner allow FILE`"
        )
    if digest_of(map(Path, named[0].covers)) != named[0].digest:
        raise InputError(
            f"{named[0].path}, or a file that it uses, has changed since it was allowed; on the node, read it "
            "and run `tuner allow FILE` again"
        )
    return Path(named[0].path)


def digest_of(covers: Iterable[Path]) -> str:
    """Digest over the names and contents of files; a missing one counts, too."""
    whole = hashlib.sha256()
    for path in covers:
        content = path.read_bytes() if path.is_file() else None
        size = -1 if content is None else len(content)
        whole.update(json.dumps([str(path), size]).encode() + (content or b""))
    return whole.hexdigest()


def _covered(path: Path) -> list[Path]:
    """The file, the modules that it may import from beside it, and the sources of its kernels."""
    own = [kernel for kernel in catalogue.from_file(path).kernels if kernel.declared_in == path]
    sources = {file.resolve() for kernel in own for file in (kernel.source, *kernel.includes)}
    beside = {header.resolve() for file in sources for form in HEADERS for header in file.parent.glob(form)}
    modules = {module.resolve() for module in path.parent.glob("_*.py")}
    return [path, *sorted((sources | beside | modules) - {path})]


#: Characters of a plan.
LONGEST_PLAN = 1 << 20
#: Problems of a plan that is submitted.
MOST_PROBLEMS = 10_000
#: Seconds and trials of a job.
LONGEST_SECONDS, MOST_TRIALS = 7 * 86400.0, 1_000_000
#: Priorities go from minus this to this.
LARGEST_PRIORITY = 100
#: Unfinished jobs, of one submitter and in all.
MOST_OF_ONE, MOST_JOBS = 1000, 5000
#: What errors call a plan that was submitted.
SHOWN = Path("plan")


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
    plan: str = Field("", max_length=LONGEST_PLAN, description="A plan, as TOML text.")
    device: str = Field("", max_length=LONGEST_TEXT, description="A device of this node.")
    seconds: float | None = Field(
        None, gt=0, le=LONGEST_SECONDS, description="Budget; of a plan, of all of it."
    )
    trials: int | None = Field(None, gt=0, le=MOST_TRIALS, description="Budget of a problem, in trials.")
    priority: int = Field(
        0, ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY,
        description="The higher, the earlier among the jobs of one submitter.",
    )  # fmt: skip
    deadline: str = Field("", max_length=LONGEST_TEXT, description="When it must have ended, ISO 8601.")


def submit(store: Store, pool: DevicePool, new: NewJob, submitter: str) -> tuple[Job, bool]:
    """Checks a job and stores it.

    Returns:
        The job, or the equal one that is unfinished; and whether it is new.

    Raises:
        InputError: A value is wrong; for a plan, a `PlanError` with line and key.
    """
    if (new.problem is None) == (not new.plan):
        raise InputError("a job has a problem or a plan, got both or neither; give the one or the other")
    deadline = _deadline(new.deadline)
    if new.problem is not None:
        spec = pool.spec(new.device)
        asked = _problem(store, new.problem, pool.targets(spec))
    else:
        asked, device = _plan(store, new.plan)
        spec = pool.spec(new.device or (device if pool.cluster is None else ""))
    asked |= {"seconds": new.seconds, "trials": new.trials}
    same = hashlib.sha256(json.dumps([asked, spec, node()], sort_keys=True).encode()).hexdigest()
    if jobs.count_unfinished(store, submitter) >= MOST_OF_ONE:
        raise InputError(f"a submitter has up to {MOST_OF_ONE} unfinished jobs; wait, or cancel some")
    if jobs.count_unfinished(store) >= MOST_JOBS:
        raise InputError(f"there are up to {MOST_JOBS} unfinished jobs; wait until some have ended")
    return jobs.submit(store, Job(asked, same, node(), submitter, spec, new.priority, deadline))


def cancel(store: Store, job_id: str) -> Job:
    """Cancels a job: one that waits ends at once, one that runs keeps what it has measured.

    Raises:
        NothingFound: There is no such job.
        InputError: It has ended.
    """
    job = job_of(store, job_id)
    if not jobs.change(store, job.id, [jobs.QUEUED], jobs.CANCELLED, why="cancelled while it waited") and not (
        jobs.change(store, job.id, [jobs.RUNNING], jobs.STOPPING, why="cancelled")
        or job_of(store, job_id).state == jobs.STOPPING
    ):
        raise InputError(f"a job can be cancelled until it ends, job {job.id} is {job.state}")
    return job_of(store, job_id)


def job_of(store: Store, job_id: str) -> Job:
    """The job of an id.

    Raises:
        InputError: It is no id.
        NothingFound: There is none.
    """
    job = jobs.job(store, job_id)
    if job is None:
        raise NothingFound(f"there is no job {job_id}; GET /v1/jobs lists them")
    return job


def queue(store: Store) -> list[Job]:
    """The jobs that wait on this node, in the order in which they would start on equal devices."""
    waiting = [job for job in jobs.unfinished(store, node()) if job.state == jobs.QUEUED]
    return fair(waiting, jobs.last_starts(store, node()))


def fair(waiting: Iterable[Job], last_starts: Mapping[str, str]) -> list[Job]:
    """Puts jobs into a fair order: submitters take turns, each with the job of the highest priority first.

    Args:
        waiting: Jobs.
        last_starts: Submitter -> when a job of theirs was last started; whoever waited longest is first.
    """
    by_submitter: dict[str, list[Job]] = {}
    for job in sorted(waiting, key=lambda job: (-job.priority, job.number)):
        by_submitter.setdefault(job.submitter, []).append(job)
    turns = sorted(by_submitter, key=lambda name: (last_starts.get(name, ""), by_submitter[name][0].number))
    rounds = max(map(len, by_submitter.values()), default=0)
    return [by_submitter[name][at] for at in range(rounds) for name in turns if at < len(by_submitter[name])]


def jobs_page(store: Store, state: str | None, before: int, limit: int) -> dict[str, Any]:
    """A page of jobs, the latest first, with their places in the queue and counts by state."""
    places = {job.id: place for place, job in enumerate(queue(store), 1)}
    found = jobs.latest(store, [state] if state else [], limit + 1, before)
    page = [job_json(job, places.get(job.id)) | {"report": None} for job in found[:limit]]
    more = found[limit - 1].number if len(found) > limit else None
    return {"jobs": page, "counts": jobs.counts(store), "next": more}


def placed_json(store: Store, job: Job) -> dict[str, Any]:
    """A job as a JSON object, with its place in the queue."""
    waiting = [other.id for other in queue(store)] if job.state == jobs.QUEUED else []
    return job_json(job, waiting.index(job.id) + 1 if job.id in waiting else None)


def job_json(job: Job, position: int | None = None) -> dict[str, Any]:
    """A job as a JSON object; `position` is its place in the queue, from 1."""
    return {
        "id": job.id, "state": job.state, "why": job.why, "what": title(job), "asked": dict(job.asked),
        "device": job.device, "submitter": job.submitter, "priority": job.priority,
        "deadline": job.deadline or None, "position": position, "starts": job.starts,
        "progress": dict(job.progress) or None, "report": job.report,
        "submitted_at": job.submitted_at, "started_at": job.started_at or None,
        "ended_at": job.ended_at or None,
    }  # fmt: skip


def title(job: Job) -> str:
    """What a job does, in a few words."""
    asked = job.asked
    if asked["kind"] == "plan":
        many = asked["problems"]
        return f"plan of {many} problem{'s' if many != 1 else ''}"
    problem = asked["problem"]
    sizes = " x ".join(map(str, problem["shape"].values()))
    names = ("operation", "dtype", "layout", "precision", "epilogue", "regime")
    operation, *more = (problem.get(name, "") for name in names)
    words = operation, sizes, *more
    return " ".join(word for word in words if word not in ("", "ieee", "cold"))


def _problem(store: Store, asked: ProblemOfJob, targets: Sequence[str]) -> dict[str, Any]:
    """A checked problem, written out in full."""
    file = checked(store, asked.file) if asked.file else None
    kernels = catalogue.from_file(file) if file else builtin_now()
    operation = kernels.operation(asked.operation or (kernels.kernels[-1].operation if file else ""))
    dims = named_dims(operation, asked.dims)
    check_dims(dims)
    if asked.regime not in REGIMES:
        raise UnknownName("regime", asked.regime[:80], REGIMES)
    problem = operation.problem(dims, asked.dtype, asked.layout, asked.precision, asked.epilogue)
    check_sizes(problem)
    _check_kernels(kernels, problem, targets, tuple(asked.kernels))
    full = {
        "operation": operation.name, "shape": dict(problem.shape), "dtype": problem.dtype,
        "layout": problem.layout, "precision": problem.precision, "regime": asked.regime,
        "kernels": asked.kernels, "file": str(file) if file else "", **problem.told_epilogue,
    }  # fmt: skip
    return {"kind": "problem", "problem": full}


def _check_kernels(kernels: Catalogue, problem: Problem, targets: Sequence[str], only: tuple[str, ...]) -> None:
    """Refuses a problem that has no kernel for any of some targets.

    Raises:
        InputError: It has none.
        UnknownName: No kernel is called like that.
    """
    for target in targets[:-1]:
        with contextlib.suppress(UnknownName):
            if kernels.serving(problem, target, only):
                return
    if not kernels.serving(problem, targets[-1], only):
        raise InputError(
            f"{problem.operation.name} has no kernel for {' or '.join(targets)} that is for {problem}"
        )


def _plan(store: Store, text: str) -> tuple[dict[str, Any], str]:
    """A checked plan, and the device that it names."""
    if len(text) > LONGEST_PLAN:
        raise PlanError(f"a plan has up to {LONGEST_PLAN} characters, got {len(text)}; split it")
    document, complaints = document_of(text, SHOWN)
    count = 0
    for kind, index, table in _tables(document):
        if table.get("shapes") is not None and kind == "surveys":
            why = "shapes: a plan that is submitted names no other plan; give the problems in it"
            raise complaints.about((kind, index, "shapes"), why)
        if table.get("file") is not None:
            try:
                file, path = str(table["file"]), checked(store, str(table["file"]))
                if file != str(path):
                    rule = "a plan that is submitted names a file by its whole path"
                    raise InputError(f"{rule}, got {file!r}: {path}")
            except InputError as error:
                raise complaints.about((kind, index, "file"), f"file: {error}") from None
        count += _count(table) if kind == "problems" else 0
        if count > MOST_PROBLEMS:
            rule = f"problems: a plan that is submitted has at most {MOST_PROBLEMS} problems"
            raise complaints.about((kind, index), f"{rule}, got {count}; use fewer sizes, or split it")
    plan = plan_of(document, Path("/nothing") / SHOWN, complaints)
    until = plan.until.isoformat("minutes") if plan.until is not None else ""
    limits = {"plan_seconds": plan.seconds, "until": until}
    return {"kind": "plan", "plan": text, "problems": len(plan.items), **limits}, plan.device


def _tables(document: Mapping[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The tables of a plan with their places; whatever is none is left to the plan's own checks."""
    for kind in ("problems", "surveys"):
        tables = document.get(kind)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict):
                yield kind, index, table


def _count(table: Mapping[str, Any]) -> int:
    """How many problems a table may stand for, without making them."""
    sizes = table.get("set")
    named = sizes if isinstance(sizes, dict) else {}
    lists = {name: value for name, value in table.items() if name not in ("shape", "kernels", "objective")}
    return math.prod(len(value) for value in (*lists.values(), *named.values()) if isinstance(value, list))


def check_files(store: Reader, asked: Mapping[str, Any]) -> None:
    """Checks that the kernel files of a job are allowed, and are as they were then.

    Raises:
        InputError: One is not.
    """
    if asked["kind"] == "plan":
        named = [table.get("file") for _, _, table in _tables(tomllib.loads(asked["plan"]))]
    else:
        named = [asked["problem"]["file"]]
    for file in filter(None, named):
        checked(store, file)


def _deadline(text: str) -> str:
    """A deadline as it is stored.

    Raises:
        InputError: It is no time, or has passed.
    """
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"a deadline is a time such as 2026-05-31T06:30:00+02:00, got {text[:80]!r}; correct it"
        ) from None
    utc = (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    if utc <= datetime.now(UTC):
        raise InputError(f"a deadline is in the future, got {text[:80]!r}; correct it")
    return utc.isoformat(timespec="microseconds")

"""Jobs: what is submitted, checked before it is stored; the queue in its fair order."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import PRECISIONS, Problem, check_sizes
from tuner.devices.protocol import REGIMES
from tuner.errors import InputError, NothingFound, PlanError, UnknownName
from tuner.lookup.stale import builtin_now
from tuner.night.plan import document_of, plan_of
from tuner.service.pool import DevicePool
from tuner.service.questions import LARGEST_DIM
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
    file = AllowedFile(str(path), digest_of(covers), tuple(str(each) for each in covers))
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
    found = [each for each in known if text == each.path] or [
        each for each in known if text == Path(each.path).name
    ]
    if len(found) != 1:
        raise InputError(
            f"a job names a kernel file that the operator of this node has allowed, {text[:200]!r} is not; on "
            f"the node, run `tuner allow FILE`"
        )
    if digest_of(Path(each) for each in found[0].covers) != found[0].digest:
        raise InputError(
            f"{found[0].path}, or a file that it uses, has changed since it was allowed; on the node, read it "
            "and run `tuner allow FILE` again"
        )
    return Path(found[0].path)


def digest_of(covers: Iterable[Path]) -> str:
    """Digest over the names and contents of files; a missing one counts, too."""
    whole = hashlib.sha256()
    for path in covers:
        told = path.read_bytes() if path.is_file() else None
        size = -1 if told is None else len(told)
        whole.update(json.dumps([str(path), size]).encode() + (told or b""))
    return whole.hexdigest()


def _covered(path: Path) -> list[Path]:
    """The file, the modules that it may import from beside it, and the sources of its kernels."""
    found = catalogue.from_file(path)
    own = [kernel for kernel in found.kernels if kernel.declared_in == path]
    sources = {file.resolve() for kernel in own for file in (kernel.source, *kernel.includes)}
    beside = {each.resolve() for file in sources for form in HEADERS for each in file.parent.glob(form)}
    modules = {each.resolve() for each in path.parent.glob("_*.py")}
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


@dataclass(frozen=True)
class Submission:
    """What is submitted.

    Attributes:
        problem: ``operation`` or ``file``, ``dims``, and what else `_problem` takes; None for a plan.
        plan: TOML text; empty for a problem.
        device: Spec, name or uuid; the plan's or the node's first if empty.
        seconds: Budget; of a plan, of all of it.
        trials: Budget of a problem.
        priority: The higher, the earlier.
        deadline: ISO 8601; empty for none.
    """

    problem: Mapping[str, Any] | None = None
    plan: str = ""
    device: str = ""
    seconds: float | None = None
    trials: int | None = None
    priority: int = 0
    deadline: str = ""


def submit(store: Store, pool: DevicePool, told: Submission, submitter: str) -> tuple[Job, bool]:
    """Checks a job and stores it.

    Returns:
        The job, or the equal one that is unfinished; and whether it is new.

    Raises:
        InputError: A value is wrong; for a plan, a `PlanError` with line and key.
    """
    if (told.problem is None) == (not told.plan):
        raise InputError("a job has a problem or a plan, got both or neither; give the one or the other")
    _bounded("seconds", told.seconds, LONGEST_SECONDS)
    _bounded("trials", told.trials, MOST_TRIALS)
    if abs(told.priority) > LARGEST_PRIORITY:
        rule = f"a priority is a whole number of -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}"
        raise InputError(f"{rule}, got {told.priority}; correct it")
    deadline = _deadline(told.deadline)
    if told.problem is not None:
        spec = pool.spec(told.device)
        asked = _problem(store, told.problem, pool.targets(spec))
    else:
        asked, device = _plan(store, told.plan)
        spec = pool.spec(told.device or (device if pool.cluster is None else ""))
    asked |= {"seconds": told.seconds, "trials": told.trials}
    same = hashlib.sha256(json.dumps([asked, spec, node()], sort_keys=True).encode()).hexdigest()
    _check_room(store, submitter)
    job = Job(asked, same, node(), submitter, spec, told.priority, deadline)
    return jobs.submit(store, job)


def cancel(store: Store, job_id: str) -> Job:
    """Cancels a job: one that waits ends at once, one that runs keeps what it has measured.

    Raises:
        NothingFound: There is no such job.
        InputError: It has ended.
    """
    job = found(store, job_id)
    if not jobs.change(store, job.id, [jobs.QUEUED], jobs.CANCELLED, why="cancelled while it waited") and not (
        jobs.change(store, job.id, [jobs.RUNNING], jobs.STOPPING, why="cancelled")
        or found(store, job_id).state == jobs.STOPPING
    ):
        raise InputError(f"a job can be cancelled until it ends, job {job.id} is {job.state}")
    return found(store, job_id)


def found(store: Store, job_id: str) -> Job:
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
    for job in sorted(waiting, key=lambda each: (-each.priority, each.number)):
        by_submitter.setdefault(job.submitter, []).append(job)
    turns = sorted(by_submitter, key=lambda name: (last_starts.get(name, ""), by_submitter[name][0].number))
    rounds = max((len(each) for each in by_submitter.values()), default=0)
    return [by_submitter[name][at] for at in range(rounds) for name in turns if at < len(by_submitter[name])]


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
    told = asked["problem"]
    sizes = " x ".join(str(size) for size in told["shape"].values())
    more = told["layout"], told["precision"], told.get("epilogue", ""), told["regime"]
    words = told["operation"], sizes, told["dtype"], *more
    return " ".join(word for word in words if word not in ("", "ieee", "cold"))


def _problem(store: Store, told: Mapping[str, Any], targets: Sequence[str]) -> dict[str, Any]:
    """A checked problem, written out in full."""
    known = ("operation", "file", "dims", "dtype", "layout", "precision", "epilogue", "regime", "kernels")
    for name in told:
        if name not in known:
            raise UnknownName("key of a problem", str(name)[:80], known)
    file = checked(store, str(told["file"])) if told.get("file") else None
    kernels = catalogue.from_file(file) if file else builtin_now()
    default = kernels.kernels[-1].operation if file else ""
    operation = kernels.operation(str(told.get("operation") or default))
    dims = told.get("dims") or {}
    if not isinstance(dims, Mapping):
        if len(dims) != len(operation.dims):
            names = " ".join(name.upper() for name in operation.dims)
            raise InputError(f"{operation.name} takes {names}: {len(operation.dims)} dims, got {len(dims)}")
        dims = dict(zip(operation.dims, dims, strict=True))
    if any(type(size) is not int or not 1 <= size <= LARGEST_DIM for size in dims.values()):
        raise InputError(f"a dim is a whole number of 1 to {LARGEST_DIM}, got {str(dict(dims))[:200]}")
    precision, regime = str(told.get("precision") or ""), str(told.get("regime") or "cold")
    if regime not in REGIMES:
        raise UnknownName("regime", regime[:80], REGIMES)
    if precision and precision not in PRECISIONS:
        raise UnknownName("precision", precision[:80], PRECISIONS)
    dtype, layout, epilogue = (str(told.get(name) or "") for name in ("dtype", "layout", "epilogue"))
    problem = operation.problem(dims, dtype, layout, precision, epilogue)
    check_sizes(problem)
    only = tuple(str(name) for name in told.get("kernels") or ())
    _check_kernels(kernels, problem, targets, only)
    full = {
        "operation": operation.name, "shape": dict(problem.shape), "dtype": problem.dtype,
        "layout": problem.layout, "precision": problem.precision, "regime": regime, "kernels": list(only),
        "file": str(file) if file else "", **problem.told_epilogue,
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
    for kind in ("problems", "surveys"):
        for index, table in enumerate(_tables(document, kind)):
            if table.get("shapes") is not None and kind == "surveys":
                what = "shapes: a plan that is submitted names no other plan; give the problems in it"
                raise complaints.about((kind, index, "shapes"), what)
            if table.get("file") is not None:
                try:
                    _check_file(store, str(table["file"]))
                except InputError as error:
                    raise complaints.about((kind, index, "file"), f"file: {error}") from None
            if kind == "problems" and _count(table) > MOST_PROBLEMS:
                rule = f"problems: a plan that is submitted has at most {MOST_PROBLEMS} problems"
                raise complaints.about((kind, index), f"{rule}, got {_count(table)}; use fewer sizes")
    plan = plan_of(document, Path("/nothing") / SHOWN, complaints)
    if len(plan.items) > MOST_PROBLEMS:
        rule = f"problems: a plan that is submitted has at most {MOST_PROBLEMS} problems"
        raise complaints.about(("problems",), f"{rule}, got {len(plan.items)}; split it")
    until = plan.until.isoformat("minutes") if plan.until is not None else ""
    limits = {"plan_seconds": plan.seconds, "until": until}
    return {"kind": "plan", "plan": text, "problems": len(plan.items), **limits}, plan.device


def _check_file(store: Store, text: str) -> None:
    """Checks a file of a plan, whose text is run as it is.

    Raises:
        InputError: It is not allowed, or not named in full.
    """
    path = checked(store, text)
    if text != str(path):
        raise InputError(f"a plan that is submitted names a file by its whole path, got {text!r}: {path}")


def _tables(document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The tables of a kind; whatever is none is left to the plan's own checks."""
    found = document.get(kind)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _count(table: Mapping[str, Any]) -> int:
    """How many problems a table may stand for, without making them."""

    def length(name: str) -> int:
        told = table.get(name)
        return len(told) if isinstance(told, list) else 1

    named = table.get("set")
    sizes = [len(each) for each in named.values() if isinstance(each, list)] if isinstance(named, dict) else []
    known = ("shape", "kernels", "objective")
    lists = [length(name) for name in table if name not in known]
    return math.prod(lists) * math.prod(sizes)


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


def _bounded(name: str, value: float | None, largest: float) -> None:
    if value is not None and not 0 < value <= largest:
        raise InputError(f"{name} are above 0 and up to {largest:g}, got {value:g}; correct it")


def _check_room(store: Store, submitter: str) -> None:
    if jobs.count_unfinished(store, submitter) >= MOST_OF_ONE:
        raise InputError(f"a submitter has up to {MOST_OF_ONE} unfinished jobs; wait, or cancel some")
    if jobs.count_unfinished(store) >= MOST_JOBS:
        raise InputError(f"there are up to {MOST_JOBS} unfinished jobs; wait until some have ended")

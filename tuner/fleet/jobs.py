"""Jobs of batch systems whose command is ``tuner worker``, by dask-jobqueue."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import InputError

#: Seconds before the end of a job at which its workers stop, so that their slices end in an orderly way.
BEFORE_END_S = 120


def worker_command(address: str, name: str, options: Mapping[str, Any], walltime: str | None) -> str:
    """Returns the command of a job.

    Args:
        address: The scheduler's.
        name: Name of the job's workers.
        options: Options of ``tuner worker``, without dashes.
        walltime: Limit of the job; by default its workers end two minutes before that.
    """
    given = dict(options)
    limit_s = seconds_of(walltime) if walltime else None
    if limit_s is not None:
        given.setdefault("lifetime", int(max(limit_s - BEFORE_END_S, 60)))
    python = str(given.pop("python", sys.executable))
    words = [python, "-m", "tuner", "worker", "--scheduler", address, "--name", name]
    for option, value in given.items():
        words += [f"--{option}", str(value)]
    return shlex.join(words)


def seconds_of(walltime: str) -> float | None:
    """Returns the seconds of ``MM``, ``MM:SS``, ``HH:MM:SS`` or ``D-HH:MM:SS``; None for another form."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+)(?::(\d+))?", walltime.strip())
    if found is None:
        return None
    days, hours, middle, last = (int(part or 0) for part in found.groups())
    if found[4] is None and found[2] is not None:  # MM:SS was read as hours and minutes
        hours, middle, last = 0, hours, middle
    return float(((days * 24 + hours) * 60 + middle) * 60 + last)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Leaves Ctrl-C as it is: importing dask-jobqueue would make it end the process, and fail in a thread."""
    with mock.patch("signal.signal"):
        yield


def job_class(kind: str, options: Mapping[str, Any]) -> Any:
    """Returns dask-jobqueue's class of a job, with our command in place of Dask's."""
    with _own_signals():
        from dask_jobqueue.pbs import PBSJob
        from dask_jobqueue.slurm import SLURMJob

    base: Any = {"slurm": SLURMJob, "pbs": PBSJob}[kind]

    class OurJob(base):  # type: ignore[misc]
        """A job whose command is ``tuner worker``."""

        def __init__(self, scheduler: Any = None, name: Any = None, **more: Any) -> None:
            super().__init__(scheduler, name, **{"job_name": "tile-tuner", **more})
            interface = {"interface": more["interface"]} if more.get("interface") else {}
            self._command_template = worker_command(
                str(scheduler), str(name), {**interface, **options}, more.get("walltime")
            )

    return OurJob


def queue_class(kind: str, options: Mapping[str, Any]) -> Any:
    """Returns dask-jobqueue's class of a cluster, whose jobs run ``tuner worker``."""
    with _own_signals():
        from dask_jobqueue.core import JobQueueCluster

    base: Any = JobQueueCluster

    class OurQueue(base):  # type: ignore[misc]
        """A cluster of our jobs."""

        job_cls = job_class(kind, options)

    return OurQueue


def script_of(kind: str, job: Mapping[str, Any], worker: Mapping[str, Any]) -> str:
    """Returns the script of a job, with a placeholder for the scheduler's address.

    Raises:
        InputError: dask-jobqueue refuses the settings.
    """
    given = {name: value for name, value in job.items() if name not in ("scheduler_options", "n_workers")}
    try:
        made = job_class(kind, worker)("tcp://SCHEDULER:8786", "worker", **given)
    except (ValueError, TypeError) as error:
        raise InputError(f"dask-jobqueue refuses the settings under [job]: {error}; correct them") from error
    return str(made.job_script())


#: A share is this many cores at the least: a study, its device's process, and two compilers.
LEAST_CORES = 4


def shares(cores: Sequence[int], count: int) -> list[set[int]]:
    """Divides cores into equal runs of neighbours, which have caches and memory in common.

    Args:
        cores: Numbers of the cores.
        count: Number of shares.

    Returns:
        The shares; all cores for each if there are too few to divide.
    """
    ordered = sorted(cores)
    each = len(ordered) // max(count, 1)
    if count < 2 or each < LEAST_CORES:
        return [set(ordered)] * count
    return [set(ordered[number * each : (number + 1) * each]) for number in range(count)]


def share_cores(found: Sequence[DetectedDevice], processes: Sequence[int]) -> None:
    """Gives each worker process of this machine's GPUs its share of the cores that this process may use.

    Args:
        found: Their devices.
        processes: Their ids, in the same order; what they start later has the same share.
    """
    if any(kind_of(each.target).is_host for each in found):
        return
    for pid, cores in zip(processes, shares(list(os.sched_getaffinity(0)), len(processes)), strict=True):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cores)

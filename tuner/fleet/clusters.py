"""Clusters by name: ``local``, the address of a scheduler, or ``slurm:FILE.toml`` and ``pbs:FILE.toml``."""

import contextlib
import importlib.util
import logging
import os
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.devices.detect import DetectedDevice
from tuner.errors import EnvironmentTrouble, InputError
from tuner.extras import remedy

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
    if walltime:
        given.setdefault("lifetime", max(seconds_of(walltime) - BEFORE_END_S, 60))
    python = str(given.pop("python", sys.executable))
    words = [python, "-m", "tuner", "worker", "--scheduler", address, "--name", name]
    for option, value in given.items():
        words += [f"--{option}", str(value)]
    return shlex.join(words)


def seconds_of(walltime: str) -> int:
    """Returns the seconds of ``MM``, ``MM:SS``, ``HH:MM:SS`` or ``D-HH:MM:SS``.

    Raises:
        ValueError: It is written in another way.
    """
    days, _, clock = walltime.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    seconds: int = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    return int(days or 0) * 86_400 + seconds * (60 if len(parts) == 1 else 1)


def queue_class(kind: str, options: Mapping[str, Any]) -> Any:
    """Returns dask-jobqueue's class of a cluster, whose jobs run ``tuner worker``."""
    from distributed.core import Status

    # Its import would make Ctrl-C end the process, and fail in a thread: signals stay as they are.
    with mock.patch("signal.signal"):
        base: Any = getattr(importlib.import_module(f"dask_jobqueue.{kind}"), f"{kind.upper()}Job")

    class OurJob(base):  # type: ignore[misc]
        """A job whose command is ``tuner worker``."""

        def __init__(self, scheduler: Any = None, name: Any = None, **more: Any) -> None:
            super().__init__(scheduler, name, **{"job_name": "tile-tuner", **more})
            interface = {"interface": more["interface"]} if more.get("interface") else {}
            self._command_template = worker_command(
                str(scheduler), str(name), {**interface, **options}, more.get("walltime")
            )

        async def start(self) -> None:
            """Submits it. Why it is refused is kept: Dask would print it, and go on without."""
            try:
                await super().start()
            except (OSError, RuntimeError, ValueError) as error:
                refusals.append(str(error).rpartition("stderr:")[2].strip())
                self.status = Status.running

    core, refusals = importlib.import_module("dask_jobqueue.core"), list[str]()
    return type("OurQueue", (core.JobQueueCluster,), {"job_cls": OurJob, "refusals": refusals})


def security(role: str, tls: Sequence[Path | None]) -> Any:
    """Returns Dask's settings for a process; None without certificates.

    Args:
        role: ``client`` or ``worker``.
        tls: PEM files: certificate of the authority that signed the others, this process's, its private key.

    Raises:
        InputError: Some of the files are named and others not.
    """
    if not any(tls):
        return None
    if not all(tls):
        raise InputError("TLS takes --tls-ca, --tls-cert and --tls-key together, got some of them; give all")
    from distributed.security import Security

    authority, certificate, key = map(str, tls)
    names = {f"tls_{role}_cert": certificate, f"tls_{role}_key": key}
    make: Any = Security
    return make(tls_ca_file=authority, require_encryption=True, **names)


#: Seconds to wait for a scheduler.
CONNECT_WITHIN_S = 15.0
QUEUES = ("slurm", "pbs")


def check_installed() -> None:
    """Refuses if Dask is not installed, and keeps it from telling of each connection.

    Raises:
        EnvironmentTrouble: It is not; the message gives the remedy.
    """
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentTrouble(f"a cluster needs dask.distributed, which is not installed; {remedy('fleet')}")
    import dask

    dask.config.set({"logging.distributed": "critical"})
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    for name in ("distributed", "distributed.scheduler", "distributed.worker", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def connected(
    cluster: str, devices: Sequence[DetectedDevice] = (), tls: Sequence[Path | None] = (),
    folder: Path | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Connects to a cluster, or makes one that ends with the block; yields Dask's client.

    Args:
        cluster: ``local``, ``tcp://host:8786``, ``slurm:site.toml``...
        devices: Devices of a local cluster.
        tls: For a scheduler that runs already: see `security`.
        folder: Where workers of a local cluster keep their own files; by default the user's cache.

    Raises:
        InputError: It is no cluster; or the file of a site's settings is wrong.
        EnvironmentTrouble: It does not answer.
    """
    check_installed()
    kind, _, rest = cluster.partition(":")
    made: contextlib.AbstractContextManager[Any]
    if cluster == "local":
        made = _local(devices, folder)
    elif kind in QUEUES:
        made = _queued(kind, Path(rest))
    elif kind in ("tcp", "tls"):
        made = contextlib.nullcontext(cluster)
    else:
        raise InputError(
            f"a cluster is local, tcp://HOST:8786, tls://HOST:8786, slurm:FILE.toml or pbs:FILE.toml, got "
            f"{cluster!r}; choose one of them"
        )
    with made as address, _client(address, security("client", tls)) as client:
        yield client


@contextlib.contextmanager
def _client(address: Any, settings: Any) -> Iterator[Any]:
    from distributed import Client

    try:
        made: Any = Client
        client = made(address, timeout=CONNECT_WITHIN_S, security=settings, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise EnvironmentTrouble(
            f"no scheduler answers at {address} ({error}); start one there with `dask scheduler`, or check "
            f"address, port and certificates"
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client.close(timeout=5)


@contextlib.contextmanager
def _local(devices: Sequence[DetectedDevice], folder: Path | None) -> Iterator[Any]:
    """A scheduler in this process, and a worker for each device of this machine."""
    from distributed import Scheduler, SpecCluster

    from tuner.fleet.worker import DeviceNanny, WorkerOptions, nanny_options

    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    workers = {
        made["name"]: {"cls": DeviceNanny, "options": {**made, "host": "127.0.0.1"}}
        for made in nanny_options(devices, WorkerOptions(folder=folder))
    }
    make: Any = SpecCluster
    try:
        cluster = make(workers, {"cls": Scheduler, "options": here}, silence_logs=logging.CRITICAL)
    except (OSError, RuntimeError) as error:
        raise EnvironmentTrouble(f"the workers of this machine must start: {error}") from error
    with cluster:
        yield cluster.scheduler_address


@contextlib.contextmanager
def _queued(kind: str, path: Path) -> Iterator[Any]:
    """Jobs of a batch system, each with the workers of a node; they end with the block.

    Raises:
        EnvironmentTrouble: The batch system refuses one.
    """
    settings = site(kind, path)
    with _refusals():
        cluster = queue_class(kind, settings.worker)(silence_logs=logging.CRITICAL, **settings.job)
    with contextlib.closing(cluster):
        cluster.scale(jobs=settings.jobs)
        cluster.sync(lambda: cluster)  # until all are submitted
        if cluster.refusals:
            raise EnvironmentTrouble(f"{kind} refuses a job: {cluster.refusals[0]}; correct [job] in {path}")
        yield cluster


@dataclass(frozen=True)
class Site:
    """A site's settings of a batch system.

    Attributes:
        jobs: Number of jobs, usually nodes.
        job: What dask-jobqueue takes: ``queue``, ``walltime``, ``cores``, ``memory``, ``interface``...
        worker: Options of ``tuner worker``: ``devices``, ``idle-exit``, ``lifetime``...
    """

    jobs: int = 1
    job: Mapping[str, Any] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)


def site(kind: str, path: Path) -> Site:
    """Reads a site's settings.

    Raises:
        InputError: The file is not there, is not TOML, or something in it is wrong.
    """
    try:
        settings = Site(**tomllib.loads(path.read_text(encoding="utf-8")))
        if settings.jobs < 1:
            raise ValueError(f"jobs = {settings.jobs}")
        return settings
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"--cluster {kind}:FILE.toml names a site's settings: jobs, [job] and [worker] (docs/fleet.md), "
            f"got {str(path)!r} ({error}); correct it"
        ) from error


def job_script(cluster: str) -> str:
    """Returns the script of each job, with a placeholder for the scheduler's address; none is submitted.

    Raises:
        InputError: The cluster is no batch system, or the site's settings are wrong.
    """
    check_installed()
    kind, _, path = cluster.partition(":")
    if kind not in QUEUES:
        raise InputError(
            f"--job-script takes --cluster slurm:FILE.toml or pbs:FILE.toml, got {cluster!r}; name one"
        )
    settings = site(kind, Path(path))
    of_queue = ("scheduler_options", "n_workers")
    job = {name: value for name, value in settings.job.items() if name not in of_queue}
    with _refusals():
        made = queue_class(kind, settings.worker).job_cls("tcp://SCHEDULER:8786", "worker", **job)
    return str(made.job_script())


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"dask-jobqueue refuses the settings under [job]: {error}; correct them") from error

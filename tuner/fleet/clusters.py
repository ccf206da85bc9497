"""Clusters by name: ``local``, the address of a scheduler, or ``slurm:FILE.toml`` and ``pbs:FILE.toml``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.devices.detect import DetectedDevice, find, find_each
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


def _jobqueue(name: str) -> Any:
    """A module of dask-jobqueue.

    Importing it would make Ctrl-C end the process, and fail in a thread: signals stay as they are.
    """
    with mock.patch("signal.signal"):
        return importlib.import_module(f"dask_jobqueue.{name}")


def job_class(kind: str, options: Mapping[str, Any]) -> Any:
    """Returns dask-jobqueue's class of a job, with our command in place of Dask's."""
    base: Any = getattr(_jobqueue(kind), f"{kind.upper()}Job")

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
    return type("OurQueue", (_jobqueue("core").JobQueueCluster,), {"job_cls": job_class(kind, options)})


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form; all or none.

    Attributes:
        authority: Certificate of the authority that signed the others.
        certificate: This process's certificate.
        key: Its private key.
    """

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def security(self, role: str) -> Any:
        """Returns Dask's settings for a process; None without certificates.

        Args:
            role: ``client`` or ``worker``.

        Raises:
            InputError: Some of the files are named and others not, or one is missing.
        """
        paths = {"--tls-ca": self.authority, "--tls-cert": self.certificate, "--tls-key": self.key}
        missing = [name for name, path in paths.items() if path is None]
        if missing and any(paths.values()):
            raise InputError(f"TLS takes --tls-ca, --tls-cert and --tls-key together; add {', '.join(missing)}")
        for name, path in paths.items():
            if path is not None and not path.is_file():
                raise InputError(f"{name} names a PEM file, there is none at {path}; check the path")
        if self.authority is None:
            return None
        from distributed.security import Security

        names = {f"tls_{role}_cert": str(self.certificate), f"tls_{role}_key": str(self.key)}
        make: Any = Security
        return make(tls_ca_file=str(self.authority), require_encryption=True, **names)


#: Seconds to wait for a scheduler.
CONNECT_WITHIN_S = 15.0
QUEUES = ("slurm", "pbs")


@dataclass(frozen=True)
class ClusterRequest:
    """What is asked for by ``--cluster``.

    Attributes:
        text: ``local``, ``tcp://host:8786``, ``slurm:site.toml``...
        devices: For a local cluster, its devices.
        certificates: For TLS with a scheduler that runs already.
        folder: For a local cluster, where its workers keep their own files; by default the user's cache.
    """

    text: str
    devices: tuple[DetectedDevice, ...] = ()
    certificates: Certificates = field(default_factory=Certificates)
    folder: Path | None = None


@dataclass(frozen=True)
class Cluster:
    """A cluster that is connected.

    Attributes:
        client: Dask's client.
        address: The scheduler's address.
        dashboard: Address of Dask's own pages; empty if there are none.
    """

    client: Any
    address: str
    dashboard: str


def check_installed() -> None:
    """Refuses if Dask is not installed.

    Raises:
        EnvironmentTrouble: It is not; the message gives the remedy.
    """
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentTrouble(f"a cluster needs dask.distributed, which is not installed; {remedy('fleet')}")


def quiet() -> None:
    """Keeps Dask from telling each connection: it says so as it is first imported."""
    import dask

    dask.config.set({"logging.distributed": "critical"})
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    for name in ("distributed", "distributed.scheduler", "distributed.worker", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def connected(request: ClusterRequest) -> Iterator[Cluster]:
    """Connects to a cluster, or makes one that ends with the block.

    Raises:
        InputError: It is no cluster; or the file of a site's settings is wrong.
        EnvironmentTrouble: It does not answer.
    """
    check_installed()
    kind, _, rest = request.text.partition(":")
    quiet()
    if request.text == "local":
        with _local(request) as cluster:
            yield cluster
    elif kind in QUEUES:
        with _queued(kind, Path(rest)) as cluster:
            yield cluster
    elif kind in ("tcp", "tls"):
        with _client(request.text, request.certificates) as client:
            yield Cluster(client, request.text, _dashboard(client, own=False))
    else:
        raise InputError(
            f"a cluster is local, tcp://HOST:8786, tls://HOST:8786, slurm:FILE.toml or pbs:FILE.toml, got "
            f"{request.text!r}; choose one of them"
        )


@contextlib.contextmanager
def _client(address: Any, certificates: Certificates | None = None) -> Iterator[Any]:
    from distributed import Client

    security = certificates.security("client") if certificates else None
    try:
        made: Any = Client
        client = made(address, timeout=CONNECT_WITHIN_S, security=security, set_as_default=False)
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


def _dashboard(client: Any, own: bool = True) -> str:
    """Address of Dask's pages; they need the package bokeh where the scheduler runs, which may be here."""
    port = client.scheduler_info()["services"].get("dashboard")
    return str(client.dashboard_link) if port and (not own or importlib.util.find_spec("bokeh")) else ""


@contextlib.contextmanager
def _local(request: ClusterRequest) -> Iterator[Cluster]:
    """A scheduler in this process, and a worker for each device of this machine."""
    from distributed import Scheduler, SpecCluster

    from tuner.fleet.worker import DeviceNanny, WorkerOptions, nanny_options

    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    nannies = nanny_options(request.devices, WorkerOptions(folder=request.folder))
    workers = {made["name"]: {"cls": DeviceNanny, "options": {**made, "host": "127.0.0.1"}} for made in nannies}
    with contextlib.ExitStack() as stack:
        made: Any = SpecCluster
        try:
            cluster = stack.enter_context(
                made(workers, {"cls": Scheduler, "options": here}, silence_logs=logging.CRITICAL)
            )
        except (OSError, RuntimeError) as error:
            raise EnvironmentTrouble(f"the workers of this machine must start: {error}") from error
        client = stack.enter_context(_client(cluster.scheduler_address))
        yield Cluster(client, str(cluster.scheduler_address), _dashboard(client))


def local_devices(text: str) -> tuple[DetectedDevice, ...]:
    """The devices of this machine that ``--device`` names; by default every GPU, or else the CPU."""
    if "," not in text:
        return find_each(text)
    return tuple(find(spec) for spec in text.split(","))


@contextlib.contextmanager
def _queued(kind: str, path: Path) -> Iterator[Cluster]:
    """Jobs of a batch system, each with the workers of a node; they end with the block."""
    settings = site(kind, path)
    with _refusals():
        cluster = queue_class(kind, settings.worker)(silence_logs=logging.CRITICAL, **settings.job)
    try:
        cluster.scale(jobs=settings.jobs)
        with _client(cluster) as client:
            yield Cluster(client, str(cluster.scheduler_address), _dashboard(client))
    finally:
        cluster.close()


@dataclass(frozen=True)
class Site:
    """A site's settings of a batch system.

    Attributes:
        jobs: Number of jobs, usually nodes.
        job: What dask-jobqueue takes: ``queue``, ``walltime``, ``cores``, ``memory``, ``interface``...
        worker: Options of ``tuner worker``: ``devices``, ``idle-exit``, ``lifetime``...
    """

    jobs: int
    job: Mapping[str, Any]
    worker: Mapping[str, Any]


def site(kind: str, path: Path) -> Site:
    """Reads a site's settings.

    Raises:
        InputError: The file is not there, is not TOML, or lacks something.
    """
    rule = f"--cluster {kind}:FILE.toml names a site's settings: jobs, [job] and [worker] (docs/fleet.md)"
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{rule}, got {str(path)!r} ({error}); correct it") from error
    unknown = sorted(settings.keys() - {"jobs", "job", "worker"})
    jobs = settings.get("jobs", 1)
    if unknown or not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"{rule}, got {unknown or f'jobs = {jobs!r}'} in {path}; correct it")
    return Site(jobs, settings.get("job", {}), settings.get("worker", {}))


def job_script(kind: str, path: Path) -> str:
    """Returns the script of each job, with a placeholder for the scheduler's address; none is submitted.

    Raises:
        InputError: The site's settings are wrong.
    """
    check_installed()
    settings = site(kind, path)
    of_queue = ("scheduler_options", "n_workers")
    job = {name: value for name, value in settings.job.items() if name not in of_queue}
    with _refusals():
        made = job_class(kind, settings.worker)("tcp://SCHEDULER:8786", "worker", **job)
    return str(made.job_script())


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"dask-jobqueue refuses the settings under [job]: {error}; correct them") from error

"""``tuner nightly --cluster`` and ``tuner worker``: nights on a cluster's workers, and the workers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli.formatting import duration
from tuner.errors import EnvironmentTrouble, Interrupted
from tuner.night.plan import Plan, PlanItem
from tuner.night.result import NightResult
from tuner.study import job_files

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.fleet.clusters import Certificates, Cluster
    from tuner.fleet.night import FleetNight
    from tuner.night.scheduler import NightItem


F = TypeVar("F", bound=Callable[..., object])


def tls_options(command: F) -> F:
    """``--tls-ca``, ``--tls-cert`` and ``--tls-key``: certificates for Dask."""
    for name, text in (
        ("--tls-key", "Private key, PEM."),
        ("--tls-cert", "Certificate of this process, PEM."),
        ("--tls-ca", "Certificate of the authority, PEM."),
    ):
        command = click.option(name, type=click.Path(path_type=Path), help=text)(command)
    return command


def _certificates(options: Mapping[str, Any]) -> Certificates:
    from tuner.fleet.clusters import Certificates

    return Certificates(options["tls_ca"], options["tls_cert"], options["tls_key"])


@click.command()
@click.option("--scheduler", required=True, metavar="tcp://HOST:8786", help="Address of the scheduler.")
@click.option(
    "--devices", default="", metavar="SPEC", help="cuda (every GPU), cuda:N or cpu; default: all GPUs."
)
@click.option("--name", default="", help="Name of the worker; default: the machine and the device.")
@click.option("--folder", type=click.Path(path_type=Path), help="For its own records and caches.")
@click.option("--idle-exit", type=float, metavar="S", help="End after so many seconds without work.")
@click.option("--lifetime", type=float, metavar="S", help="End after so many seconds; a slice ends orderly.")
@click.option("--stall", type=float, default=240.0, metavar="S", help="Limit without progress.  [default: 240]")
@click.option("--interface", default="", metavar="NAME", help="Network interface, e.g. eth0 or ib0.")
@click.option(
    "--db", envvar="TUNER_DB", default="", metavar="URL",
    help="How this machine reaches the database, if not by the coordinator's URL; TUNER_DB sets it, too.",
)  # fmt: skip
@tls_options
def worker(
    scheduler: str, devices: str, name: str, folder: Path | None, idle_exit: float | None,
    lifetime: float | None, stall: float, interface: str, db: str, **tls: Any,
) -> None:  # fmt: skip
    """Work for a fleet: one process for each device, which takes slices of nights.

    The worker runs what the scheduler's clients send, as Dask does: connect it to a scheduler that you trust,
    and let nobody else reach that scheduler.
    """
    from tuner.devices.detect import find_each
    from tuner.fleet.clusters import check_installed, quiet

    check_installed()
    quiet()
    security = _certificates(tls).security("worker")
    from tuner.fleet.worker import WorkerOptions, serve

    url = "" if db.startswith("sqlite") else db
    serve(
        find_each(devices),
        WorkerOptions(scheduler, folder, name, url, idle_exit, lifetime, stall, security, interface),
    )


def print_job(cluster: str) -> None:
    """Prints the script of a batch system's jobs.

    Raises:
        InputError: The cluster is no batch system, or the site's settings are wrong.
    """
    from tuner.errors import InputError
    from tuner.fleet.clusters import QUEUES, job_script

    kind, _, path = cluster.partition(":")
    if kind not in QUEUES:
        raise InputError(f"--job-script takes --cluster slurm:FILE.toml or pbs:FILE.toml, got {cluster!r}")
    click.echo(job_script(kind, Path(path)))


def run_fleet(
    plan: Plan, db: str, options: Mapping[str, Any], seed: int, deadline_s: float | None,
    ended: Callable[[NightItem], None] = lambda item: None,
) -> NightResult:  # fmt: skip
    """Runs a night on a cluster.

    Args:
        plan: The plan.
        db: URL of the database.
        options: The command's: ``cluster``, ``device``, ``tls_...``, ``again``, ``quiet``.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        ended: Called with each problem's result.

    Raises:
        InputError: The cluster or an option is wrong.
        EnvironmentTrouble: The cluster or the database cannot be used.
    """
    from tuner.fleet.clusters import ClusterRequest, check_installed, local_devices, quiet
    from tuner.night.reporting import night_report
    from tuner.night.watch_command import night_watch

    check_installed()
    quiet()
    from tuner.fleet.night import of_models, opened

    if plan.surveys:
        click.echo("tuner: the plan's surveys run on one machine; give them to `tuner survey` there", err=True)
    if plan.wanted:
        click.echo("tuner: what is wanted is tuned on one machine; a cluster leaves it out", err=True)
    is_local, device, is_quiet = options["cluster"] == "local", options["device"], options["quiet"]
    names = tuple(name for name in device.split(",") if name and not is_local)
    request = ClusterRequest(
        options["cluster"], local_devices(device or plan.device) if is_local else (), _certificates(options)
    )
    with opened(db, request) as fleet:
        watch = night_watch(fleet.store, (), plan, is_quiet)
        watch.note()
        watch.why_none = "no worker came"

        def time_sentinels(night: FleetNight) -> None:
            """Has each worker time the sentinels of its board, before any slice."""
            watch.begin(plan, night.left_s(), of_models(night))

        night = fleet.night(
            plan, seed, deadline_s,
            devices=() if any(name.startswith("fake:") for name in names) else names,
            again=options["again"], greeted=time_sentinels,
            warned=lambda text: click.echo(f"tuner: {text}", err=True),
            said=_nothing if is_quiet else _print_slice,
        )  # fmt: skip
        with _shown(night, fleet.cluster, is_quiet), job_files.telling_of_fleet(night.snapshot):
            result = _tuned(night, ended)
        result.snapshot = night.snapshot()
        numbers = {item.key: number for number, item in enumerate(plan.items)}
        result.items.sort(key=lambda item: numbers[item.item.key])
        result.report = night_report(
            watch, [item.to_json() for item in result.items], str(result.stopped or "")
        )
    return result


def _tuned(night: FleetNight, ended: Callable[[NightItem], None]) -> NightResult:
    """The night's problems, until it ends or is stopped."""
    from tuner.study.progress import INTERRUPTED

    result = NightResult()
    try:
        for item in night.run():
            result.items.append(item)
            ended(item)
    except (Interrupted, EnvironmentTrouble) as error:
        result.stopped = error
    except KeyboardInterrupt:
        result.stopped = Interrupted(INTERRUPTED)
    result.items += night.unfinished(str(result.stopped))
    return result


def _print_slice(item: PlanItem, slices: int, gain: float | None) -> None:
    gained = "" if gain is None else f", {gain:.1%} gained"
    click.echo(f"{item.problem}: slice {slices}{gained}", err=True)


def _nothing(item: PlanItem, slices: int, gain: float | None) -> None:
    """Prints nothing."""


@contextlib.contextmanager
def _shown(night: FleetNight, cluster: Cluster, quiet: bool) -> Iterator[None]:
    """Shows all workers on a terminal, as long as the block runs."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not quiet:
        pages = f"; Dask's pages: {cluster.dashboard}" if cluster.dashboard else ""
        click.echo(f"scheduler {cluster.address}{pages}", err=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Live(console=console, get_renderable=lambda: workers_table(night.snapshot()), refresh_per_second=2):
        yield


def workers_table(told: dict[str, Any]) -> Table:
    """The workers of a night as a table.

    Args:
        told: `tuner.fleet.night.FleetNight.snapshot`.
    """
    from rich.table import Table

    left = "no deadline" if told["left_s"] is None else f"{_clock(told['left_s'])} left"
    title = (
        f"{told['problems_left']} problems to go, {told['slices']} slices, "
        f"{told['trials_per_minute']:.0f} trials a minute, {left}"
    )
    shown = Table(title=title, title_justify="left")
    for name in ("worker", "device", "doing", "trials/min", "slices", "best"):
        shown.add_column(name)
    for worker in told["workers"]:
        best = duration(worker["best_s"]) if worker["best_s"] else "-"
        shown.add_row(
            worker["name"], worker["device"] or "-", worker["doing"], f"{worker['trials_per_minute']:.0f}",
            str(worker["slices"]), best,
        )  # fmt: skip
    return shown


def _clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def cluster_options(command: F) -> F:
    """``--cluster``, ``--job-script`` and ``--tls-...``."""
    told = "Use a cluster's workers: local, tcp://HOST:8786, slurm:FILE.toml or pbs:FILE.toml (docs/fleet.md)."
    script = "Print the job script of slurm: or pbs:, and end."
    command = click.option("--job-script", is_flag=True, help=script)(tls_options(command))
    return click.option("--cluster", default="", metavar="CLUSTER", help=told)(command)


class ClusterExtension:
    """What a night has of clusters; see the extension point "cluster" in `tuner.night.command`."""

    options = staticmethod(cluster_options)
    print_job = staticmethod(print_job)
    run = staticmethod(run_fleet)

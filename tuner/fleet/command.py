"""``tuner nightly --cluster``: the same night on a cluster's workers, with a live view of all of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli.formatting import duration
from tuner.errors import EnvironmentTrouble, Interrupted
from tuner.fleet.worker_command import tls_options
from tuner.night.plan import Plan, PlanItem
from tuner.night.result import NightResult
from tuner.study import job_files

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.fleet.clusters import Cluster
    from tuner.fleet.coordinator import Fleet
    from tuner.fleet.night import FleetNight
    from tuner.night.scheduler import NightItem
    from tuner.night.watching import NightWatch


F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class FleetRequest:
    """What is asked for by ``--cluster`` and its options.

    Attributes:
        cluster: ``local``, ``tcp://host:8786``, ``slurm:FILE.toml``...
        device: ``--device``: for a local cluster the devices to use, else kind or model; several with commas.
        tls: Files of certificate authority, certificate and key; None for those that are not given.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        again: True to continue problems that are done, too.
        quiet: True to show nothing on stderr.
    """

    cluster: str
    device: str
    tls: tuple[Path | None, Path | None, Path | None]
    seed: int
    deadline_s: float | None
    again: bool
    quiet: bool


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
    plan: Plan, db: str, request: FleetRequest, ended: Callable[[NightItem], None] = lambda item: None
) -> NightResult:
    """Runs a night on a cluster.

    Args:
        plan: The plan.
        db: URL of the database.
        request: The cluster and how.
        ended: Called with each problem's result.

    Raises:
        InputError: The cluster or an option is wrong.
        EnvironmentTrouble: The cluster or the database cannot be used.
    """
    from tuner.fleet.clusters import Certificates, ClusterRequest, local_devices
    from tuner.fleet.coordinator import opened
    from tuner.night.reporting import night_report
    from tuner.night.watch_command import night_watch

    if plan.surveys:
        click.echo("tuner: the plan's surveys run on one machine; give them to `tuner survey` there", err=True)
    if plan.wanted:
        click.echo("tuner: what is wanted is tuned on one machine; a cluster leaves it out", err=True)
    found = local_devices(request.device or plan.device) if request.cluster == "local" else ()
    wanted = ClusterRequest(request.cluster, found, Certificates(*request.tls))
    with opened(db, wanted) as fleet:
        watch = night_watch(fleet.store, (), plan, request.quiet)
        watch.note()
        watch.why_none = "no worker came"
        night = _night(plan, fleet, request, partial(_time_sentinels, watch, plan))
        with _shown(night, fleet.cluster, request.quiet), job_files.telling_of_fleet(night.snapshot):
            result = _tuned(night, ended)
        result.snapshot = night.snapshot()
        places = {item.key: place for place, item in enumerate(plan.items)}
        result.items.sort(key=lambda each: places[each.item.key])
        result.report = night_report(
            watch, [each.to_json() for each in result.items], str(result.stopped or "")
        )
    return result


def _time_sentinels(watch: NightWatch, plan: Plan, night: FleetNight) -> None:
    """Has each worker time the sentinels of its board, before any slice."""
    from tuner.fleet.sentinels import of_models

    watch.begin(plan, night.left_s(), of_models(night))


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


def _night(
    plan: Plan, fleet: Fleet, request: FleetRequest, greeted: Callable[[FleetNight], None]
) -> FleetNight:
    devices = tuple(name for name in request.device.split(",") if name)
    return fleet.night(
        plan, request.seed, request.deadline_s,
        devices=() if request.cluster == "local" or _is_fake(devices) else devices,
        again=request.again, greeted=greeted, warned=lambda text: click.echo(f"tuner: {text}", err=True),
        said=_nothing if request.quiet else _said,
    )  # fmt: skip


def _is_fake(devices: tuple[str, ...]) -> bool:
    return any(name.startswith("fake:") for name in devices)


def _said(item: PlanItem, slices: int, gain: float | None) -> None:
    told = "" if gain is None else f", {gain:.1%} gained"
    click.echo(f"{item.problem}: slice {slices}{told}", err=True)


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
    for each in told["workers"]:
        best = duration(each["best_s"]) if each["best_s"] else "-"
        shown.add_row(
            each["name"], each["device"] or "-", each["doing"], f"{each['trials_per_minute']:.0f}",
            str(each["slices"]), best,
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

    @staticmethod
    def run(
        plan: Plan, db: str, asked: Mapping[str, Any], seed: int, deadline_s: float | None,
        ended: Callable[[NightItem], None],
    ) -> NightResult:  # fmt: skip
        """Runs a night by the command's options."""
        tls = asked["tls_ca"], asked["tls_cert"], asked["tls_key"]
        request = FleetRequest(
            asked["cluster"], asked["device"], tls, seed, deadline_s, asked["again"], asked["quiet"]
        )
        return run_fleet(plan, db, request, ended)

"""``tuner nightly --cluster`` and ``tuner worker``: nights on a cluster's workers, and the workers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli.formatting import duration, grid
from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import find_each
from tuner.night.plan import Plan
from tuner.study import job_files
from tuner.study.progress import Progress, job_note

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.night.command import NightResult, Printer


F = TypeVar("F", bound=Callable[..., object])


def tls_options(command: F) -> F:
    """``--tls-ca``, ``--tls-cert`` and ``--tls-key``: certificates for Dask."""
    file = click.Path(path_type=Path, exists=True, dir_okay=False)
    names = {"key": "Private key", "cert": "Certificate of this process", "ca": "Certificate of the authority"}
    for name, text in names.items():
        command = click.option(f"--tls-{name}", type=file, help=f"{text}, PEM.")(command)
    return command


@click.command()
@click.option("--scheduler", required=True, metavar="tcp://HOST:8786", help="Address of the scheduler.")
@click.option("--devices", default="", metavar="SPEC", help="cuda (every GPU), cuda:N, cpu; default: all GPUs.")
@click.option("--name", default="", help="Name of the worker; default: the machine and the device.")
@click.option("--folder", type=click.Path(path_type=Path), help="For its own records and caches.")
@click.option(
    "--idle-exit", "idle_exit_s", type=float, default=math.inf, metavar="S",
    help="End after so many seconds without work.",
)  # fmt: skip
@click.option(
    "--lifetime", "lifetime_s", type=float, default=math.inf, metavar="S",
    help="End after so many seconds; a slice ends orderly.",
)  # fmt: skip
@click.option(
    "--stall", "stall_s", type=float, default=240.0, metavar="S", help="Limit without progress.  [default: 240]"
)
@click.option("--interface", default="", metavar="NAME", help="Network interface, e.g. eth0 or ib0.")
@click.option(
    "--db", envvar="TUNER_DB", default="", metavar="URL",
    help="How this machine reaches the database, if not by the coordinator's URL; TUNER_DB sets it, too.",
)  # fmt: skip
@tls_options
def worker(
    devices: str, db: str, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **options: Any
) -> None:
    """Work for a fleet: one process for each device, which takes slices of nights.

    The worker runs what the scheduler's clients send, as Dask does: connect it to a scheduler that you trust,
    and let nobody else reach that scheduler.
    """
    from tuner.fleet.clusters import check_installed, security

    check_installed()
    tls = security("worker", (tls_ca, tls_cert, tls_key))
    from tuner.fleet.worker import WorkerOptions, serve

    url = "" if db.startswith("sqlite") else db
    serve(find_each(devices), WorkerOptions(url=url, security=tls, **options))


def print_job(cluster: str) -> None:
    """Prints the script of a batch system's jobs; see `tuner.fleet.clusters.job_script`."""
    from tuner.fleet.clusters import job_script

    click.echo(job_script(cluster))


def run(
    plan: Plan, db: str, options: Mapping[str, Any], seed: int, deadline_s: float | None, printer: Printer
) -> NightResult:
    """Runs a night on a cluster.

    Args:
        plan: The plan.
        db: URL of the database.
        options: The command's: ``cluster``, ``device``, ``tls_...``, ``again``.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        printer: Tells people what goes on.

    Raises:
        InputError: The cluster or an option is wrong.
        EnvironmentTrouble: The cluster or the database cannot be used.
        LockedByAnother: Another coordinator works with the database.
    """
    from tuner.fleet.clusters import check_installed, connected

    check_installed()
    from tuner.fleet.runner import of_models, runner_of
    from tuner.night.claims import Claims
    from tuner.night.command import conducted
    from tuner.night.scheduler import Night
    from tuner.night.watching import NightWatch
    from tuner.store import Store
    from tuner.study.locks import database_lock

    if plan.surveys:
        printer.warn("the plan's surveys run on one machine; give them to `tuner survey` there")
    if plan.wanted:
        printer.warn("what is wanted is tuned on one machine; a cluster leaves it out")
    device, is_local = options["device"], options["cluster"] == "local"
    specs = (device or plan.defaults.device).split(",") if is_local else []
    devices = [board for spec in specs for board in find_each(spec)]
    plan = plan if is_local else _on_devices(plan, tuple(filter(None, device.split(","))))
    tls = [options[name] for name in ("tls_ca", "tls_cert", "tls_key")]
    with (
        Store.open(db) as store, database_lock(db, DeviceInfo("a fleet", "fleet", uuid="fleet"), "a fleet"),
        Claims(store).coordinating() as hold, connected(options["cluster"], devices, tls) as client,
    ):  # fmt: skip
        night = Night(plan, store, seed, deadline_s, options["again"], printer.slice, printer.warn)
        watch = NightWatch(store, (), plan, printer.say, why_none="no worker came")
        on_server = db.startswith("postgresql")
        runner = runner_of(night, client, db, hold, anywhere=on_server)
        runner.looked = lambda: job_files.tell("fleet", lambda: job_of_fleet(snapshot()))

        def begin() -> None:
            """Has each worker time the sentinels of its board, before any slice."""
            runner.gather(night.left_s)
            watch.begin(night.left_s(), of_models(runner))

        def snapshot() -> dict[str, Any]:
            return runner.snapshot(night.left_s(), night.left)

        printer.say(f"scheduler {client.scheduler.address}")
        with _shown(snapshot, printer.quiet):
            result = conducted(night, runner, watch, printer, begin)
        result.snapshot = snapshot()
        job_files.tell("the night is over", lambda: job_of_fleet(result.snapshot))
    return result


def _on_devices(plan: Plan, names: tuple[str, ...]) -> Plan:
    """The plan for named devices; without names each problem is for its own, or else for the plan's."""
    usual = tuple(filter(None, [plan.defaults.device]))
    return replace(plan, items=tuple(replace(one, devices=names or one.devices or usual) for one in plan.items))


@contextlib.contextmanager
def _shown(snapshot: Callable[[], dict[str, Any]], quiet: bool) -> Iterator[None]:
    """Shows all workers on a terminal while the block runs; elsewhere at its end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, quiet=quiet)
    if console.is_terminal and not quiet:
        with Live(console=console, get_renderable=lambda: workers_table(snapshot()), refresh_per_second=2):
            yield
    else:
        yield
        console.print(workers_table(snapshot()))


def job_of_fleet(night: Mapping[str, Any]) -> dict[str, Any]:
    """What the server that started a night as a job is told of its progress.

    Args:
        night: As for `workers_table`.
    """
    workers = night["workers"]
    at_work = sum(worker["state"] == "works" for worker in workers)
    best_s = min(filter(None, (worker["best_s"] for worker in workers)), default=None)
    progress = Progress(
        f"{at_work} of {len(workers)} workers at work", sum(worker["trials"] for worker in workers),
        best_s=best_s, left_s=night["left_s"], elapsed_s=night["elapsed_s"],
    )  # fmt: skip
    return job_note("", progress) | {"fleet": dict(night)}


def workers_table(snapshot: dict[str, Any]) -> Table:
    """The workers of a night as a table.

    Args:
        snapshot: `tuner.fleet.runner.ClusterRunner.snapshot`.
    """
    left_s = snapshot["left_s"]
    left = "no deadline" if left_s is None else f"{timedelta(seconds=math.ceil(left_s))} left"
    title = (
        f"{snapshot['problems_left']} problems to go, {snapshot['slices']} slices, "
        f"{snapshot['trials_per_minute']:.0f} trials a minute, {left}"
    )
    rows = (
        (
            worker["name"], worker["device"] or "-", worker["doing"], f"{worker['trials_per_minute']:.0f}",
            worker["slices"], duration(worker["best_s"]) if worker["best_s"] else "-",
        )
        for worker in snapshot["workers"]
    )  # fmt: skip
    return grid(title, ("worker", "device", "doing", "trials/min", "slices", "best"), rows)


def options(command: F) -> F:
    """``--cluster``, ``--job-script`` and ``--tls-...``."""
    text = "Use a cluster's workers: local, tcp://HOST:8786, slurm:FILE.toml or pbs:FILE.toml (docs/fleet.md)."
    script = "Print the job script of slurm: or pbs:, and end."
    command = click.option("--job-script", is_flag=True, help=script)(tls_options(command))
    return click.option("--cluster", default="", metavar="CLUSTER", help=text)(command)

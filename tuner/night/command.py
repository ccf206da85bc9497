"""``tuner nightly``: a plan's problems until a deadline, on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.fronts import check_plot, plot_front
from tuner.cli.options import DEVICE, database_option, dry_run_option, json_option, output_options
from tuner.devices.detect import find_all
from tuner.errors import DeviceTrouble, InputError, Interrupted, NothingFound
from tuner.extras import provided
from tuner.night.plan import Plan, PlanItem, clock_time, read_plan, seconds_until
from tuner.night.result import NightResult, ToldItems, show_night
from tuner.study import job_files
from tuner.study.reporting import Events, ProgressView

if TYPE_CHECKING:
    from tuner.night.night import Night
    from tuner.store import Store


def run_here(
    plan: Plan, db: str, device: str, deadline_s: float | None, seed: int, again: bool, told: ToldItems
) -> NightResult:  # fmt: skip
    """Runs a night.

    Args:
        plan: The plan.
        db: URL of the database.
        device: Of ``--device``; the plan's if it is empty.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        seed: Seed of the searches.
        again: True to continue problems that are done, too.
        told: Called with each problem's result.
    """
    from tuner.night.night import Night
    from tuner.night.reporting import night_report
    from tuner.night.surveys import with_wanted
    from tuner.night.watch_command import night_watch
    from tuner.store import Store
    from tuner.study.locks import occupied

    found = find_all(device or plan.device)
    with Store.open(db) as store, occupied(db, found, f"nightly {plan.path}"):
        plan = with_wanted(plan, store, found[0])
        watch = night_watch(store, found, plan, told.quiet)
        watch.begin(plan, math.inf if deadline_s is None else deadline_s - time.monotonic())
        night = Night(
            plan, store, found, seed, deadline_s, db, again, watch.versions(),
            said=_nothing if told.quiet else _said, warned=lambda text: click.echo(f"tuner: {text}", err=True),
        )  # fmt: skip
        result = _tuned(plan, night, store, told)
        result.report = night_report(
            watch, [each.to_json() for each in result.items], str(result.stopped or "")
        )
    return result


def _tuned(plan: Plan, night: Night, store: Store, told: ToldItems) -> NightResult:
    """Surveys and problems of a plan, in its order."""
    from tuner.night.surveys import run_surveys
    from tuner.study.progress import INTERRUPTED

    result = NightResult()
    try:
        for text in run_surveys(plan, store, night.found[0], night.deadline_s):
            if not told.quiet:
                click.echo(text, err=True)
        for each in night.run(lambda item: _view(item, told)):
            result.items.append(each)
            told(each)
    except (Interrupted, DeviceTrouble) as error:
        result.stopped = error
    except KeyboardInterrupt:
        result.stopped = Interrupted(INTERRUPTED)
    result.items += night.unfinished(str(result.stopped or ""))
    places = {item.key: place for place, item in enumerate(plan.items)}
    result.items.sort(key=lambda each: places[each.item.key])
    return result


def _said(item: PlanItem, slices: int, gain: float | None) -> None:
    told = "" if gain is None else f", {gain:.1%} gained"
    click.echo(f"{item.problem}: slice {slices}{told}", err=True)


def _nothing(item: PlanItem, slices: int, gain: float | None) -> None:
    """Prints nothing."""


@contextlib.contextmanager
def _view(item: PlanItem, told: ToldItems) -> Iterator[Callable[..., None]]:
    if not told.quiet:
        click.echo(f"{item.problem}:", err=True)
    with ProgressView(item.problem, told.quiet) as view:
        yield told.events.follow(item.problem, view)


def _clusters() -> tuple[Any, ...]:
    """Implementations of the extension point "cluster": nights on the workers of a cluster.

    One has `options`, a decorator that adds its options to the command, `--cluster` and `--job-script` among
    them; `print_job(cluster)`; and `run(plan, db, options, seed, deadline_s, ended)`, which returns a
    `NightResult`.
    """
    return provided("cluster")


def _cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    for each in _clusters():
        command = each.options(command)
    return command


@click.command()
@click.argument("path", metavar="PLAN.toml", required=False, type=click.Path(path_type=Path))
@click.option("--until", metavar="HH:MM", help="Stop at this local time; overrides the plan's.")
@click.option("--seconds", type=float, help="Wall time of the whole run; overrides the plan's.")
@click.option(
    "--device", shell_complete=DEVICE, default="", help="Use this device, not the plan's: cpu, cuda, cuda:N."
)
@click.option("--seed", type=int, help="Seed of the searches; random by default.")
@click.option("--again", is_flag=True, help="Continue problems that are done, too.")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write plots of fronts to this folder.")
@click.option("--report", type=click.Path(path_type=Path), metavar="DIR", help="Write the night's report here.")
@click.option("--notify", default="", metavar="URL", help="Post the report; TUNER_NOTIFY_SECRET signs it.")
@click.option("--install", type=click.Choice(["systemd", "cron"]), help="Show what begins it every night.")
@click.option(
    "--at", default="22:00", show_default=True, metavar="HH:MM", help="With --install: when to begin."
)
@click.option("--system", is_flag=True, help="With --install systemd: for the machine, not the user.")
@click.option("--write", is_flag=True, help="With --install: write the files.")
@click.option("--last", is_flag=True, help="Say how the last night ended.")
@dry_run_option
@output_options
@_cluster_options
@database_option
@json_option
def nightly(path: Path | None, db: str, as_json: bool, **asked: Any) -> int:
    """Tune the problems of a plan until a deadline.

    If the plan allows more time than there is, problems share it in slices: the next slice goes to the problem
    with the largest recent gain, and a problem that gains no more is stopped. Problems that are done for this
    device, driver and source are skipped, so the same command continues a night that was interrupted.

    Each night begins with its sentinels: champions beside the library, to see what became slower. Exit code 4
    tells of alerts. On a cluster each worker times its own board.
    """
    from tuner.night.watch_command import install, tell_last

    if asked["last"]:
        tell_last(db, as_json)
        return 0
    if asked.get("job_script"):
        _clusters()[0].print_job(asked["cluster"])
        return 0
    if path is None:
        raise InputError("a night takes a plan, got none; name a TOML file, or --last")
    if asked["install"]:
        install(
            asked["install"], path, at=asked["at"], until=asked["until"], notify=asked["notify"], db=db,
            folder=asked["report"], system=asked["system"], write=asked["write"],
        )  # fmt: skip
        return 0
    if asked["dry_run"]:
        plan, begun_s = _limited(read_plan(path), asked["seconds"]), time.monotonic()
        deadline_s = _deadline_s(plan, asked["until"], begun_s)
        _preview(plan, db, asked["device"], deadline_s, asked["again"], as_json)
        return 0
    return _night(path, db, as_json, asked)


def _night(path: Path, db: str, as_json: bool, asked: Mapping[str, Any]) -> int:
    """Runs a night, and tells how it went; returns the exit code."""
    from tuner.night.notifying import SECRET_VARIABLE, check_url, notify
    from tuner.night.reporting import has_alerts
    from tuner.night.watch_command import ALERTS, show_alerts, write_pages

    if asked["notify"]:
        check_url(asked["notify"])
    result = _run(path, db, asked)
    show_night(result, as_json)
    if not as_json:
        show_alerts(result.report)
    for each in result.items:
        plot_front(each.front, each.after, asked["folder"])
    if asked["report"] is not None:
        write_pages(result.report, asked["report"])
    if asked["notify"]:
        trouble = notify(asked["notify"], result.report, os.environ.get(SECRET_VARIABLE, ""))
        if trouble:
            click.echo(f"tuner: {trouble}", err=True)
    if result.stopped is not None:
        raise result.stopped
    if has_alerts(result.report):
        return ALERTS
    if result.items and all(each.state == "failed" for each in result.items):
        raise NothingFound("no problem of the plan could be tuned")
    return 0


def _run(path: Path, db: str, asked: Mapping[str, Any]) -> NightResult:
    """The night itself."""
    begun_s = time.monotonic()
    plan = read_plan(path)
    plan = _limited(plan, asked["seconds"])
    check_plot(asked["folder"], any(len(item.objectives) > 1 for item in plan.items))
    deadline_s = _deadline_s(plan, asked["until"], begun_s)
    seed = secrets.randbits(32) if asked["seed"] is None else asked["seed"]
    with Events(asked["log"], asked["verbose"]) as events:
        events.tell("begin", plan=str(path), problems=len(plan.items), db=db)
        told = ToldItems(asked["quiet"], events, len(plan.items))
        job_files.count(0, max(1, len(plan.items)))
        if asked.get("cluster"):
            result: NightResult = _clusters()[0].run(plan, db, asked, seed, deadline_s, told)
            return result
        return run_here(plan, db, asked["device"], deadline_s, seed, asked["again"], told)


def _limited(plan: Plan, seconds: float | None) -> Plan:
    """The plan with another budget, if one was given."""
    if seconds is None:
        return plan
    if not 0 < seconds < math.inf:
        raise InputError(f"--seconds is a number above 0, got {seconds}; give e.g. 28800")
    return replace(plan, seconds=seconds)


def _deadline_s(plan: Plan, until: str | None, begun_s: float) -> float | None:
    """When to stop, by `time.monotonic`; reading a plan of many problems counts."""
    clock = clock_time(until) if until else plan.until
    limits = [begun_s + plan.seconds] if plan.seconds is not None else []
    if clock is not None:
        limits.append(time.monotonic() + seconds_until(clock, datetime.now()))
    return min(limits, default=None)


def _preview(
    plan: Plan, db: str, device: str, deadline_s: float | None, again: bool, as_json: bool
) -> None:  # fmt: skip
    """Prints what a night would do.

    Args:
        plan: The plan.
        db: URL of the database.
        device: As the command line names it; the plan's if it is empty.
        deadline_s: `time.monotonic` at which it would stop; None for no end.
        again: True to continue problems that are done, too.
        as_json: True for JSON.
    """
    from tuner.cli.previews import show_night as show_preview
    from tuner.night.night import Night
    from tuner.study import dry_run

    with dry_run.database(db) as store:
        found = dry_run.detected(device or plan.device, store)
        states = list(Night(plan, store, (found,), 0, None, again=again).preview())
        show_preview(dry_run.night_preview(states, plan, deadline_s), found.info.name, as_json)

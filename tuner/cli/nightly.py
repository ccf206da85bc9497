"""``tuner nightly``: a plan until a deadline."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli import job_files
from tuner.cli.formatting import config_text, duration, print_json, speed, table
from tuner.cli.fronts import check_plot, plot_front, show_front
from tuner.cli.options import database_option, json_option
from tuner.cli.progress_view import ProgressView
from tuner.devices.detect import find_all
from tuner.errors import DeviceTrouble, InputError, Interrupted, NothingFound, TunerError
from tuner.nightly.plan import Plan, PlanItem, clock_time, read_plan, seconds_until
from tuner.results.error_limit import told

if TYPE_CHECKING:
    from tuner.nightly.items import NightItem

#: Problems not reached that the table lists one by one; a plan may have thousands.
UNREACHED_TOLD = 20


@click.command()
@click.argument("path", metavar="PLAN.toml", type=click.Path(path_type=Path))
@click.option("--until", metavar="HH:MM", help="Stop at this local time; overrides the plan's.")
@click.option("--seconds", type=float, help="Wall time of the whole run; overrides the plan's.")
@click.option("--device", default="", help="Use this device, not the plan's: cpu, cuda, cuda:N.")
@click.option("--seed", type=int, help="Seed of the searches; random by default.")
@click.option("--again", is_flag=True, help="Continue problems that are done, too.")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write plots of fronts to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@database_option
@json_option
def nightly(
    path: Path, until: str | None, seconds: float | None, device: str, seed: int | None, again: bool,
    folder: Path | None, quiet: bool, db: str, as_json: bool,
) -> None:  # fmt: skip
    """Tune the problems of a plan until a deadline.

    If the plan allows more time than there is, problems share it in slices: the next slice goes to the problem
    with the largest recent gain, and a problem that gains no more is stopped. Problems that are done for this
    device, driver and source are skipped, so the same command continues a night that was interrupted.
    """
    from tuner.nightly.night import Night
    from tuner.nightly.surveys import run_surveys
    from tuner.store import Store
    from tuner.study.interruption import INTERRUPTED
    from tuner.study.locks import occupied

    begun_s = time.monotonic()
    plan = read_plan(path)
    if seconds is not None:
        if not 0 < seconds < math.inf:
            raise InputError(f"--seconds is a number above 0, got {seconds}; give e.g. 28800")
        plan = replace(plan, seconds=seconds)
    check_plot(folder, any(len(item.objectives) > 1 for item in plan.items))
    found = find_all(device or plan.device)
    deadline_s = _deadline_s(plan, until, begun_s)
    items: list[NightItem] = []
    unreached = 0
    stopped: TunerError | None = None
    with Store.open(db) as store, occupied(db, found, f"nightly {path}"):
        seed = secrets.randbits(32) if seed is None else seed
        say = _nothing if quiet else _said
        night = Night(plan, store, found, seed, deadline_s, db, again, say, _warned)
        try:
            for told in run_surveys(plan, store, found[0], deadline_s):
                if not quiet:
                    click.echo(told, err=True)
            for each in night.run(lambda item: _view(item, quiet)):
                items.append(each)
                job_files.count(len(items), len(plan.items))
                unreached += each.state == "not reached"
                if not quiet and (each.state != "not reached" or unreached <= UNREACHED_TOLD):
                    click.echo(f"{each.item.problem}: {each.state} {each.why}".rstrip(), err=True)
        except (Interrupted, DeviceTrouble) as error:
            stopped = error
        except KeyboardInterrupt:
            stopped = Interrupted(INTERRUPTED)
        places = {item.key: place for place, item in enumerate(plan.items)}
        items = sorted([*items, *night.unfinished(str(stopped))], key=lambda each: places[each.item.key])
    _show(items, str(stopped or ""), as_json)
    for each in items:
        plot_front(each.front, each.after, folder)
    if stopped is not None:
        raise stopped
    if items and all(each.state == "failed" for each in items):
        raise NothingFound("no problem of the plan could be tuned")


def _said(item: PlanItem, slices: int, gain: float | None) -> None:
    told = "" if gain is None else f", {gain:.1%} gained"
    click.echo(f"{item.problem}: slice {slices}{told}", err=True)


def _warned(text: str) -> None:
    click.echo(f"tuner: {text}", err=True)


def _nothing(item: PlanItem, slices: int, gain: float | None) -> None:
    """Prints nothing."""


def _deadline_s(plan: Plan, until: str | None, begun_s: float) -> float | None:
    """When to stop, by `time.monotonic`; reading a plan of many problems counts."""
    clock = clock_time(until) if until else plan.until
    limits = [begun_s + plan.seconds] if plan.seconds is not None else []
    if clock is not None:
        limits.append(time.monotonic() + seconds_until(clock, datetime.now()))
    return min(limits, default=None)


@contextlib.contextmanager
def _view(item: PlanItem, quiet: bool) -> Iterator[ProgressView]:
    if not quiet:
        click.echo(f"{item.problem}:", err=True)
    with ProgressView(item.problem, quiet) as view:
        yield view


def _show(items: list[NightItem], stopped: str, as_json: bool) -> None:
    if as_json:
        states = [each.state for each in items]
        print_json(
            {
                "problems": [each.to_json() for each in items],
                "counts": {state: states.count(state) for state in sorted(set(states))},
                "stopped": stopped,
            }
        )
        return
    limited = any(each.item.error_limit is not None for each in items)
    errors = ("error x library",) if limited else ()
    columns = ("problem", "state", "champion", "speed", "x library", *errors, "against before", "why")
    unreached = [each for each in items if each.state == "not reached"]
    unsaid = {id(each) for each in unreached[UNREACHED_TOLD:]}
    table("The night", columns, [_row(each, limited) for each in items if id(each) not in unsaid])
    if unsaid:
        click.echo(f"and {len(unsaid)} more that were not reached; --json has each")
    for each in items:
        if each.front is not None and each.after is not None:
            show_front(each.front, each.after)


def _row(item: NightItem, limited: bool) -> tuple[str, ...]:
    """The row of a problem in the report, with its error if the plan limits errors."""
    after, row = item.after, (str(item.item.problem), item.state)
    error = (_error(item),) if limited else ()
    time_s = after.record.measurement.time_s if after else None
    if after is None or not time_s:
        return (*row, "-", "-", "-", *error, "-", item.why.splitlines()[0][:100] if item.why else "")
    record = after.record
    fresh = item.state == "tuned"
    change = f"{item.improvement:.3f} x ({after.verdict})" if fresh and item.improvement else "-"
    shown = f"{duration(time_s)}, {speed(record.work['flops'], record.work['bytes'], time_s)}"
    ratio = (
        f"{after.hardest.comparison.ratio if after.hardest else after.speedup:.3f}" if after.baseline else "-"
    )
    if after.doubts:
        ratio += " (provisional)"
    return (*row, f"{record.kernel} {config_text(record.config)}", shown, ratio, *error, change, item.why)


def _error(each: NightItem) -> str:
    """The champion's error over the library's, and the largest ratio allowed."""
    limit = told(each.after.record.measurement) if each.after else None
    if limit is None:
        return "-"
    if limit["ratio"] is None:
        return "nothing said"
    return f"{limit['ratio']:.2f} of {limit['factor']:g}"

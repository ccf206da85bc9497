"""A night on this machine's devices: sentinels, surveys, and the problems of the plan."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tuner.cli.night_result import NightResult, ToldItems
from tuner.devices.detect import find_all
from tuner.errors import DeviceTrouble, Interrupted
from tuner.nightly.plan import Plan, PlanItem
from tuner.requests.progress import ProgressView

if TYPE_CHECKING:
    from tuner.nightly.night import Night
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
    from tuner.cli.watch import attended, candidates
    from tuner.nightly.night import Night
    from tuner.nightly.wanted import with_wanted
    from tuner.store import Store
    from tuner.study.locks import occupied

    found = find_all(device or plan.device)
    with Store.open(db) as store, occupied(db, found, f"nightly {plan.path}"):
        plan = with_wanted(plan, store, found[0])
        watch = attended(store, found, plan, told.quiet)
        left_s = math.inf if deadline_s is None else deadline_s - time.monotonic()
        watch.begin(candidates(plan), plan.watch.problems, left_s)
        night = Night(
            plan, store, found, seed, deadline_s, db, again, watch.versions(),
            said=_nothing if told.quiet else _said, warned=lambda text: click.echo(f"tuner: {text}", err=True),
        )  # fmt: skip
        result = _tuned(plan, night, store, told)
        result.report = watch.end([each.to_json() for each in result.items], str(result.stopped or ""))
    return result


def _tuned(plan: Plan, night: Night, store: Store, told: ToldItems) -> NightResult:
    """Surveys and problems of a plan, in its order."""
    from tuner.nightly.surveys import run_surveys
    from tuner.study.interruption import INTERRUPTED

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

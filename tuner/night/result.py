"""What came of a night, on this machine or on a cluster, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import config_text, duration, print_json, speed, table
from tuner.cli.fronts import show_front
from tuner.errors import TunerError
from tuner.results.objectives import told
from tuner.study import job_files
from tuner.study.reporting import Events

if TYPE_CHECKING:
    from tuner.night.plan_items import PlanItem
    from tuner.night.scheduler import NightItem

#: Problems not reached that are listed one by one; a plan may have thousands.
UNREACHED_TOLD = 20
#: What ``--json`` gives of a night's report.
REPORTED = ("night", "alerts", "behind", "confirmed", "rolled_back", "no_sentinels", "sentinels")


@dataclass
class NightResult:
    """What came of a night.

    Attributes:
        items: The problems.
        stopped: What ended it early; None if it came to its end.
        report: What `tuner.night.reporting.night_report` returned.
        snapshot: The workers of a cluster at its end, as JSON; empty without a cluster.
    """

    items: list[NightItem] = field(default_factory=list)
    stopped: TunerError | None = None
    report: dict[str, Any] = field(default_factory=dict)
    snapshot: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToldItems:
    """Prints each problem's result; of those that were not reached, the first few."""

    quiet: bool
    events: Events = field(default_factory=Events)
    of: int = 1
    done: int = 0
    unreached: int = 0

    def __call__(self, each: NightItem) -> None:
        """Prints one, and tells it to the events."""
        self.events.tell("problem", **each.to_json())
        self.done += 1
        job_files.count(self.done, max(self.of, self.done))
        self.unreached += each.state == "not reached"
        if not self.quiet and (each.state != "not reached" or self.unreached <= UNREACHED_TOLD):
            click.echo(f"{each.item.problem}: {each.state} {each.why}".rstrip(), err=True)


def show_night(result: NightResult, as_json: bool) -> None:
    """Prints a night's problems, and its workers if there were some."""
    items, report = result.items, result.report
    if as_json:
        states = [each.state for each in items]
        print_json(
            {
                "problems": [each.to_json() for each in items],
                "counts": {state: states.count(state) for state in sorted(set(states))},
                "stopped": str(result.stopped or ""),
                **{name: report[name] for name in REPORTED},
                **({"fleet": result.snapshot} if result.snapshot else {}),
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
    if result.snapshot:
        columns = ("worker", "device", "board", "slices", "trials", "busy", "state")
        table("The workers", columns, workers_rows(result.snapshot))


def _row(item: NightItem, limited: bool) -> tuple[str, ...]:
    """The row of a problem in the report, with its error if the plan limits errors."""
    after, row = item.after, (_named(item.item), item.state)
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


def _named(item: PlanItem) -> str:
    """The problem, and how often it was asked for if that is why it was tuned."""
    calls = item.wanted.calls if item.wanted is not None else 0
    return f"{item.problem}, wanted ({calls:,} call{'s' if calls != 1 else ''})" if calls else str(item.problem)


def _error(each: NightItem) -> str:
    """The champion's error over the library's, and the largest ratio allowed."""
    limit = told(each.after.record.measurement) if each.after else None
    if limit is None:
        return "-"
    if limit["ratio"] is None:
        return "nothing said"
    return f"{limit['ratio']:.2f} of {limit['factor']:g}"


def workers_rows(told: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the report's table of workers: what each did."""
    elapsed_s = max(told["elapsed_s"], 1e-9)
    return [
        (
            each["name"], each["device"] or "-", each["board"] or "-", str(each["slices"]), str(each["trials"]),
            f"{min(each['busy_s'] / elapsed_s, 1.0):.0%}", each["why"] or each["state"],
        )
        for each in told["workers"]
    ]  # fmt: skip

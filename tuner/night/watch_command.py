"""``tuner watch``: sentinels alone, and why something changed; ``tuner report``: a night's report again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, parse_problem, problem_options

if TYPE_CHECKING:
    from collections.abc import Mapping


class PlanGroup(click.Group):
    """``watch PLAN`` is ``watch plan PLAN``."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A first word that is no command is a plan."""
        if args and args[0] not in self.commands:
            args = ["plan", *args]
        return super().resolve_command(context, args)


@click.group(cls=PlanGroup)
def watch() -> None:
    """Time champions, those before them and the library, and say what changed since earlier nights.

    `tuner watch PLAN.toml` times the problems of a plan as a night does before it tunes.
    """


@watch.command("plan")
@click.argument("path", metavar="PLAN.toml", type=click.Path(path_type=Path))
@click.option("--device", default="", help="Use this device, not the plan's: cpu, cuda, cuda:N.")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write the report to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@database_option
@json_option
def watch_plan(path: Path, device: str, folder: Path | None, quiet: bool, db: str, as_json: bool) -> int:
    """Time the problems of a plan, and say what changed. Exit code 4 tells of alerts."""
    from tuner.devices.detect import find_all
    from tuner.night.plan import read_plan
    from tuner.night.reporting import ALERTS, has_alerts, night_report, write
    from tuner.night.watching import NightWatch
    from tuner.store import Store
    from tuner.study.locks import occupied

    plan = read_plan(path)
    boards = find_all(device or plan.device)
    with Store.open(db) as store, occupied(db, boards, f"watch {path}"):
        night = NightWatch(store, boards, plan, lambda text: None if quiet else click.echo(text, err=True))
        night.begin()
        report = night_report(night, [], "")
    if as_json:
        print_json(report)
    else:
        show(report)
    if folder is not None:
        write(report, folder)
    return ALERTS if has_alerts(report) else 0


@watch.command()
@problem_options
@click.option("--device", default="", help="cpu, cuda:N; default: this machine's.")
@click.option("--other", default="", help="Another board to try: cuda:N.")
@database_option
@json_option
def explain(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], device: str, other: str, db: str, as_json: bool,
    **words: str,
) -> None:  # fmt: skip
    """Try what can be swapped for a problem that changed: its old machine code, another compiler or board."""
    from tuner.devices.detect import find
    from tuner.night.explaining import explain as tried
    from tuner.night.plan import PlanItem
    from tuner.store import Store

    named = (words[name] for name in ("dtype", "layout", "precision", "epilogue"))
    catalogue, problem = parse_problem(target, dims, sets, *named)
    candidate = PlanItem(problem, catalogue, regime=words["regime"])
    with Store.open(db) as store:
        swaps = tried(store, find(device), [find(other)] if other else [], candidate)
    if as_json:
        print_json([asdict(swap) for swap in swaps])
        return
    rows = [
        (
            swap.name, duration(swap.time_s) if swap.time_s else "-",
            f"{swap.change:+.2%}" if swap.change is not None else "-", swap.told,
        )
        for swap in swaps
    ]  # fmt: skip
    table(f"Swaps for {problem}", ("swap", "champion", "against now", "what it tells"), rows)


@click.command()
@click.argument("which", default="LAST", metavar="LAST|DATE")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write HTML, Markdown and JSON here.")
@database_option
@json_option
def report(which: str, folder: Path | None, db: str, as_json: bool) -> None:
    """Make the report of an earlier night again from the database."""
    from tuner.night.reporting import latest, markdown, write
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        night = latest(store, which)
    if as_json:
        print_json(night)
    elif folder is None:
        click.echo(markdown(night), nl=False)
    if folder is not None:
        write(night, folder)


def show(report: Mapping[str, Any]) -> None:
    """A report's alerts and sentinels on stdout."""
    rows = []
    for sentinel in report["sentinels"]:
        pairs = [sentinel.get(f"against_{other}") for other in ("library", "before")]
        ratios = [f"{pair['speedup']:.3f} ({pair['verdict']})" if pair else "-" for pair in pairs]
        time_s = sentinel.get("champion", {}).get("time_s")
        champion = duration(time_s) if time_s else "-"
        rows.append((sentinel["problem"], sentinel["board"][:12], champion, *ratios))
    table("Sentinels", ("problem", "board", "champion", "x library", "x the one before"), rows)
    show_alerts(report)


def show_alerts(report: Mapping[str, Any]) -> None:
    """A report's alerts on stdout."""
    if report["no_sentinels"]:
        click.echo(f"no sentinels in this night: {report['no_sentinels']}")
    for alert in report["alerts"]:
        problems = alert["problems"]
        names = ", ".join(problem["problem"] for problem in problems[:5])
        click.echo(f"ALERT {alert['told']}: {alert['change']:+.2%}, {len(problems)} problems: {names}")
        click.echo(f"  {alert['why']}; since {alert['since'][:16]}; {alert['command']}")
    for champion in report["behind"]:
        click.echo(f"ALERT {champion['problem']}: slower than the champion before; {champion['command']}")
    for text in report["rolled_back"]:
        click.echo(f"gone back by itself: {text}")


def show_last(db: str, as_json: bool) -> None:
    """Says how the last night ended.

    Raises:
        NothingFound: None began.
    """
    from tuner.night.reporting import last_night
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        night = last_night(store)
    if as_json:
        print_json(night)
        return
    begun = night["begun_at"][:19].replace("T", " ")
    which = f"the night of {begun} (UTC, {night['plan']} on {night['host']})"
    if night["ended_at"] is None:
        click.echo(
            f"{which} did not end: it still runs, or was killed, or the machine went down; the same command "
            f"goes on"
        )
        return
    counts = ", ".join(f"{count} {state}" for state, count in night["counts"].items()) or "no problems"
    stopped = f"; stopped: {night['stopped']}" if night["stopped"] else ""
    unseen = f"; no sentinels: {night['no_sentinels']}" if night["no_sentinels"] else ""
    ended = night["ended_at"][:19].replace("T", " ")
    click.echo(
        f"{which} ended {ended}: {counts}, {night['alerts']} alerts{unseen}{stopped}; `tuner report LAST` "
        f"tells the rest"
    )

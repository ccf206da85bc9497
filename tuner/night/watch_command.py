"""``tuner watch``: sentinels alone, and a problem night by night; ``tuner report``: a night again."""

from pathlib import Path

import click

from tuner.cli.formatting import print_json
from tuner.cli.options import data_options, named_problem, problem_options
from tuner.devices.detect import find_all
from tuner.errors import NothingFound
from tuner.night import reporting, stored
from tuner.night.plan import read_plan
from tuner.night.watching import NightWatch
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study.locks import occupied


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
@data_options
def watch_plan(path: Path, device: str, folder: Path | None, quiet: bool, db: str, as_json: bool) -> int:
    """Time the problems of a plan, and say what changed. Exit code 4 tells of alerts."""
    plan = read_plan(path)
    boards = find_all(device or plan.device)
    with Store.open(db) as store, occupied(db, boards, f"watch {path}"):
        night = NightWatch(
            store, boards, plan, lambda text: None if quiet else click.echo(text, err=True), alone=True
        )
        night.begin()
        report = reporting.night_report(night, [], "")
    reporting.show_report(report, as_json)
    if folder is not None:
        reporting.write(report, folder)
    return reporting.ALERTS if reporting.has_alerts(report) else 0


@watch.command()
@problem_options
@click.option("--device", default="", help="Name or uuid of a board; every board unless given.")
@data_options
def explain(device: str, db: str, as_json: bool, **options: str) -> None:
    """Show a problem's sentinels night by night, with what may explain a change.

    Times, clocks, versions, and whether the champion's machine code was new.
    """
    problem = ProblemKey.of(named_problem(options)[1])
    with Store.open(db, read_only=True) as store:
        nights = [
            reporting.sentinel_json(night)
            for night in stored.sentinels(store, problem, options["regime"])
            if night.process == 1 and device in ("", night.device.name, night.device.uuid)
        ]
    if not nights:
        raise NothingFound(f"no night has timed {problem}; `tuner watch PLAN.toml` times what has a champion")
    reporting.show_report(nights, as_json, "nights.md")


@click.command()
@click.argument("which", default="LAST", metavar="LAST|DATE")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write HTML, Markdown and JSON here.")
@data_options
def report(which: str, folder: Path | None, db: str, as_json: bool) -> None:
    """Make the report of an earlier night again from the database."""
    with Store.open(db, read_only=True) as store:
        night = reporting.latest(store, which)
    if as_json or folder is None:
        reporting.show_report(night, as_json)
    if folder is not None:
        reporting.write(night, folder)


def show_last(db: str, as_json: bool) -> None:
    """Says how the last night ended.

    Raises:
        NothingFound: None began.
    """
    with Store.open(db, read_only=True) as store:
        night = reporting.last_night(store)
    if as_json:
        print_json(night)
    else:
        click.echo(" ".join(reporting.rendered("last.txt", night=night).split()))

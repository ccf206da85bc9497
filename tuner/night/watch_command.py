"""``tuner watch``: sentinels alone, and why something changed; ``tuner report``: a night's report again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, parse_problem, problem_options
from tuner.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.devices.detect import DetectedDevice
    from tuner.night.plan import Plan
    from tuner.night.watching import NightWatch
    from tuner.store import Store


#: Exit code if a watch has alerts.
ALERTS = 4


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


@watch.command()
@click.argument("path", metavar="PLAN.toml", type=click.Path(path_type=Path))
@click.option("--device", default="", help="Use this device, not the plan's: cpu, cuda, cuda:N.")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write the report to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@database_option
@json_option
def plan(path: Path, device: str, folder: Path | None, quiet: bool, db: str, as_json: bool) -> int:
    """Time the problems of a plan, and say what changed. Exit code 4 tells of alerts."""
    from tuner.devices.detect import find_all
    from tuner.night.plan import read_plan
    from tuner.night.reporting import has_alerts, night_report
    from tuner.store import Store
    from tuner.study.locks import occupied

    read = read_plan(path)
    found = find_all(device or read.device)
    with Store.open(db) as store, occupied(db, found, f"watch {path}"):
        night = night_watch(store, found, read, quiet)
        night.begin(read)
        report = night_report(night, [], "")
    if as_json:
        print_json(report)
    else:
        show(report)
    if folder is not None:
        write_pages(report, folder)
    return ALERTS if has_alerts(report) else 0


def night_watch(store: Store, boards: Sequence[DetectedDevice], plan: Plan, quiet: bool) -> NightWatch:
    """The sentinels of a plan's night on this machine's boards; says on stderr what goes on."""
    from tuner.night.watching import NightWatch

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    return NightWatch(store, boards, str(plan.path), plan.watch, say)


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
    found = find(device)
    boards = [find(other)] if other else []
    with Store.open(db) as store:
        swaps = tried(store, found, boards, PlanItem(problem, catalogue, regime=words["regime"]))
    if as_json:
        print_json([each.to_json() for each in swaps])
        return
    rows = [
        (
            each.name, duration(each.time_s) if each.time_s else "-",
            f"{each.change:+.2%}" if each.change is not None else "-", each.told,
        )
        for each in swaps
    ]  # fmt: skip
    table(f"Swaps for {problem}", ("swap", "champion", "against now", "what it tells"), rows)


@click.command()
@click.argument("which", default="LAST", metavar="LAST|DATE")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write HTML, Markdown and JSON here.")
@database_option
@json_option
def report(which: str, folder: Path | None, db: str, as_json: bool) -> None:
    """Make the report of an earlier night again from the database."""
    from tuner.night.pages import markdown
    from tuner.night.reporting import latest
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        found = latest(store, which)
    if as_json:
        print_json(found)
    elif folder is None:
        click.echo(markdown(found), nl=False)
    if folder is not None:
        write_pages(found, folder)


def write_pages(found: Mapping[str, Any], folder: Path) -> None:
    """Writes a report's files and names them."""
    from tuner.night.pages import write

    for path in write(found, folder):
        click.echo(str(path), err=True)


def show(found: Mapping[str, Any]) -> None:
    """A report's alerts and sentinels on stdout."""
    rows = []
    for each in found["sentinels"]:
        against = [each.get(f"against_{other}") for other in ("library", "before")]
        told = [f"{one['speedup']:.3f} ({one['verdict']})" if one else "-" for one in against]
        time_s = each.get("champion", {}).get("time_s")
        rows.append((each["problem"], each["board"][:12], duration(time_s) if time_s else "-", *told))
    table("Sentinels", ("problem", "board", "champion", "x library", "x the one before"), rows)
    show_alerts(found)


def show_alerts(found: Mapping[str, Any]) -> None:
    """A report's alerts on stdout."""
    if found["no_sentinels"]:
        click.echo(f"no sentinels in this night: {found['no_sentinels']}")
    for alert in found["alerts"]:
        names = ", ".join(each["problem"] for each in alert["problems"][:5])
        click.echo(f"ALERT {alert['told']}: {alert['change']:+.2%}, {len(alert['problems'])} problems: {names}")
        click.echo(f"  {alert['why']}; since {alert['since'][:16]}; {alert['command']}")
    for each in found["behind"]:
        click.echo(f"ALERT {each['problem']}: slower than the champion before; {each['command']}")
    for text in found["rolled_back"]:
        click.echo(f"gone back by itself: {text}")


def install(
    how: str, path: Path, *, at: str, until: str | None, notify: str, db: str, folder: Path | None,
    system: bool, write: bool,
) -> None:  # fmt: skip
    """Prints, or writes, what begins a plan every night.

    Raises:
        InputError: There is no such plan, or a path that cannot be named there.
    """
    from tuner.night import installing
    from tuner.night.plan import clock_time, read_plan

    read_plan(path)
    clock_time(at)
    where = (folder or Path("nights")).absolute()
    if any("\n" in str(each) for each in (path.absolute(), where)):
        raise InputError("paths of a night are single lines, got one with a line break; rename it")
    setup = installing.Setup(path.absolute(), at, _absolute(db), where, until or "", notify)
    if how == "cron":
        _cron(setup, write)
    else:
        _systemd(setup, system, write)


def _absolute(db: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    if not db.startswith(prefix) or db.startswith(f"{prefix}/"):
        return db
    return f"{prefix}{Path(db.removeprefix(prefix)).absolute()}"


def _systemd(setup: Any, system: bool, write: bool) -> None:
    from tuner.night import installing

    units, folder = installing.systemd(setup, system), installing.units_folder(system)
    if not write:
        for name, text in units.items():
            click.echo(f"# {folder / name}\n{text}")
        _beside(setup, write)
        click.echo("# --write puts these files there; then:")
    else:
        for path in installing.written(folder, units):
            click.echo(f"wrote {path}")
        _beside(setup, write)
        click.echo("now run:")
    for command in installing.enabling(setup, system):
        click.echo(f"  {command}")


def _cron(setup: Any, write: bool) -> None:
    from tuner.night import installing

    lines = installing.cron(setup)
    if write:
        (path,) = installing.written(setup.folder, {"crontab": lines})
        _beside(setup, write)
        click.echo(f"wrote {path}; now run:\n  (crontab -l 2>/dev/null; cat {path}) | crontab -")
        return
    click.echo(lines)
    _beside(setup, write)
    click.echo("# --write puts these files there; `crontab -e` takes the lines")


def _beside(setup: Any, write: bool) -> None:
    """The environment's file, readable by its owner alone, and rules for the log."""
    from tuner.night import installing

    if write:
        for path in installing.written(setup.folder, {"night.env": setup.environment()}, 0o600):
            click.echo(f"wrote {path}")
        for path in installing.written(setup.folder, {"logrotate.conf": installing.logrotate(setup)}):
            click.echo(f"wrote {path}; link it into /etc/logrotate.d to have the log rotated")
        return
    click.echo(f"# {setup.environment_file} (mode 600)\n{setup.environment(shown=True)}")
    click.echo(f"# {setup.folder / 'logrotate.conf'}\n{installing.logrotate(setup)}")


def tell_last(db: str, as_json: bool) -> None:
    """Says how the last night ended.

    Raises:
        NothingFound: None began.
    """
    from tuner.night.reporting import last_night
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        found = last_night(store)
    if as_json:
        print_json(found)
        return
    begun = found["begun_at"][:19].replace("T", " ")
    if found["ended_at"] is None:
        click.echo(
            f"the night of {begun} (UTC, {found['plan']} on {found['host']}) did not end: it still runs, or "
            f"was killed, or the machine went down; the same command goes on"
        )
        return
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items()) or "no problems"
    stopped = f"; stopped: {found['stopped']}" if found["stopped"] else ""
    unseen = f"; no sentinels: {found['no_sentinels']}" if found["no_sentinels"] else ""
    ended = found["ended_at"][:19].replace("T", " ")
    click.echo(
        f"the night of {begun} (UTC, {found['plan']} on {found['host']}) ended {ended}: {counts}, "
        f"{found['alerts']} alerts{unseen}{stopped}; `tuner report LAST` tells the rest"
    )

"""``tuner nightly``: a plan's problems until a deadline, on this machine or on a cluster.

``tuner watch``: sentinels alone, and a problem night by night; ``tuner report``: a night again.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import click

from tuner.cli.best import check_plot, plot_front, show_front
from tuner.cli.formatting import print_json
from tuner.cli.options import DEVICE, data_options, named_problem, problem_options, run_options, together
from tuner.devices.detect import find_all
from tuner.errors import EnvironmentTrouble, InputError, Interrupted, NothingFound, TunerError
from tuner.extras import provided, required
from tuner.lookup.asking import database_url
from tuner.night import reporting, stored
from tuner.night.night import LocalRunner, run_surveys, with_wanted
from tuner.night.plan import LONGEST_NIGHT_H, Plan, PlanItem, clock_time, outside, read_plan, seconds_until
from tuner.night.scheduler import Night
from tuner.night.watching import NightWatch
from tuner.night.work import NightItem, Place, Runner
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study import dry_run, job_files
from tuner.study.locks import occupied
from tuner.study.progress import INTERRUPTED, Events, ProgressView

#: The variable with the secret that signs a report.
SECRET_VARIABLE = "TUNER_NOTIFY_SECRET"
#: Exit code of a night that was begun outside of its window.
OUTSIDE = 5


# An implementation of the extension point "cluster" has `options`, a decorator that adds its options to the
# command, `--cluster` and `--job-script` among them; `print_job(cluster)`; and `run(plan, db, options, seed,
# deadline_s, printer)`, which returns a `NightResult` of a night on the workers of a cluster.


@click.command()
@click.argument("path", metavar="PLAN.toml", required=False, type=click.Path(path_type=Path))
@click.option("--from", "since", metavar="HH:MM", help="Begin at this local time or later, before --until.")
@click.option("--until", metavar="HH:MM", help="Stop at this local time; overrides the plan's.")
@click.option("--seconds", type=float, help="Wall time of the whole run; overrides the plan's.")
@click.option("--device", shell_complete=DEVICE, default="", help="In place of the plan's: cpu, cuda, cuda:N.")
@click.option("--seed", type=int, help="Seed of the searches; random by default.")
@click.option("--again", is_flag=True, help="Continue problems that are done, too.")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write plots of fronts to this folder.")
@click.option("--report", type=click.Path(path_type=Path), metavar="DIR", help="Write the night's report here.")
@click.option("--notify", default="", metavar="URL", help="Post the report; TUNER_NOTIFY_SECRET signs it.")
@click.option("--install", type=click.Choice(["systemd", "cron"]), help="Show what begins it every night.")
@click.option("--at", default="22:00", show_default=True, metavar="HH:MM", help="For --install: when to begin.")
@click.option("--system", is_flag=True, help="With --install systemd: for the machine, not the user.")
@click.option("--write", is_flag=True, help="With --install: write the files.")
@click.option("--last", is_flag=True, help="Say how the last night ended.")
@together(*(cluster.options for cluster in provided("cluster")))
@run_options
def nightly(path: Path | None, db: str, as_json: bool, **options: Any) -> int:
    """Tune the problems of a plan until a deadline.

    If the plan allows more time than there is, problems share it in slices: the next slice goes to the problem
    with the largest recent gain, and a problem that gains no more is stopped. Problems that are done for this
    device, driver and source are skipped, so the same command continues a night that was interrupted.

    Each night begins with its sentinels: champions beside the library, to see what became slower. Exit code 4
    tells of alerts, 1 of a problem that failed, 5 that this is not the time for a night: outside of --from to
    --until, or more than 14 hours before --until. On a cluster each worker times its own board.
    """
    if options["last"]:
        show_last(db, as_json)
    elif options.get("job_script"):
        required("cluster").print_job(options["cluster"])
    elif path is None:
        raise InputError("a night takes a plan, got none; name a TOML file, or --last")
    elif options["install"]:
        install(path, db, options)
    elif options["dry_run"]:
        _preview(path, db, options, as_json)
    else:
        return _night(path, db, as_json, options)
    return 0


def _night(path: Path, db: str, as_json: bool, options: Mapping[str, Any]) -> int:
    """Runs a night, and tells how it went; returns the exit code."""
    begun_s = time.monotonic()
    if options["notify"]:
        reporting.check_url(options["notify"])
    plan = _plan(path, options)
    why_not = outside(plan, datetime.now())
    if why_not:
        click.echo(f"tuner: {why_not}", err=True)
        return OUTSIDE
    result = _run(plan, db, options, begun_s)
    show_night(result, as_json)
    for item in result.items:
        plot_front(item.front, item.after, options["folder"])
    if options["report"] is not None:
        reporting.write(result.report, options["report"])
    if options["notify"]:
        trouble = reporting.notify(options["notify"], result.report, os.environ.get(SECRET_VARIABLE, ""))
        if trouble:
            click.echo(f"tuner: {trouble}", err=True)
    if result.stopped is not None:
        raise result.stopped
    failed = [str(item.item.problem) for item in result.items if item.state == "failed"]
    if failed and not reporting.has_alerts(result.report):
        raise NothingFound(f"{len(failed)} of {len(result.items)} problems failed: {', '.join(failed[:5])}")
    return reporting.ALERTS if reporting.has_alerts(result.report) else 0


def _plan(path: Path, options: Mapping[str, Any]) -> Plan:
    """The plan, with the times that the command line gives."""
    plan, seconds = read_plan(path), options["seconds"]
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"--seconds is a number above 0, got {seconds}; give e.g. 28800")
    since, until = (clock_time(options[name]) if options[name] else None for name in ("since", "until"))
    plan = replace(
        plan, seconds=plan.seconds if seconds is None else seconds, since=since or plan.since,
        until=until or plan.until,
    )  # fmt: skip
    if plan.since is not None and plan.until is None:
        raise InputError("--from goes with --until, got --from alone; say when the night ends")
    return plan


def _run(plan: Plan, db: str, options: Mapping[str, Any], begun_s: float) -> NightResult:
    """The night itself."""
    check_plot(options["folder"], any(len(item.objectives) > 1 for item in plan.items))
    deadline_s = _deadline_s(plan, begun_s)
    seed = secrets.randbits(32) if options["seed"] is None else options["seed"]
    with Events(options["log"], options["verbose"]) as events:
        events.tell("begin", plan=str(plan.path), problems=len(plan.items), db=db)
        printer = Printer(options["quiet"], events, max(1, len(plan.items)))
        job_files.count(0, printer.of)
        # A cluster's workers may work in other folders.
        run, url = (required("cluster").run, database_url(db)) if options.get("cluster") else (_run_here, db)
        return cast(NightResult, run(plan, url, options, seed, deadline_s, printer))


def _deadline_s(plan: Plan, begun_s: float) -> float | None:
    """When to stop, by `time.monotonic`; reading a plan of many problems counts."""
    limits = [begun_s + plan.seconds] if plan.seconds is not None else []
    if plan.until is not None:
        limits.append(time.monotonic() + seconds_until(plan.until, datetime.now()))
    return min(limits, default=None)


def _preview(path: Path, db: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Prints what a night would do with each problem, and the time that it asks for."""
    begun_s, plan = time.monotonic(), _plan(path, options)
    deadline_s = _deadline_s(plan, begun_s)
    with dry_run.database(db) as store:
        device = dry_run.detected(options["device"] or plan.defaults.device, store).info
        night = Night(plan, store, again=options["again"])
        problems: list[dict[str, Any]] = [
            {
                "problem": str(problem.item.problem), "state": problem.state, "seconds": problem.item.seconds,
                "trials": problem.item.trials, "why": problem.why,
            }
            for problem in night.preview(Place("here", device))
        ]  # fmt: skip
    surveys = [{"operation": item.operation.name, "seconds": item.table.seconds} for item in plan.surveys]
    counts = Counter(str(problem["state"]) for problem in problems)
    waiting = [problem for problem in problems if problem["state"] in ("to tune", "stale")]
    limits_s: list[Any] = [row["seconds"] for row in (*waiting, *surveys)]
    asked_s = None if None in limits_s else sum(limits_s)
    given_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
    data = {
        "problems": problems, "counts": counts, "surveys": surveys, "asked_s": asked_s, "given_s": given_s,
        "device": device.name,
    }  # fmt: skip
    reporting.show_report(data, as_json, "preview.md")


def _run_here(
    plan: Plan, db: str, options: Mapping[str, Any], seed: int, deadline_s: float | None, printer: Printer
) -> NightResult:
    """Runs a night on this machine: sentinels, surveys, problems."""
    devices = find_all(options["device"] or plan.defaults.device)
    with Store.open(db) as store, occupied(db, devices, f"nightly {plan.path}"):
        plan = with_wanted(plan, store, devices[0])
        night = Night(plan, store, seed, deadline_s, options["again"], printer.slice, printer.warn)
        watch = NightWatch(store, devices, plan, printer.say)
        watch.begin(night.left_s())
        runner = LocalRunner(store, devices, printer.view, watch.versions())

        def surveys() -> None:
            for text in run_surveys(plan, store, devices[0], deadline_s):
                printer.say(text)

        return conducted(night, runner, watch, printer, surveys)


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


def conducted(
    night: Night, runner: Runner, watch: NightWatch, printer: Printer, before: Callable[[], None]
) -> NightResult:
    """Runs a night to its end, or until it is stopped, and notes its report.

    Args:
        night: The night.
        runner: Where its work runs.
        watch: Its sentinels.
        printer: Tells people what goes on.
        before: What comes before its problems.
    """
    result = NightResult()
    try:
        for item in night.run(runner, before):
            result.items.append(item)
            printer.end(item)
    except (Interrupted, EnvironmentTrouble) as error:
        result.stopped = error
    except KeyboardInterrupt:
        result.stopped = Interrupted(INTERRUPTED)
    stopped = str(result.stopped or "")
    result.items += night.unfinished(stopped)
    places = {item.key: place for place, item in enumerate(night.plan.items)}
    result.items.sort(key=lambda item: places[item.item.key])
    result.report = reporting.night_report(watch, result.items, stopped)
    return result


@dataclass
class Printer:
    """Tells people of a night while it goes on, but not of problems not reached: there may be thousands.

    Attributes:
        quiet: True to print nothing.
        events: Where events go.
        of: Number of problems.
    """

    quiet: bool
    events: Events = field(default_factory=Events)
    of: int = 1
    _done: int = field(default=0, init=False)

    def say(self, text: str) -> None:
        """Prints a line."""
        if not self.quiet:
            print(text, file=sys.stderr)  # not by click: it writes past the line that is redrawn

    def warn(self, text: str) -> None:
        """Prints a warning, whether quiet or not."""
        print(f"tuner: {text}", file=sys.stderr)

    def slice(self, item: PlanItem, slices: int, gain: float | None) -> None:
        """Prints that a problem had a slice."""
        gained = "" if gain is None else f", {gain:.1%} gained"
        self.say(f"{item.problem}: slice {slices}{gained}")

    def end(self, item: NightItem) -> None:
        """Prints a problem's result, and tells it to the events."""
        self.events.tell("problem", **item.to_json())
        self._done += 1
        job_files.count(self._done, max(self.of, self._done))
        if item.state != "not reached":
            self.say(", ".join(filter(None, [f"{item.item.problem}: {item.state}", item.why])))

    @contextlib.contextmanager
    def view(self, item: PlanItem) -> Iterator[Callable[..., None]]:
        """Shows the progress of a study."""
        self.say(f"{item.problem}:")
        with ProgressView(item.problem, self.quiet) as view:
            yield self.events.follow(item.problem, view)


def show_night(result: NightResult, as_json: bool) -> None:
    """Prints a night's report, the fronts of its problems, and its workers in JSON if there were some."""
    reporting.show_report(result.report | ({"fleet": result.snapshot} if result.snapshot else {}), as_json)
    for item in result.items:
        if item.front is not None and item.after is not None and not as_json:
            show_front(item.front, item.after)


# --- what begins a night -------------------------------

#: Environment that a night takes over from whoever installs it, if it is set.
KEPT = ("TUNER_CACHE", "TUNER_LOCKS", "CUDA_VISIBLE_DEVICES", SECRET_VARIABLE)


def install(path: Path, db: str, options: Mapping[str, Any]) -> None:
    """Prints, or writes, what begins a plan every night.

    Args:
        path: The plan.
        db: URL of the database.
        options: The command's.

    Raises:
        InputError: There is no such plan, or a path that cannot be named there.
    """
    read_plan(path)
    clock_time(options["at"])
    plan, folder = path.absolute(), (options["report"] or Path("nights")).absolute()
    if "\n" in f"{plan}{folder}":
        raise InputError("paths of a night are single lines, got one with a line break; rename it")
    name = f"tile-tuner-{re.sub(r'[^a-zA-Z0-9_-]', '-', plan.stem)}"
    places, commands = _cron(folder) if options["install"] == "cron" else _systemd(name, options["system"])
    values = {
        "plan": plan, "at": options["at"], "folder": folder, "name": name, "user": getpass.getuser(),
        "log": folder / "night.log", "environment": folder / "night.env", "limit_s": LONGEST_NIGHT_H * 3600,
        "command": _command(plan, folder, options), "system": options["system"],
    }  # fmt: skip
    files = {folder / "night.env": _environment(database_url(db), hidden=not options["write"])}
    files |= {file: reporting.rendered(template, **values) for template, file in places.items()}
    for file, text in files.items():
        if options["write"]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            file.chmod(0o600 if file.suffix == ".env" else 0o644)
            file.write_text(text, encoding="utf-8")
        click.echo(f"wrote {file}" if options["write"] else f"# {file}\n{text}")
    click.echo("now run:" if options["write"] else "# --write puts these files there; then:")
    click.echo("\n".join(f"  {command}" for command in commands))


def _command(plan: Path, folder: Path, options: Mapping[str, Any]) -> list[str]:
    """The night's command."""
    since = options["since"] or (options["at"] if options["until"] else "")
    named = {"from": since, "until": options["until"], "notify": options["notify"]}
    more = [f"--{key}={value}" for key, value in named.items() if value]
    return [
        sys.executable, "-m", "tuner", "nightly", str(plan), *more, "--report", f"{folder}/reports", "--quiet",
    ]  # fmt: skip


def _systemd(name: str, system: bool) -> tuple[dict[str, Path], list[str]]:
    """Templates of units with their places, of the machine or the user, and the commands that begin them."""
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    folder = Path("/etc/systemd/system") if system else Path(root) / "systemd" / "user"
    units = {f"night.{kind}": folder / f"{name}.{kind}" for kind in ("service", "timer")}
    scope, linger = ("", []) if system else (" --user", [f"loginctl enable-linger {getpass.getuser()}"])
    return units, [f"systemctl{scope} daemon-reload", f"systemctl{scope} enable --now {name}.timer", *linger]


def _cron(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The lines of a crontab, the night and again after a reboot, and the command that adds them."""
    path = folder / "crontab"
    return {"crontab": path}, [f"(crontab -l 2>/dev/null; cat {shlex.quote(str(path))}) | crontab -"]


def _environment(database: str, hidden: bool) -> str:
    """Text of the environment's file, for passwords belong on no command line; the secret may be hidden."""
    kept = {"TUNER_DB": database} | {name: os.environ[name] for name in KEPT if os.environ.get(name)}
    if hidden and SECRET_VARIABLE in kept:
        kept[SECRET_VARIABLE] = "..."
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in kept.items())


# --- sentinels and reports -----------------------------


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
    boards = find_all(device or plan.defaults.device)
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

"""``tuner watch``: sentinels alone, and swaps that show what changed; ``tuner report``: a night again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, parse_problem, problem_options
from tuner.devices.cuda.nvrtc import NvrtcCompiler
from tuner.devices.detect import DetectedDevice, find, find_all
from tuner.errors import NothingFound
from tuner.night.changes import own_nights
from tuner.night.plan import PlanItem, read_plan
from tuner.night.reporting import (
    ALERTS,
    has_alerts,
    last_night,
    latest,
    markdown,
    night_report,
    rendered,
    write,
)
from tuner.night.sentinels import Code, Pass, Watched, watched_of
from tuner.night.stored import Sentinel
from tuner.night.watching import NightWatch
from tuner.results.record import ProblemKey, new_id
from tuner.results.sentinel import CHAMPION, Terms
from tuner.store import Store
from tuner.study.crowns import reign
from tuner.study.locks import occupied
from tuner.workers.bench import CompiledConfig


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
    plan = read_plan(path)
    boards = find_all(device or plan.device)
    with Store.open(db) as store, occupied(db, boards, f"watch {path}"):
        night = NightWatch(
            store, boards, plan, lambda text: None if quiet else click.echo(text, err=True), alone=True
        )
        night.begin()
        report = night_report(night, [], "")
    if as_json:
        print_json(report)
    else:
        click.echo(markdown(report), nl=False)
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
    """Try what can be swapped for a problem that changed: its old machine code, another board."""
    named = (words[name] for name in ("dtype", "layout", "precision", "epilogue"))
    catalogue, problem = parse_problem(target, dims, sets, *named)
    candidate = PlanItem(problem, catalogue, regime=words["regime"])
    with Store.open(db) as store:
        swaps = list(swaps_of(store, find(device), find(other) if other else None, candidate))
    if as_json:
        print_json([asdict(swap) for swap in swaps])
        return
    rows = [
        (swap.name, duration(swap.time_s or 0.0), f"{swap.change or 0.0:+.2%}", swap.told) if swap.time_s
        else (swap.name, "-", "-", swap.told)
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
    with Store.open(db, read_only=True) as store:
        night = latest(store, which)
    if as_json:
        print_json(night)
    elif folder is None:
        click.echo(markdown(night), nl=False)
    if folder is not None:
        write(night, folder)


def show_last(db: str, as_json: bool) -> None:
    """Says how the last night ended.

    Raises:
        NothingFound: None began.
    """
    with Store.open(db, read_only=True) as store:
        night = last_night(store)
    if as_json:
        print_json(night)
    else:
        click.echo(" ".join(rendered("last.txt", night=night).split()))


# --- swaps ---------------------------------------------

#: Seconds of rounds.
SECONDS = 1.0
COMPILER, NOT_COMPILER = "the compiler is the cause", "the compiler is not the cause"


@dataclass(frozen=True)
class Swap:
    """One thing that was swapped, or could not be.

    Attributes:
        name: What was swapped.
        told: What it tells, or why it could not be tried.
        time_s: The champion's time with it, in seconds.
        change: Share by which that differs from now; below 0 the swap is faster.
    """

    name: str
    told: str
    time_s: float | None = None
    change: float | None = None


def swaps_of(
    store: Store, board: DetectedDevice, other: DetectedDevice | None, candidate: PlanItem
) -> Iterator[Swap]:
    """Times the champion as it is now, and with one thing swapped at a time.

    Args:
        store: The database.
        board: The board.
        other: Another board of the model.
        candidate: The problem.

    Raises:
        NothingFound: It has no champion here.
        DeviceTrouble: The board cannot be used.
    """
    key = ProblemKey.of(candidate.problem)
    problem = watched_of(candidate, reign(store, key, board.info.name, candidate.regime), board.target)
    if problem is None:
        raise NothingFound(f"{candidate.problem} has no champion that can be compiled as the kernels are now")
    problem = replace(problem, contenders=problem.contenders[:1])
    now = _timed(board, problem, {})
    champion = now.players[0]
    yield Swap("nothing: as it is now", champion.wrong or "what the others are compared with", champion.time_s)
    yield _old_code(board, problem, now, own_nights(store, now))
    if other is None:
        yield Swap("another board", "none was named; --other cuda:N tries it")
    else:
        there = "faster there: this board or its clocks are the cause", "no faster there"
        yield _compared(f"another board: {other.spec}", _timed(other, problem, {}), now, *there)


def _timed(board: DetectedDevice, problem: Watched, code: Code) -> Sentinel:
    """Times a problem in fresh processes; code that is given takes the place of the champion's own."""
    return Pass(new_id(), 1, Terms(SECONDS)).over(board, code, [problem])[0]


def _compared(name: str, swapped: Sentinel, now: Sentinel, faster: str, same: str) -> Swap:
    ours, theirs = now.players[0].time_s, swapped.players[0].time_s
    if not (ours and theirs):
        return Swap(name, swapped.players[0].wrong or now.players[0].wrong or "it was not timed")
    change = theirs / ours - 1.0
    return Swap(name, faster if change < -now.bound else same, theirs, change)


def _old_code(board: DetectedDevice, problem: Watched, now: Sentinel, history: Sequence[Sentinel]) -> Swap:
    """The machine code that an earlier night ran, from the cache."""
    name, present = "the machine code of before", now.players[0]
    earlier = [
        player
        for night in history
        if (player := night.player(CHAMPION)) is not None and player.binary_hash != present.binary_hash
        if (player.kernel, dict(player.config)) == (present.kernel, dict(present.config))
    ]
    if not earlier:
        return Swap(name, f"every earlier night ran the same machine code: {NOT_COMPILER}")
    rendered, compiler = problem.contenders[0].rendered(problem.problem), earlier[-1].compiler
    binary = NvrtcCompiler().get(rendered, now.device.architecture, compiler)
    if binary is None:
        return Swap(name, f"it was made by {compiler}, and is no longer in the cache")
    code: Code = {rendered.hash: CompiledConfig(rendered, binary.code, binary.report)}
    swapped = _timed(board, problem, code)
    return _compared(name, swapped, now, f"faster: {COMPILER}", f"not faster: {NOT_COMPILER}")

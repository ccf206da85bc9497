"""``tuner watch``: sentinels alone, and swaps that show what changed; ``tuner report``: a night again."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, parse_problem, problem_options
from tuner.declare.kernel import Rendered
from tuner.declare.language import source_language
from tuner.devices.cuda.nvrtc import CubinCache, read_report
from tuner.devices.detect import DetectedDevice, find, find_all, kind_of
from tuner.errors import NothingFound
from tuner.night.plan import PlanItem, read_plan
from tuner.night.reporting import ALERTS, has_alerts, last_night, latest, markdown, night_report, write
from tuner.night.sentinels import Pass, SentinelCode, Watched, watched_of
from tuner.night.watching import NightWatch
from tuner.results.record import ProblemKey, new_id
from tuner.results.sentinel import CHAMPION, LIBRARY, Sentinel, Terms
from tuner.store import Store, watched
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
    named = (words[name] for name in ("dtype", "layout", "precision", "epilogue"))
    catalogue, problem = parse_problem(target, dims, sets, *named)
    candidate = PlanItem(problem, catalogue, regime=words["regime"])
    with Store.open(db) as store:
        swaps = swaps_of(store, find(device), [find(other)] if other else [], candidate)
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


# --- swaps ---------------------------------------------

#: Seconds of rounds.
SECONDS = 1.0
BEFORE_CODE = "the machine code of before"
COMPILER, NOT_COMPILER = "the compiler is the cause", "the compiler is not the cause"


@dataclass(frozen=True)
class Swap:
    """One thing that was swapped, or could not be.

    Attributes:
        name: What was swapped.
        told: What it tells, or why it could not be tried.
        time_s: The champion's time with it, in seconds.
        change: Share by which that differs from now; below 0 the swap is faster.
        library: Share by which the library's time differs from now.
    """

    name: str
    told: str
    time_s: float | None = None
    change: float | None = None
    library: float | None = None


def swaps_of(
    store: Store, board: DetectedDevice, others: Sequence[DetectedDevice], candidate: PlanItem
) -> list[Swap]:
    """Times the champion as it is now, and with one thing swapped at a time.

    Args:
        store: The database.
        board: The board.
        others: Other boards of the model.
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
    now = _timed(board, problem)
    history = [
        night
        for night in watched.sentinels(store, key, candidate.regime)
        if night.process == 1 and night.device.uuid == now.device.uuid
    ]
    rendered, champion = problem.contenders[0].rendered(problem.problem), now.players[0]
    nvcc: CompiledConfig | str = "none is installed for it"
    if source_language(board.target).has_launch and kind_of(board.spec).times_pass:
        nvcc = _by_nvcc(rendered, now.device.architecture)

    def swapped(name: str, code: CompiledConfig | str, faster: str, same: str) -> Swap:
        """Machine code, by its times over the library's, so that clocks do not matter."""
        if isinstance(code, str):
            return Swap(name, code)
        return _compared(name, _timed(board, problem, code), now, True, faster, same)

    here, there = "faster there: this board or its clocks are the cause", "no faster there"
    before = _of_before(rendered, history, now)
    swaps = [
        Swap("nothing: as it is now", champion.wrong or "what the others are compared with", champion.time_s),
        swapped(BEFORE_CODE, before, f"faster: {COMPILER}", f"not faster: {NOT_COMPILER}"),
        swapped("another compiler", nvcc, f"nvcc's is faster: {COMPILER}", "nvcc's is no faster"),
    ]
    for other in others:
        timed = _timed(other, problem)
        swaps.append(_compared(f"another board: {other.spec}", timed, now, False, here, there))
    if not others:
        swaps.append(Swap("another board", "none was named; --other cuda:N tries it"))
    return [*swaps, _older_library(history, now)]


def _timed(board: DetectedDevice, problem: Watched, instead: CompiledConfig | None = None) -> Sentinel:
    """Times a problem in fresh processes, maybe by machine code in the place of the champion's own."""
    code = SentinelCode(board.opening)
    if instead is not None:
        code.put(problem, problem.contenders[0], instead)
    return Pass(new_id(), 1, Terms(SECONDS)).over(board, code, [problem])[0]


def _compared(name: str, swapped: Sentinel, now: Sentinel, by_library: bool, faster: str, same: str) -> Swap:
    ours, theirs, beside = now.players[0], swapped.players[0], None
    if not (ours.time_s and theirs.time_s):
        return Swap(name, theirs.wrong or ours.wrong or "it was not timed")
    if by_library:
        library, other = now.player(LIBRARY), swapped.player(LIBRARY)
        beside = (other.time_s or 1.0) / (library.time_s or 1.0) - 1.0 if library and other else 0.0
    change = theirs.time_s / ours.time_s / (1.0 + (beside or 0.0)) - 1.0
    return Swap(name, faster if change < -now.bound else same, theirs.time_s, change, beside)


def _of_before(rendered: Rendered, history: Sequence[Sentinel], now: Sentinel) -> CompiledConfig | str:
    """The machine code that an earlier night ran, from the cache; or why there is none."""
    present = now.players[0]
    earlier = [
        player
        for night in reversed(history)
        if (player := night.player(CHAMPION)) is not None and player.binary_hash != present.binary_hash
        if (player.kernel, dict(player.config)) == (present.kernel, dict(present.config))
    ]
    if not earlier:
        return f"every earlier night ran the same machine code: {NOT_COMPILER}"
    binary = CubinCache().get(rendered, now.device.architecture, earlier[0].compiler)
    if binary is None:
        return f"it was made by {earlier[0].compiler}, and is no longer in the cache"
    return CompiledConfig(rendered, binary.code, binary.report)


def _by_nvcc(rendered: Rendered, architecture: str) -> CompiledConfig | str:
    """Machine code by the CUDA toolkit's own compiler; or why there is none."""
    if shutil.which("nvcc") is None:
        return "none is installed; nvcc would be used"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(rendered.text, encoding="utf-8")
        command = [
            "nvcc",
            "-cubin",
            f"-arch={architecture}",
            "-std=c++17",
            "-Xptxas=-v",
            "-o",
            str(cubin),
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"nvcc refuses the source: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
        code = cubin.read_bytes()
    report = replace(read_report(done.stderr, code, rendered.entry), compiler="nvcc")
    return CompiledConfig(rendered, code, report)


def _older_library(history: Sequence[Sentinel], now: Sentinel) -> Swap:
    """The older library: its stored times, since another version cannot be loaded beside this one."""
    name, version = "the library of before", now.versions.get("library", "")
    library = now.player(LIBRARY)
    older = [
        (night.versions.get("library"), player.time_s)
        for night in history
        if night.versions.get("library", "") != version and (player := night.player(LIBRARY)) is not None
    ]
    if not older or library is None or not library.time_s:
        return Swap(name, f"every earlier night had {version or 'no library'}")
    before, then_s = older[-1]
    change = (then_s or library.time_s) / library.time_s - 1.0
    return Swap(name, f"{before}, by its stored times: the library was {change:+.2%} of now", library=change)

"""``tuner tune``: runs one study."""

import statistics
import sys
from collections.abc import Sequence
from typing import Any, cast

import click

from tuner.cli import options as cli
from tuner.cli.best import check_plot, plot_front, show_front
from tuner.cli.formatting import answer_rows, config_text, duration, pairs, print_json, table, versus
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup import Answer
from tuner.python.tuned import champion_answer, why_none
from tuner.python.tuning import run
from tuner.results.measurement import headline
from tuner.results.objectives import classes_text, read_objectives
from tuner.results.record import Champion
from tuner.study import dry_run
from tuner.study.progress import Events, ProgressView, Result, where_time_went
from tuner.study.requests import StudyOptions, asked, budget, competitors


@click.command()
@cli.problem_options
@cli.kernels_option("Tune only this kernel; repeat for several.")
@cli.device_option("cpu, cuda:N, or cuda for every GPU; default: one GPU, else the CPU.")
@click.option("--seconds", type=float, help="Wall time of this run.  [default: 60 without --trials]")
@click.option("--trials", type=int, help="Trials of the study in all, earlier runs included.")
@click.option("--seed", type=int, help="Seed of the search; random by default.")
@click.option(
    "--sampler", shell_complete=cli.SAMPLER, default="tile", show_default=True, help="Search strategy."
)
@cli.objective_option("time", "Objectives to minimise; several keep a Pareto front.")
@cli.error_limit_option
@click.option(
    "--bits", metavar="keep|library|any|CLASS",
    help="Crown only configs whose results have the champion's bits, the library's, or those of a class.",
)  # fmt: skip
@cli.invariant_option(
    "Tune all M up to this one, with one config for each range: no row changes its bits with M."
)
@cli.folder_option("Write a plot of the front to this folder.")
@cli.run_options
def tune(as_json: bool, **options: Any) -> None:
    """Find the fastest kernel and config for a problem, and store it.

    OPERATION DIM... is e.g. "gemm 1024 1024 1024". FILE.py declares a kernel of your own; --set gives its
    dims. FILE.py is executed: tune only files that you trust. Run the same command again to continue a study.
    """
    check_plot(options["folder"], len(read_objectives(options["objective"])) > 1)
    catalogue, problem = cli.named_problem(options)
    if options["dry_run"]:
        previewed(catalogue, problem, options, as_json)
        return
    # Study options are among those of the command; it reads no other.
    study = asked(catalogue, problem, cast(StudyOptions, options))
    view = ProgressView(problem, options["quiet"], study.request.trials)
    with Events(options["log"], options["verbose"]) as events, view:
        events.tell("begin", problem=str(problem), device=study.request.found[0].info.name, db=study.db)
        result = run(study, events.follow(problem, view), warned)
        champion = champion_answer(result.champion, catalogue).to_json() if result.champion else None
        events.tell("end", problem=str(problem), stopped=result.stopped, champion=champion)
    _show(problem, result, champion, as_json)
    plot_front(result.front, result.champion, options["folder"])


def _show_ranges(ranges: Sequence[Champion]) -> None:
    rows = [
        (
            " x ".join(map(str, own.problem.dims.values())), duration(own.measurement.time_s or 0.0),
            f"{one.speedup:.3f}" if one.speedup else "-", f"{own.kernel} {config_text(own.config)}",
        )
        for one in ranges for own in [one.record]
    ]  # fmt: skip
    speedups = [one.speedup for one in ranges]
    mean = f"; {statistics.geometric_mean(speedups):.3f} x library in the mean" if all(speedups) else ""
    title = f"Rows of class {ranges[-1].record.measurement.rows}, whatever their number{mean}"
    table(title, ("up to", "time", "x library", "config"), rows)


def warned(text: str) -> None:
    """Prints a warning."""
    print(f"tuner: {text}", file=sys.stderr)  # not by click: it writes past the line that is redrawn


def previewed(catalogue: Catalogue, problem: Problem, options: dict[str, Any], as_json: bool) -> None:
    """Prints what a study would search: spaces, what each rule leaves out, what is done, and the time."""
    seconds, trials = budget(options["seconds"], options["trials"])
    with dry_run.database(options["db"]) as store:
        info = dry_run.device_of(options["device"], store)
        kernels = competitors(catalogue, problem, info.kind, options["kernels"])
        preview = dry_run.study_preview(problem, kernels, info, store, options["regime"])
    if as_json:
        print_json({**preview, "seconds": seconds, "trials": trials})
        return
    champion, crowned = preview["champion"], "none yet"
    if champion is not None:
        crowned = f"{champion['kernel']} {config_text(champion['config'])}: {duration(champion['time_s'])}"
    limits = [f"{seconds:g} s"] * bool(seconds) + [f"{trials} trials"] * bool(trials)
    rows = [
        ("device", preview["device"]), ("regime", preview["regime"]), ("champion", crowned),
        ("memory", f"{preview['memory_bytes'] / 2**20:.4g} MiB"), ("budget", " and ".join(limits)),
    ]  # fmt: skip
    pairs(f"A study of {preview['problem']}", rows)
    spaces = [
        (
            space["kernel"], f"{space['combinations']:,}", space["tried"],
            f"{space['legal']:,}{' sampled' if space['sampled'] else ''}",
            "\n".join(f"{rule['combinations']:,}: {rule['rule']}" for rule in space["rejected"]),
        )
        for space in preview["spaces"]
    ]  # fmt: skip
    table("Spaces", ("kernel", "combinations", "tried", "legal configs", "left out by rules, in order"), spaces)


def _show(problem: Problem, result: Result, answer: dict[str, Any] | None, as_json: bool) -> None:
    progress = result.progress
    if result.champion is None or answer is None:
        raise NothingFound(why_none(problem, progress, result.stopped))
    if as_json:
        more = result.front.as_keys() if result.front else {}
        more |= {"ranges": [Answer(one).to_json() for one in result.ranges]} if result.ranges else {}
        print_json(answer | {"dropped": progress.dropped} | more)
        return
    if result.ranges:
        _show_ranges(result.ranges)
        return
    if result.champion.pairs:
        finals = [versus(pair.to_json()) for pair in result.champion.own_pairs]
        table("The finals, interleaved", ("champion against", "takes", "champion is"), finals)
    classes = [("classes of bits", classes_text(progress.classes_s))] if progress.classes_s else []
    pairs(f"Champion of {result.champion.record.problem}", [*answer_rows(answer), *classes])
    if result.front is not None:
        show_front(result.front, result.champion)
    if progress.dropped:
        table("Dropped kernels", ("kernel", "why"), progress.dropped.items())
    if progress.reasons:
        failed = (
            (name, progress.outcomes[name], headline(why)[:200]) for name, why in progress.reasons.items()
        )
        table("Failed trials", ("outcome", "count", "first reason"), failed)
    click.echo(f"{result.stopped}; {where_time_went(progress)}", err=True)

"""``tuner tune``: runs one study."""

from __future__ import annotations

from typing import Any

import click

from tuner.cli.formatting import answer_rows, pairs, print_json, table, versus
from tuner.cli.fronts import check_plot, plot_front, show_front
from tuner.cli.options import (
    KERNEL,
    SAMPLER,
    database_option,
    device_option,
    dry_run_option,
    error_limit_option,
    folder_option,
    json_option,
    objective_option,
    output_options,
    parse_problem,
    problem_options,
)
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup import Answer, staleness
from tuner.python.tuning import run
from tuner.results.measurement import headline
from tuner.results.objectives import read_objectives
from tuner.study.progress import Result
from tuner.study.reporting import Events, ProgressView, where_time_went
from tuner.study.requests import asked, budget, competitors


@click.command()
@problem_options
@click.option(
    "--kernel",
    "kernels",
    shell_complete=KERNEL,
    multiple=True,
    help="Tune only this kernel; repeat for several.",
)
@device_option("cpu, cuda:N, or cuda for every GPU; default: one GPU, else the CPU.")
@click.option("--seconds", type=float, help="Wall time of this run.  [default: 60 without --trials]")
@click.option("--trials", type=int, help="Trials of the study in all, earlier runs included.")
@click.option("--seed", type=int, help="Seed of the search; random by default.")
@click.option("--sampler", shell_complete=SAMPLER, default="tile", show_default=True, help="Search strategy.")
@objective_option
@error_limit_option
@folder_option("Write a plot of the front to this folder.")
@dry_run_option
@output_options
@database_option
@json_option
def tune(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], dtype: str, layout: str, regime: str,
    kernels: tuple[str, ...], device: str, **options: Any,
) -> None:  # fmt: skip
    """Find the fastest kernel and config for a problem, and store it.

    OPERATION DIM... is e.g. "gemm 1024 1024 1024". FILE.py declares a kernel of your own; --set gives its
    dims. FILE.py is executed: tune only files that you trust. Run the same command again to continue a study.
    """
    objectives = read_objectives(options["objective"])
    check_plot(options["folder"], len(objectives) > 1)
    catalogue, problem = parse_problem(
        target, dims, sets, dtype, layout, options["precision"], options["epilogue"]
    )
    if options["dry_run"]:
        previewed(catalogue, problem, kernels, device, regime, options)
        return
    study = asked(
        catalogue,
        problem,
        {
            "device": device, "kernels": kernels, "regime": regime, "seconds": options["seconds"],
            "trials": options["trials"], "seed": options["seed"], "sampler": options["sampler"],
            "objective": options["objective"], "error_limit": options["error_limit"], "db": options["db"],
        },
    )  # fmt: skip
    view = ProgressView(problem, options["quiet"], study.request.trials)
    with Events(options["log"], options["verbose"]) as events, view:
        events.tell("begin", problem=str(problem), device=study.request.found[0].info.name, db=study.db)
        result = run(study, events.follow(problem, view), warned)
        events.tell("end", problem=str(problem), stopped=result.stopped, champion=_told(catalogue, result))
    _show(catalogue, result, options["as_json"])
    plot_front(result.front, result.champion, options["folder"])


def warned(text: str) -> None:
    """Prints a warning."""
    click.echo(f"tuner: {text}", err=True)


def previewed(
    catalogue: Catalogue, problem: Problem, only: tuple[str, ...], device: str, regime: str,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Prints what a study would search."""
    from tuner.cli.previews import show_study
    from tuner.study import dry_run

    seconds, trials = budget(options["seconds"], options["trials"])
    with dry_run.database(options["db"]) as store:
        info = dry_run.device_of(device, store)
        found = dry_run.study_preview(
            problem, competitors(catalogue, problem, info.kind, only), info, store, regime
        )
    show_study({**found, "seconds": seconds, "trials": trials}, options["as_json"])


def _told(catalogue: Catalogue, result: Result) -> dict[str, Any] | None:
    """The champion as `--json` prints it; None without one."""
    if result.champion is None:
        return None
    stale, why = staleness(result.champion.record, catalogue)
    return Answer(result.champion, stale=stale, stale_reason=why).to_json()


def _show(catalogue: Catalogue, result: Result, as_json: bool) -> None:
    progress = result.progress
    if result.champion is None:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in progress.reasons.items())
        if progress.totals["measured"]:
            reasons += "\n  finals: the best did not pass them; `tuner records list` has their records"
        reasons += f"\n  finals: {result.unplayed}" if result.unplayed else ""
        if not progress.trials:
            raise NothingFound(
                f"no trial was finished ({result.stopped}): {where_time_went(progress)}. Give more time by "
                f"--seconds; a run takes 60 by default"
            )
        raise NothingFound(f"none of {progress.trials} trials can be champion:{reasons}")
    answer = _told(catalogue, result)
    assert answer is not None, "there is a champion"
    if as_json:
        print_json(answer | {"dropped": progress.dropped} | (result.front.as_keys() if result.front else {}))
        return
    if result.pairs:
        table(
            "The finals, interleaved",
            ("champion against", "takes", "champion is"),
            [versus(pair.to_json()) for pair in result.pairs],
        )
    pairs(f"Champion of {result.champion.record.problem}", answer_rows(answer))
    if result.front is not None:
        show_front(result.front, result.champion)
    if progress.dropped:
        table("Dropped kernels", ("kernel", "why"), list(progress.dropped.items()))
    if progress.reasons:
        failed = [
            (name, str(progress.outcomes[name]), headline(reason)[:200])
            for name, reason in progress.reasons.items()
        ]
        table("Failed trials", ("outcome", "count", "first reason"), failed)
    if result.unplayed:
        click.echo(f"finals: {result.unplayed}", err=True)
    click.echo(f"{result.stopped}; {where_time_went(progress)}", err=True)

"""``tuner tune``: runs one study."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import answer_rows, clock, pairs, print_json, table, versus
from tuner.cli.fronts import check_plot, plot_front, show_front
from tuner.cli.options import (
    chosen_kernels,
    database_option,
    error_limit_option,
    json_option,
    objective_option,
    parse_problem,
    problem_options,
)
from tuner.cli.progress_view import ProgressView
from tuner.declare.catalogue import Catalogue
from tuner.devices.detect import find_all
from tuner.errors import InputError, NothingFound
from tuner.lookup import Answer, staleness
from tuner.results.error_limit import read_error_limit
from tuner.results.objectives import read_objectives
from tuner.study.progress import Progress, Request, Result

if TYPE_CHECKING:
    from tuner.store import Store


@click.command()
@problem_options
@click.option("--kernel", "kernels", multiple=True, help="Tune only this kernel; repeat for several.")
@click.option(
    "--device", default="", help="cpu, cuda:N, or cuda for every GPU; default: one GPU, else the CPU."
)
@click.option("--seconds", type=float, help="Wall time of this run.  [default: 60 without --trials]")
@click.option("--trials", type=int, help="Trials of the study in all, earlier runs included.")
@click.option("--seed", type=int, help="Seed of the search; random by default.")
@click.option("--sampler", default="tile", show_default=True, help="Search strategy.")
@objective_option
@error_limit_option
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write a plot of the front to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
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
    from tuner.study.setup import check_power

    objectives = read_objectives(options["objective"])
    check_plot(options["folder"], len(objectives) > 1)
    catalogue, problem = parse_problem(target, dims, sets, dtype, layout)
    found = find_all(device)
    check_power(objectives, found[0])
    request = Request(
        problem=problem,
        kernels=chosen_kernels(catalogue, problem, found[0].target, kernels),
        found=found,
        regime=regime,
        seed=secrets.randbits(32) if options["seed"] is None else options["seed"],
        sampler=options["sampler"],
        storage_url=options["db"],
        objectives=objectives,
        error_limit=read_error_limit(options["error_limit"]),
        drop=not kernels,
        **_budget(options["seconds"], options["trials"]),
    )
    result = run_study(request, options["db"], quiet=options["quiet"])
    _show(catalogue, result, options["as_json"])
    plot_front(result.front, result.champion, options["folder"])


def _budget(seconds: float | None, trials: int | None) -> dict[str, Any]:
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"--seconds is a number above 0, got {seconds}; give e.g. 60")
    if trials is not None and trials < 1:
        raise InputError(f"--trials is 1 or more, got {trials}; give e.g. 100")
    return {"seconds": 60.0 if seconds is None and trials is None else seconds, "trials": trials}


@contextmanager
def told_of_clocks(store: Store) -> Iterator[None]:
    """Warns of records dated in the future before their champions meet others."""
    from tuner.store import retracting

    found = retracting.ahead(store)
    if found is not None:
        click.echo(f"tuner: {found}; {retracting.AHEAD_REMEDY}", err=True)
    yield


def run_study(request: Request, url: str, quiet: bool) -> Result:
    """Runs a study with its progress shown, holding the device for this database."""
    from tuner.store import Store
    from tuner.study.locks import occupied
    from tuner.study.opening import run_study

    with (
        Store.open(url) as store,
        told_of_clocks(store),
        occupied(url, request.found, f"tune {request.problem}"),
        ProgressView(request.problem, quiet) as view,
    ):
        return run_study(request, store, view)


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
    stale, why = staleness(result.champion.record, catalogue)
    answer = Answer(result.champion, stale=stale, stale_reason=why).to_json()
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
            (name, str(progress.outcomes[name]), reason.splitlines()[0][:200])
            for name, reason in progress.reasons.items()
        ]
        table("Failed trials", ("outcome", "count", "first reason"), failed)
    if result.unplayed:
        click.echo(f"finals: {result.unplayed}", err=True)
    click.echo(f"{result.stopped}; {where_time_went(progress)}", err=True)


def where_time_went(progress: Progress) -> str:
    """One line that says what the seconds of a run were spent on."""

    def listed(*names: str) -> str:
        told = [
            f"{name} {progress.spent_s[name]:.1f} s" for name in names if progress.spent_s.get(name, 0) >= 0.05
        ]
        return ", ".join(told) or "nothing"

    wall = listed("opening", "measuring", "compiling", "searching", "bookkeeping", "finals")
    device, beside = listed("load", "verify", "time", "power"), listed("compile", "thinking", "storing")
    return f"{clock(progress.elapsed_s)} in all: {wall}; of measuring: {device}; beside it: {beside}"

"""``tuner ladder``: each kernel of an operation, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import (
    KERNEL,
    database_option,
    device_option,
    folder_option,
    json_option,
    parse_problem,
    problem_options,
    writable_folder,
)
from tuner.declare.catalogue import builtin
from tuner.devices.detect import find, kind_of
from tuner.errors import InputError
from tuner.report.ladder_plan import ladder_of, read_ladder_plan
from tuner.report.ladder_result import Ladder, limits_text, rung_table, slower_texts

#: Seconds for tuning each step, unless said otherwise.
DEFAULT_SECONDS = 10.0


@click.command()
@problem_options
@click.option(
    "--kernel",
    "kernels",
    shell_complete=KERNEL,
    multiple=True,
    help="Measure only this kernel; repeat for several.",
)
@device_option("cpu or cuda:N; default: the GPU if there is one.")
@click.option("--seconds", type=float, help=f"Seconds for tuning each step.  [default: {DEFAULT_SECONDS:g}]")
@click.option("--classic", is_flag=True, help="Take each step's declared config instead of tuning it.")
@click.option("--end-to-end", is_flag=True, help="Time allocation and copies to and from the device, too.")
@click.option(
    "--sweeps/--no-sweeps",
    default=None,
    help="Time block sizes one by one, or do not.  [default: only with -o; those of a plan]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the searches.")
@folder_option("Write an HTML page and plots to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@database_option
@json_option
def ladder(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], dtype: str, layout: str, regime: str,
    kernels: tuple[str, ...], device: str, seconds: float | None, sweeps: bool | None, folder: Path | None,
    **options: Any,
) -> None:  # fmt: skip
    """Measure every kernel of an operation in order, and show what each step gains.

    OPERATION DIM... is e.g. "gemm 4096 4096 4096". PLAN.toml (configs/ladder-*.toml) reproduces the table of a
    published report, with its figures beside ours.
    """
    from tuner.report.ladder import Climb
    from tuner.store import Store
    from tuner.study.locks import occupied

    if seconds is not None and not seconds > 0:
        raise InputError(f"--seconds is above 0, got {seconds}; give e.g. 10")
    if folder is not None:
        writable_folder(folder)
    words = (sets, dtype, layout, options["precision"], options["epilogue"])
    if target.endswith(".toml"):
        if dims or kernels or any(words):
            raise InputError(
                f"a ladder plan says itself what to measure, got more beside {target}; leave it away"
            )
        plan = read_ladder_plan(Path(target), builtin())
        found = find(device or kind_of(plan.target).first)
        if found.target != plan.target:
            raise InputError(f"{target} is for {plan.target}, got --device {found.spec}; choose another device")
    else:
        catalogue, problem = parse_problem(target, dims, *words)
        found = find(device)
        swept = folder is not None if sweeps is None else sweeps
        plan = ladder_of(catalogue, problem, found.target, kernels, sweeps=swept)
    if sweeps is False:
        plan = replace(plan, sweeps=())
    if seconds is None and not (options["classic"] or plan.classic):
        seconds = DEFAULT_SECONDS

    def report(text: str) -> None:
        if not options["quiet"]:
            click.echo(text, err=True)

    with Store.open(options["db"]) as store, occupied(options["db"], (found,), f"ladder {plan.title}"):
        end_to_end, seed = options["end_to_end"], options["seed"]
        climbed = Climb(plan, found, store, regime, seconds, end_to_end, seed, report).run()
    if folder is not None:
        from tuner.report.pages import write_ladder

        for path in write_ladder(climbed, folder):
            click.echo(str(path), err=True)
    if options["as_json"]:
        print_json(climbed.rows())
    else:
        show(climbed)


def show(climbed: Ladder) -> None:
    """Prints tables on stdout: the rungs of each shape, libraries and limits."""
    for problem in climbed.problems:
        table(f"{problem} on {climbed.device.name}, {climbed.regime}", *rung_table(climbed, problem))
        for text in slower_texts(climbed, problem):
            click.echo(text)
    if climbed.sweeps:
        _show_sweeps(climbed)
    if limits := limits_text(climbed.limits):
        click.echo(limits)


def _show_sweeps(climbed: Ladder) -> None:
    """Prints a table for each sweep: a row for each problem, the report's figure in brackets."""
    for sweep in climbed.plan.sweeps:
        points = [point for point in climbed.sweeps if point.sweep is sweep]
        times_s = {(point.problem, point.value): point.measurement.time_s for point in points}
        values = [value for value in sweep.values if any(point.value == value for point in points)]
        rows = []
        for problem in dict.fromkeys(point.problem for point in points):
            sizes, cells = tuple(size for _, size in problem.shape), []
            for value in values:
                time_s = times_s.get((problem, value))
                reported = sweep.published_ms.get((sizes, value))
                cells.append(
                    (duration(time_s) if time_s else "-") + (f" ({reported:g} ms)" if reported else "")
                )
            rows.append((" x ".join(map(str, sizes)), *cells))
        title = f"{sweep.label} over {sweep.parameter}" + (" (the report's)" if sweep.published_ms else "")
        table(title, ("shape", *map(str, values)), rows)

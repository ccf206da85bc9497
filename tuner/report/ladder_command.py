"""``tuner ladder``: each kernel of an operation, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import config_text, duration, print_json, rate, speed, table
from tuner.cli.options import (
    DEVICE,
    KERNEL,
    database_option,
    json_option,
    parse_problem,
    problem_options,
    writable_folder,
)
from tuner.declare.catalogue import builtin
from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice, find
from tuner.errors import InputError
from tuner.report.ladder_plan import ladder_of, read_ladder_plan
from tuner.report.rungs import Ladder, LadderPlan, slower_steps
from tuner.results.measurement import headline

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
@click.option(
    "--device", shell_complete=DEVICE, default="", help="cpu or cuda:N; default: the GPU if there is one."
)
@click.option("--seconds", type=float, help=f"Seconds for tuning each step.  [default: {DEFAULT_SECONDS:g}]")
@click.option("--classic", is_flag=True, help="Take each step's declared config instead of tuning it.")
@click.option("--end-to-end", is_flag=True, help="Time allocation and copies to and from the device, too.")
@click.option(
    "--sweeps/--no-sweeps",
    default=None,
    help="Time block sizes one by one, or do not.  [default: only with -o; those of a plan]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the searches.")
@click.option(
    "-o", "folder", type=click.Path(path_type=Path), help="Write an HTML page and plots to this folder."
)
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@database_option
@json_option
def ladder(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], dtype: str, layout: str, regime: str,
    **options: Any,
) -> None:  # fmt: skip
    """Measure every kernel of an operation in order, and show what each step gains.

    OPERATION DIM... is e.g. "gemm 4096 4096 4096". PLAN.toml (configs/ladder-*.toml) reproduces the table of a
    published report, with its figures beside ours.
    """
    seconds, folder = options["seconds"], options["folder"]
    if seconds is not None and not seconds > 0:
        raise InputError(f"--seconds is above 0, got {seconds}; give e.g. 10")
    sweeps = folder is not None if options["sweeps"] is None else options["sweeps"]
    if folder is not None:
        writable_folder(folder)
    plan, found = _plan(
        target, dims, (sets, dtype, layout, options["precision"], options["epilogue"]),
        options["device"],
        (options["kernels"], sweeps),
    )  # fmt: skip
    if options["sweeps"] is False:
        plan = replace(plan, sweeps=())
    classic = (options["classic"] or plan.classic) and seconds is None
    climbed = _climbed(plan, found, regime, None if classic else seconds or DEFAULT_SECONDS, options)
    if folder is not None:
        from tuner.report.plots import write_page

        for path in write_page(climbed, folder):
            click.echo(str(path), err=True)
    if options["as_json"]:
        print_json(climbed.rows())
    else:
        show(climbed)


def _plan(
    target: str, dims: tuple[str, ...], rest: tuple[tuple[str, ...], str, str, str, str], device: str,
    choice: tuple[tuple[str, ...], bool],
) -> tuple[LadderPlan, DetectedDevice]:  # fmt: skip
    """The plan that the arguments name, and the device to measure it on."""
    (sets, *words), (kernels, sweeps) = rest, choice
    if not target.endswith(".toml"):
        catalogue, problem = parse_problem(target, dims, sets, *words)
        found = find(device)
        return ladder_of(catalogue, problem, found.target, kernels, sweeps=sweeps), found
    if dims or sets or any(words) or kernels:
        raise InputError(f"a ladder plan says itself what to measure, got more beside {target}; leave it away")
    plan = read_ladder_plan(Path(target), builtin())
    found = find(device or ("cpu" if plan.target == "cpu" else "cuda:0"))
    if found.target != plan.target:
        raise InputError(f"{target} is for {plan.target}, got --device {found.spec}; choose another device")
    return plan, found


def _climbed(
    plan: LadderPlan, found: DetectedDevice, regime: str, seconds: float | None, options: Mapping[str, Any]
) -> Ladder:
    from tuner.report.ladder import Climb, Request
    from tuner.store import Store
    from tuner.study.locks import occupied

    said: Callable[[str], None] = lambda text: None if options["quiet"] else click.echo(text, err=True)
    request = Request(
        plan, found, regime, seconds, end_to_end=options["end_to_end"], seed=options["seed"]
    )  # fmt: skip
    with Store.open(options["db"]) as store, occupied(options["db"], (found,), f"ladder {plan.title}"):
        return Climb(request, store, said).run()


def show(climbed: Ladder) -> None:
    """Prints tables on stdout: the rungs of each shape, libraries and limits."""
    rows = climbed.rows()
    for problem in dict.fromkeys(rung.problem for rung in climbed.rungs):
        own = [row for row in rows if row["problem"] == problem.to_json()]
        if own:
            table(f"{problem} on {climbed.device.name}, {climbed.regime}", *_rungs(own, problem, climbed))
            for number in slower_steps(own):
                why = next(
                    rung.step.slower for rung in climbed.rungs if rung.step.label == own[number]["label"]
                )
                said = f": {why}" if why else ""
                click.echo(f"{own[number]['label']} is slower than the step before{said}")
    if climbed.sweeps:
        _show_sweeps(climbed)
    limits = climbed.limits
    told = [
        f"reading {limits.read_gbps:.0f} GB/s" if limits.read_gbps else "",
        f"copying {limits.copy_gbps:.0f} GB/s" if limits.copy_gbps else "",
        f"multiply-adds {limits.tflops:.3g} TFLOPS" if limits.tflops else "",
    ]
    if any(told):
        click.echo(f"Limits measured here: {', '.join(each for each in told if each)}")


def _rungs(
    rows: Sequence[Mapping[str, Any]], problem: Problem, climbed: Ladder
) -> tuple[list[str], list[list[str]]]:
    library = climbed.library_of(problem)
    name = library.name if library else "library"
    columns = ["step", "time", "speed", "step x", "total x", f"of {name}", "of limit", "noise"]
    columns += ["error: max, mean"]
    ends = any("end_to_end" in row for row in rows)
    told = any(row["published"] for row in rows)
    columns += [*(["end to end"] if ends else []), *(["published"] if told else [])]
    shown = [_cells(row, ends, told) for row in rows]
    for each in climbed.libraries:
        time_s = each.measurement.time_s
        if each.problem == problem and time_s:
            moved, flops = problem.work.bytes, problem.work.flops
            told_rate = speed(flops, moved, time_s)
            limit = climbed.limits.least_s(problem) / time_s
            error = each.measurement.error
            errors = f"{error.max_rel:.1e}, {error.mean_rel:.1e}" if error else ""
            cells = [each.name, duration(time_s), told_rate, "", "", "", f"{limit:.1%}" if limit else ""]
            shown.append([*cells, f"{each.measurement.noise:.1%}", errors, *[""] * (ends + told)])
    return columns, shown


def _cells(row: Mapping[str, Any], ends: bool, told: bool) -> list[str]:
    time_s, error = row["time_s"], row["error"]
    label = f"{row['label']}\n  {config_text(row['config'])}"
    published = [published_text(row["published"])] if told else []
    if time_s is None:
        said = f"{row['outcome']}: {headline(row['reason'])[:80]}"
        return [label, said, *[""] * (7 + ends), *published]
    whole = row.get("end_to_end")
    return [
        label,
        duration(time_s),
        rate(row),
        *(f"{row[key]:.2f}" if row[key] else "" for key in ("step_speedup", "total_speedup")),
        *(f"{row[key]:.1%}" if row[key] else "" for key in ("of_library", "of_limit")),
        f"{row['noise']:.1%}",
        f"{error['max_rel']:.1e}, {error['mean_rel']:.1e}" if error else "",
        *([_end_to_end(whole)] if ends else []),
        *published,
    ]


def _end_to_end(whole: Mapping[str, float] | None) -> str:
    """Time of a run from the host's memory and back, and its parts."""
    if not whole:
        return ""
    parts = [
        f"{name.replace('_', ' ')} {duration(whole[name])}" for name in whole if name not in ("kernel", "total")
    ]
    return f"{duration(whole['total'])}\n  {', '.join(parts)}"


def published_text(published: Mapping[str, Any] | None) -> str:
    """A report's figures of a step in one line."""
    if published is None:
        return ""
    shape = "x".join(str(size) for size in published["shape"])
    parts = [
        f"{published['ms']:g} ms" if "ms" in published else "",
        f"{published['gflops']:g} GFLOPS" if "gflops" in published else "",
        f"{published['gbps']:g} GB/s" if "gbps" in published else "",
        f"{published['of_library']:.1%} of the library" if "of_library" in published else "",
        f"mean error {published['mean_rel']:.2g}" if "mean_rel" in published else "",
    ]
    return f"{', '.join(each for each in parts if each)} ({shape}, {published['hardware']})"


def _show_sweeps(climbed: Ladder) -> None:
    """Prints a table for each sweep: a row for each problem, the report's figure in brackets."""
    for sweep in climbed.plan.sweeps:
        points = [each for each in climbed.sweeps if each.sweep is sweep]
        values = [value for value in sweep.values if any(each.value == value for each in points)]
        rows = []
        for problem in dict.fromkeys(each.problem for each in points):
            own = {each.value: each.measurement for each in points if each.problem == problem}
            sizes = tuple(size for _, size in problem.shape)
            cells = []
            for value in values:
                time_s = own[value].time_s if value in own else None
                told = sweep.published_ms.get((sizes, value))
                cells.append((duration(time_s) if time_s else "-") + (f" ({told:g} ms)" if told else ""))
            rows.append((" x ".join(map(str, sizes)), *cells))
        title = f"{sweep.label} over {sweep.parameter}" + (" (the report's)" if sweep.published_ms else "")
        table(title, ("shape", *map(str, values)), rows)

"""``tuner survey``: times of many configs at many problems, for a model."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import clock, fields, print_json
from tuner.declare import catalogue
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import InputError, NothingFound
from tuner.extras import required
from tuner.model.survey_design import CONFIGS, PER_PROBLEM, Ranges, SurveyRequest
from tuner.store import Store
from tuner.study import dry_run as previews
from tuner.study.locks import occupied
from tuner.study.progress import Events

if TYPE_CHECKING:
    from tuner.model.survey import SurveyProgress

#: Seconds between two lines of progress.
REPORT_EVERY_S = 10.0


@click.command()
@click.argument("target", metavar="OPERATION|FILE.py")
@cli.device_option("cpu or cuda:N; one GPU where there is one.")
@click.option("--seconds", type=float, default=600.0, show_default=True, help="Wall time of this run.")
@click.option("--shapes", type=click.Path(path_type=Path), help="A plan: its problems come first.")
@click.option("--only-shapes", is_flag=True, help="No drawn problems: those of --shapes alone.")
@click.option("--most", "mosts", multiple=True, metavar="DIM=SIZE", help="The longest of a dim that is drawn.")
@click.option("--layout", "layouts", multiple=True, help="Only this layout; may be given several times.")
@click.option("--dtype", default="", help="Element type; the operation's first unless given.")
@cli.epilogue_option
@cli.precision_option
@cli.kernels_option("Only this kernel; may be given several times.")
@cli.usual_regime_option
@click.option("--configs", type=click.IntRange(1), default=CONFIGS, show_default=True, help="Configs in all.")
@click.option(
    "--per-problem", type=click.IntRange(1), default=PER_PROBLEM, show_default=True,
    help="Configs at a problem, at the most.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of problems and configs.")
@click.option(
    "--fit/--no-fit", "refitted", default=True, show_default=True,
    help="Fit a model to all that was surveyed, at the end; needs LightGBM.",
)  # fmt: skip
@cli.run_options
def survey(
    target: str, refitted: bool, dry_run: bool, verbose: bool, quiet: bool, log: Path | None, db: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Time many configs of OPERATION at many problems, for a model that answers at any shape.

    Problems are drawn: dims log-uniformly from 1 to 16384 (65536 those that are summed over), half of them
    round, all layouts. The same command again goes on where the last one ended.
    """
    if not 0 < options["seconds"] < math.inf:
        raise InputError(f"--seconds is a number above 0, got {options['seconds']}; give e.g. 600")
    if dry_run:
        with previews.database(db) as store:
            known = preview(_request(target, options, previews.detected(options["device"], store)), store)
    else:
        request = _request(target, options, find(options["device"]))
        with Events(log, verbose) as events:
            known = _run(request, db, events, quiet, refitted)
    print_json(known) if as_json else fields(f"A survey of {target}", known)


def _run(request: SurveyRequest, db: str, events: Events, quiet: bool, refitted: bool) -> dict[str, Any]:
    """Runs a survey, with its device held for its database; returns how far it came."""
    from tuner.model.survey import refit_if_possible, run_survey

    name, reported_s = request.operation.name, 0.0

    def report(progress: SurveyProgress) -> None:
        nonlocal reported_s
        events.tell("progress", **asdict(progress))
        if not quiet and progress.elapsed_s - reported_s > REPORT_EVERY_S:
            reported_s = progress.elapsed_s
            counts = f"{progress.timings} timings at {progress.problems} problems"
            click.echo(f"{clock(progress.elapsed_s)}: {counts}", err=True)

    with Store.open(db) as store, occupied(db, [request.device], f"survey {name}"):
        events.tell("begin", operation=name, device=request.device.info.name, seconds=request.seconds)
        progress = run_survey(request, store, report)
        if refitted and progress.problems:
            click.echo(refit_if_possible(store, request), err=True)
        events.tell("end", **asdict(progress))
    if not progress.timings and not progress.before:
        raise NothingFound("nothing was timed in that time; give more by --seconds")
    return asdict(progress)


def _request(target: str, options: dict[str, Any], device: DetectedDevice) -> SurveyRequest:
    is_file = target.endswith(".py")
    known = catalogue.from_file(Path(target)) if is_file else catalogue.builtin()
    declared = sorted({kernel.operation for kernel in known.kernels}) if is_file else [target]
    if len(declared) > 1:
        raise InputError(
            f"a survey is of one operation, {target} has kernels of {' and '.join(declared)}; split it"
        )
    operation, layouts = known.operation(declared[0]), options["layouts"]
    of = {name: options[name] for name in ("dtype", "precision", "epilogue")}
    smallest = [
        operation.problem(dict.fromkeys(operation.dims, 1), layout=of_it, **of) for of_it in layouts or ("",)
    ]
    serving = known.serving(smallest[0], device.target, options["kernels"])
    kernels = [kernel for kernel in serving if smallest[0].precision in kernel.scope.precisions]
    if not kernels:
        raise InputError(f"no kernel computes {smallest[0]} on a {device.target}; a survey needs one")
    # The extension point "problems of a plan" reads plans: it takes a path and an operation.
    plan = options["shapes"]
    problems = required("problems of a plan")(plan, operation) if plan is not None else ()
    if options["only_shapes"] and not problems:
        raise InputError("--only-shapes goes with --shapes PLAN.toml, got no shapes; name a plan")
    most = {name: cli.whole(name, size) for name, _, size in (text.partition("=") for text in options["mosts"])}
    if not most.keys() <= set(operation.dims) or min(most.values(), default=1) < 1:
        raise InputError(
            f"--most is DIM=SIZE with one of {', '.join(operation.dims)} and a size of 1 or more, got {most}"
        )
    return SurveyRequest(
        operation, tuple(kernels), device, options["seconds"],
        options["regime"] or kind_of(device.target).survey.regime, options["seed"],
        Ranges.on(device.target, most=most, layouts=layouts, **of), problems, not options["only_shapes"],
        options["configs"], options["per_problem"],
    )  # fmt: skip


def preview(request: SurveyRequest, store: Store) -> dict[str, Any]:
    """What a survey would time, and how much of it is known already."""
    operation, device = request.operation.name, request.device.info.name
    before = store.survey_parts(operation, device, request.regime)
    return {
        "operation": operation, "device": device, "regime": request.regime,
        "kernels": [kernel.name for kernel in request.kernels], "configs": request.configs,
        "own_problems": len(request.problems), "drawn": request.drawn, "per_problem": request.per_problem,
        "timings_before": sum(len(part.timings) for part in before), "seconds": request.seconds,
    }  # fmt: skip

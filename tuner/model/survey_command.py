"""``tuner survey``: times of many configs at many problems, for a model."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import clock, pairs, print_json
from tuner.cli.options import (
    DEVICE,
    KERNEL,
    database_option,
    dry_run_option,
    json_option,
    output_options,
    usual_regime_option,
)
from tuner.cli.previews import previewed_survey
from tuner.declare import catalogue
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import InputError, NothingFound
from tuner.extras import required
from tuner.model.survey_design import CONFIGS, DEEP, PER_PROBLEM
from tuner.study.reporting import Events

if TYPE_CHECKING:
    from tuner.model.survey import SurveyProgress
    from tuner.model.survey_design import SurveyRequest

#: Seconds between two lines of progress.
TOLD_EVERY_S = 10.0


@click.command()
@click.argument("target", metavar="OPERATION|FILE.py")
@click.option("--device", shell_complete=DEVICE, default="", help="cpu or cuda:N; one GPU where there is one.")
@click.option("--seconds", type=float, default=600.0, show_default=True, help="Wall time of this run.")
@click.option("--shapes", type=click.Path(path_type=Path), help="A plan: its problems come first.")
@click.option("--only-shapes", is_flag=True, help="No drawn problems: those of --shapes alone.")
@click.option("--most", "mosts", multiple=True, metavar="DIM=SIZE", help="The longest of a dim that is drawn.")
@click.option("--layout", "layouts", multiple=True, help="Only this layout; may be given several times.")
@click.option("--dtype", default="", help="Element type; the operation's first unless given.")
@click.option(
    "--kernel", "kernels", shell_complete=KERNEL, multiple=True,
    help="Only this kernel; may be given several times.",
)  # fmt: skip
@usual_regime_option
@click.option("--configs", type=click.IntRange(1), default=CONFIGS, show_default=True, help="Configs in all.")
@click.option(
    "--per-problem", type=click.IntRange(1), default=PER_PROBLEM, show_default=True,
    help="Configs at a problem, at the most.",
)  # fmt: skip
@click.option(
    "--deep", type=click.FloatRange(0, 1), default=DEEP, show_default=True,
    help="Share of problems at which the search goes on for some turns.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of problems and configs.")
@click.option(
    "--fit/--no-fit", "refitted", default=True, show_default=True,
    help="Fit a model to all that was surveyed, at the end; needs LightGBM.",
)  # fmt: skip
@dry_run_option
@output_options
@database_option
@json_option
def survey(
    target: str, refitted: bool, dry_run: bool, verbose: bool, quiet: bool, log: Path | None, db: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Time many configs of OPERATION at many problems, for a model that answers at any shape.

    Problems are drawn: dims log-uniformly from 1 to 16384 (65536 those that are summed over), half of them
    round, all layouts. The same command again goes on where the last one ended.
    """
    from tuner.model.surveying import run

    if not 0 < options["seconds"] < math.inf:
        raise InputError(f"--seconds is a number above 0, got {options['seconds']}; give e.g. 600")
    if dry_run:
        previewed_survey(db, options["device"], lambda found: _request(target, options, found), as_json)
        return
    request = _request(target, options, find(options["device"]))
    told_s = time.monotonic()

    def report(progress: SurveyProgress) -> None:
        nonlocal told_s
        if not quiet and time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            click.echo(f"{clock(progress.elapsed_s)}: {_line(progress)}", err=True)

    say = (lambda text: click.echo(text, err=True)) if refitted else None
    with Events(log, verbose) as events:
        progress = run(request, db, report, events, say)
    if as_json:
        print_json(asdict(progress))
        return
    if not progress.timings and not progress.before:
        raise NothingFound("nothing was timed in that time; give more by --seconds")
    pairs(f"Survey of {request.operation.name}", _rows(progress))


def _request(target: str, options: dict[str, Any], found: DetectedDevice) -> SurveyRequest:
    from tuner.model.survey_design import SurveyRequest

    file = Path(target)
    known = catalogue.from_file(file) if file.suffix == ".py" else catalogue.builtin()
    declared = sorted({each.operation for each in known.kernels}) if file.suffix == ".py" else [target]
    if len(declared) > 1:
        raise InputError(
            f"a survey is of one operation, {target} has kernels of {' and '.join(declared)}; split it"
        )
    operation = known.operation(declared[0])
    dtype = options["dtype"] or operation.dtypes[0]
    kernels = known.of(operation.name, found.target, options["kernels"], dtype=dtype)
    plain = SurveyRequest(
        operation, tuple(kernels), found, options["seconds"],
        options["regime"] or kind_of(found.target).survey.regime, options["seed"],
        problems=_listed(options["shapes"], operation), drawn=not options["only_shapes"],
        configs=options["configs"], per_problem=options["per_problem"],
        deep=options["deep"],
    )  # fmt: skip
    if options["only_shapes"] and not plain.problems:
        raise InputError("--only-shapes goes with --shapes PLAN.toml, got no shapes; name a plan")
    return _ranged(plain, operation, options)


def _ranged(plain: SurveyRequest, operation: Operation, options: dict[str, Any]) -> SurveyRequest:
    from dataclasses import replace

    for layout in options["layouts"]:
        operation.problem(dict.fromkeys(operation.dims, 1), options["dtype"], layout)
    ranges = replace(
        plain.limits, most=_sizes(options["mosts"], operation), layouts=options["layouts"],
        dtype=options["dtype"],
    )  # fmt: skip
    return replace(plain, ranges=ranges)


def _sizes(given: tuple[str, ...], operation: Operation) -> dict[str, int]:
    found = {}
    for each in given:
        name, _, size = each.partition("=")
        if name not in operation.dims or not size.isdecimal() or int(size) < 1:
            raise InputError(
                f"--most is DIM=SIZE with one of {', '.join(operation.dims)} and a size of 1 or more, "
                f"got {each!r}"
            )
        found[name] = int(size)
    return found


def _listed(path: Path | None, operation: Operation) -> tuple[Problem, ...]:
    """The problems of a plan that are of the operation.

    The extension point "problems of a plan" reads plans: it takes a path and an operation.
    """
    if path is None:
        return ()
    problems: tuple[Problem, ...] = required("problems of a plan")(path, operation)
    return problems


def _line(progress: SurveyProgress) -> str:
    rate = progress.timings / progress.timing_s if progress.timing_s else 0.0
    return f"{progress.timings} timings at {progress.problems} problems, {rate:.0f} a second of timing"


def _rows(progress: SurveyProgress) -> list[tuple[str, str]]:
    return [
        ("timings", f"{progress.timings} in {clock(progress.elapsed_s)}"),
        (
            "a second",
            f"{progress.timings / max(progress.timing_s, 1e-9):.0f} while timing; {progress.preparing_s:.0f} "
            f"of {progress.timing_s:.0f} s went into arrays and references",
        ),
        ("problems", f"{progress.problems}, and {progress.before} of earlier runs"),
        ("too large", str(progress.skipped)),
        (
            "configs",
            f"{progress.configs}; {progress.compiled} sources, waited {progress.waiting_s:.0f} s",
        ),
        *(
            (name, f"{count} {progress.reasons.get(name, '')}".strip())
            for name, count in progress.outcomes.items()
        ),
    ]

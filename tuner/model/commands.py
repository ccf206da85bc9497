"""``tuner survey``: times of many configs at many problems, for a model.

``tuner model``: fits models of times to surveys, sets right what they say, and shows them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import clock, fields, print_json
from tuner.declare import catalogue
from tuner.declare.folders import in_checkout, write_whole
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import InputError, NothingFound, TunerError
from tuner.extras import required
from tuner.lookup.answers import PREDICTED
from tuner.lookup.asking import kept_open
from tuner.lookup.stale import builtin_now
from tuner.model.calibrate import Cases, spread_of
from tuner.model.fit import refit
from tuner.model.predict import Model, Predictor
from tuner.model.stored import arithmetic_of, model_of, name_of, path_of, regime_of, to_bytes
from tuner.model.survey_design import CONFIGS, PER_PROBLEM, Ranges, SurveyRequest
from tuner.results.record import utc_now
from tuner.store import Store, watched
from tuner.study import dry_run as previews
from tuner.study.locks import occupied
from tuner.study.progress import Events

if TYPE_CHECKING:
    from tuner.model.survey import SurveyProgress

#: Seconds between two lines of progress of a survey.
REPORT_EVERY_S = 10.0

_of_model = cli.together(
    click.argument("operation"),
    cli.device_option('cpu, cuda:N, or a name such as "NVIDIA H200".'),
    click.option("--dtype", default="", help="Of the survey's problems; the operation's first unless given."),
    cli.epilogue_option,
    cli.precision_option,
    cli.usual_regime_option,
    cli.database_option,
)
_output_option = click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="File to write; unless given the one that lookups read, configs/tuned/DEVICE/models/OPERATION.json "
    "or OPERATION-DTYPE.json, or OPERATION-DTYPE-PRECISION.json, with the epilogue behind.",
)  # fmt: skip


@dataclass(frozen=True)
class KnownModel:
    """The model that answers, the database's or the published one, and what it is of as declared now."""

    model: Model
    operation: Operation
    kernels: dict[str, Kernel]

    @classmethod
    def of(cls, operation: str, device: str, regime: str | None, db: str, **of: str) -> KnownModel:
        """Finds it by the words of a command.

        Raises:
            NothingFound: There is none.
            InputError: A published one cannot be read.
            StoreTrouble: The database cannot be read.
        """
        catalogue, where = builtin_now(), previews.device_of(device, kept_open(db))
        declared, regime = catalogue.operation(operation), regime or kind_of(where.kind).survey.regime
        arithmetic = arithmetic_of(declared, **of)
        model = model_of(operation, regime, kept_open(db), where.name, arithmetic)
        if model is not None and model.arithmetic == arithmetic:
            return cls(model, declared, {one.name: one for one in catalogue.of(operation, where.kind)})
        raise NothingFound(
            f"there is no model of {operation} in {arithmetic}, {regime}, for {where.name}; run a survey "
            f"there, and `tuner model fit {operation}` with its --dtype, --epilogue and --precision"
        )


@click.group()
def model() -> None:
    """Models of times: fitted to a survey, they answer for shapes that nobody tuned."""


@model.command()
@_of_model
@click.option("--seed", default=0, show_default=True, help="Of folds and samples.")
@_output_option
def fit(
    operation: str, device: str, regime: str | None, db: str, seed: int, output: Path | None, **of: str
) -> None:
    """Fit a model to the database's surveys, store it there, and publish it.

    Needs LightGBM, which `scripts/tuner model` of a checkout installs.
    """
    cli.writable_file(output)
    catalogue, where = builtin_now(), previews.device_of(device, kept_open(db))
    declared, regime = catalogue.operation(operation), regime or kind_of(where.kind).survey.regime
    with Store.open(db) as store:
        kernels, arithmetic = catalogue.of(operation, where.kind), arithmetic_of(declared, **of)
        made = refit(store, declared, kernels, where, regime, seed, arithmetic)
    fields(f"Model of {made.operation}", _as_json(made))
    _publish(made, declared, output)


@model.command()
@_of_model
@click.argument("pages", nargs=-1, required=True, metavar="PAGE.json...", type=click.Path(path_type=Path))
@_output_option
def calibrate(db: str, pages: tuple[Path, ...], output: Path | None, **where: Any) -> None:
    """Set what a model says of its losses right, by drawn problems.

    PAGE.json is what `tuner lookup-quality OPERATION --drawn N --measure -o PAGE.md` wrote beside its page, at
    problems drawn after the model was fitted. The answers stay the same; the losses and intervals that are said
    become those seen there. Draw anew to see whether they hold.
    """
    cli.writable_file(output)
    known = KnownModel.of(db=db, **where)
    drawn = [read_page(page, known.model) for page in pages]
    cases = cases_of(known, [case for page in drawn for case in page["cases"]])
    corrected, losses = known.model.calibration.corrected(cases)
    origin = {"calibrated_at": utc_now(), "drawn_seeds": [page["seed"] for page in drawn]}
    made = replace(known.model, calibration=corrected, provenance={**known.model.provenance, **origin})
    with Store.open(db) as store:
        name = name_of(known.operation, made.arithmetic)
        watched.add_model(store, name, made.device.name, regime_of(made), to_bytes(made))
    fields(f"Model of {made.operation}", _as_json(made))
    said = "{count} answers lost {true:.1%} in the mean; the model said {before:.1%}, and says {now:.1%} now"
    click.echo(said.format(count=corrected.drawn, **losses))
    _publish(made, known.operation, output)


@model.command()
@_of_model
@cli.json_option
def show(as_json: bool, **where: Any) -> None:
    """What a model was fitted to, and what its answers lost at problems left out."""
    known = KnownModel.of(**where).model
    print_json(_as_json(known)) if as_json else fields(f"Model of {known.operation}", _as_json(known))


def _as_json(known: Model) -> dict[str, Any]:
    """A model as JSON: what it was fitted to, and how much it trusts itself."""
    trust = known.calibration
    return {
        "operation": known.operation, "device": known.device.name, "provenance": dict(known.provenance),
        "margin": trust.margin, "doubt": trust.doubt, "loss": spread_of(trust.losses),
        "drawn": {"problems": trust.drawn, "scale": trust.scale},
    }  # fmt: skip


def _publish(known: Model, operation: Operation, output: Path | None) -> None:
    """Writes a model where lookups read it in a checkout, or where it is asked for."""
    name = name_of(operation, known.arithmetic)
    path = output or (path_of(name, known.device.name) if in_checkout() else None)
    if path is not None:
        write_whole(path, to_bytes(known) + b"\n")
        click.echo(str(path), err=True)


# --- drawn problems ------------------------------------
#
# A survey times few configs at a problem, each for a moment: what its problems say of losses rests on what a
# study is likely to find beyond them, and on the least of many short timings. At drawn problems the answer, a
# study's champion and the library were timed in turn (`tuner lookup-quality --drawn --measure`).

#: Keys of the times of a drawn problem: of the config that was answered, the library, and a study's champion.
TIMES = ("kernel_time_s", "library_time_s", "champion_time_s")


def read_page(path: Path, model: Model) -> dict[str, Any]:
    """Reads a file of drawn problems.

    Args:
        path: The file.
        model: What they are to tell of.

    Raises:
        InputError: The file is none of drawn problems, or is of another device or regime.
    """
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        page, where = {**page, "seed": int(page["seed"])}, (page["device"], page["regime"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{path}: drawn problems are in the .json that `tuner lookup-quality --drawn --measure -o` writes, "
            f"got another file ({error})"
        ) from error
    if where != (model.device.name, regime_of(model)):
        raise InputError(
            f"{path}: drawn problems are to be of {model.device.name}, {regime_of(model)}, "
            f"got {', '.join(where)}"
        )
    return page


def cases_of(known: KnownModel, drawn: Iterable[Mapping[str, Any]]) -> Cases:
    """Drawn problems as cases, but for those at which the model answers otherwise by now, or a time is missing.

    Args:
        known: The model.
        drawn: Cases of pages.

    Raises:
        InputError: Something is no drawn problem.
    """
    predictor, cases = Predictor(known.model, known.kernels), []
    try:
        for case in drawn:
            named = {name: case.get(name, "") for name in ("dtype", "layout", "precision", "epilogue")}
            problem = known.operation.problem(case["shape"], **named)
            kernel_s, library_s, champion_s = (case[name] or math.inf for name in TIMES)
            if case["match"] != PREDICTED or not known.model.knows(problem):
                continue
            prediction = predictor.answer(problem)
            best, answered_s = prediction.best, library_s if prediction.by_library else kernel_s
            is_answer = best and (best.kernel, dict(best.config)) == (case["kernel"], case["config"])
            if is_answer and answered_s < math.inf:
                times_s = kernel_s, library_s, min(kernel_s, library_s, champion_s)
                cases.append((problem, prediction.forecast, times_s))
    except (ValueError, LookupError, TypeError, AttributeError, TunerError) as error:
        raise InputError(f"drawn problems are as `tuner lookup-quality -o` writes them: {error}") from error
    return Cases.of(cases)


# --- surveys -------------------------------------------


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

"""``tuner model``: fits models of times to surveys, sets right what they say, and shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import fields, print_json
from tuner.declare.folders import in_checkout, write_whole
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound, TunerError
from tuner.lookup.answers import PREDICTED
from tuner.lookup.asking import kept_open
from tuner.lookup.stale import builtin_now
from tuner.model.calibrate import Cases, spread_of
from tuner.model.fit import refit
from tuner.model.predict import Model, Predictor
from tuner.model.stored import arithmetic_of, model_of, name_of, path_of, regime_of, to_bytes
from tuner.results.record import utc_now
from tuner.store import Store, watched
from tuner.study.dry_run import device_of

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
        catalogue, where = builtin_now(), device_of(device, kept_open(db))
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
    catalogue, where = builtin_now(), device_of(device, kept_open(db))
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

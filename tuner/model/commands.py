"""``tuner model``: fits models of times to surveys, sets right what they say, and shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import pairs, print_json
from tuner.cli.options import (
    database_option,
    device_option,
    json_option,
    usual_regime_option,
    writable_file,
)
from tuner.declare.folders import in_checkout
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.devices.cuda.process import held_gpu
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound
from tuner.lookup.asking import device_in_full
from tuner.lookup.stale import builtin_now
from tuner.model import fit as fits
from tuner.model.calibrate import LossSummary, spread_of
from tuner.model.fitting import circumstances, known_model, read_survey, refit, timings
from tuner.model.judging import calibrated, cases_of, later_answers, read_page, trusted
from tuner.model.predict import Model
from tuner.model.stored import name_of, path_of, regime_of, to_bytes
from tuner.results.record import utc_now
from tuner.store import Store, watched

dtype_option = click.option(
    "--dtype", default="", help="Of the survey's problems; the operation's first unless given."
)
output_option = click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="File to write; unless given the one that lookups read, configs/tuned/DEVICE/models/OPERATION.json "
    "or OPERATION-DTYPE.json.",
)  # fmt: skip
known_device = device_option('cpu, cuda:N, or a name such as "NVIDIA H200".')


@click.group()
def model() -> None:
    """Models of times: fitted to a survey, they answer for shapes that nobody tuned."""


@model.command()
@click.argument("operation")
@device_option('Where the survey was made: cpu, cuda:N, or e.g. "NVIDIA H200".')
@click.option(
    "--survey", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Timings as arrays, FILE.npz (docs/lookup.md), in place of the database's surveys.",
)  # fmt: skip
@dtype_option
@usual_regime_option
@click.option("--measured-at", default="", help="When the survey was made, where its file does not tell.")
@click.option("--seed", default=0, show_default=True, help="Of folds and samples.")
@output_option
@database_option
def fit(
    operation: str, device: str, survey: Path | None, dtype: str, regime: str | None, measured_at: str,
    seed: int, output: Path | None, db: str,
) -> None:  # fmt: skip
    """Fit a model to the database's surveys, store it there, and publish it.

    Needs LightGBM: pip install 'tile-tuner[model]'. With --device cuda:N that GPU trains the networks, in
    tens of seconds; else the CPU does, in minutes for a survey of hundreds of thousands of timings.
    """
    writable_file(output)
    if survey is not None and output is None and not in_checkout():
        raise InputError("an installed package's own results are not written; name a file by -o")
    catalogue, where = builtin_now(), device_in_full(device, db)
    declared, regime = catalogue.operation(operation), regime or kind_of(where.kind).survey.regime
    kernels = {kernel.name: kernel for kernel in catalogue.of(operation, where.kind)}
    with held_gpu(device, f"model fit {operation}") as gpu:
        if survey is None:
            with Store.open(db) as store:
                made = refit(store, declared, kernels.values(), where, regime, seed, dtype, gpu)
        else:
            origin = circumstances(regime) | ({"measured_at": measured_at} if measured_at else {})
            made = fits.fit(read_survey(survey, declared, dtype, origin), kernels, where, seed, gpu=gpu)
    _show(made, _rows(made))
    _publish(made, dtype, output)


@model.command()
@click.argument("operation")
@click.argument("pages", nargs=-1, required=True, metavar="PAGE.json...", type=click.Path(path_type=Path))
@known_device
@dtype_option
@usual_regime_option
@output_option
@database_option
def calibrate(
    operation: str, pages: tuple[Path, ...], device: str, dtype: str, regime: str | None, output: Path | None,
    db: str,
) -> None:  # fmt: skip
    """Set what a model says of its losses right, by drawn problems.

    PAGE.json is what `tuner lookup-quality OPERATION --drawn N --measure -o PAGE.md` wrote beside its page, at
    problems drawn after the model was fitted. The answers stay the same; the losses and intervals that are said
    become those seen there. Draw anew to see whether they hold.
    """
    writable_file(output)
    known, declared, kernels = _known(operation, device, dtype, regime, db)
    drawn = [read_page(page, declared, known) for page in pages]
    corrected, before, now = calibrated(known, kernels, [answer for _, some in drawn for answer in some])
    seeds = [seed for seed, _ in drawn]
    corrected = _store(corrected, dtype, db, {"calibrated_at": utc_now(), "drawn_seeds": seeds})
    counts = ("drawn problems that count", str(now.cases))
    _show(corrected, [counts, ("before", _figures(before)), ("now", _figures(now))])
    _publish(corrected, dtype, output)


@model.command()
@click.argument("operation")
@known_device
@click.option("--choose", is_flag=True, help="Choose by these problems when a kernel is answered; store that.")
@dtype_option
@usual_regime_option
@output_option
@database_option
def check(
    operation: str, device: str, choose: bool, dtype: str, regime: str | None, output: Path | None, db: str
) -> None:
    """Compare what a model says with surveys that it was not fitted to.

    A survey made after the fit, for a minute or two, tells how the model does on this board, at those of its
    problems where it happened to time what the model answers. With --choose these problems, 200 at the least,
    decide by how much a kernel must be predicted to be faster than the library before it is answered, and how
    much of what was timed near by counts against a prediction.
    """
    writable_file(output)
    known, declared, kernels = _known(operation, device, dtype, regime, db)
    with Store.open(db, read_only=True) as store:
        surveyed = timings(store, declared, kernels.values(), known.device.name, regime_of(known), dtype)
    answers = later_answers(known, kernels, surveyed)
    if not answers:
        raise NothingFound(
            f"the database's surveys of {operation} time nothing that the model answers at problems that it "
            "was not fitted to; survey more"
        )
    cases = cases_of(known, kernels, answers)
    before = known.calibration.judged(cases)
    rows = [("problems", f"{before.cases}, none of which it was fitted to"), ("it", _figures(before))]
    if not choose:
        _show(known, rows)
        return
    chosen = _store(trusted(known, cases), dtype, db, {"trusted_at": utc_now(), "trusted_by": len(answers)})
    _show(chosen, [*rows, *_trust(chosen), ("now", _figures(chosen.calibration.judged(cases)))])
    _publish(chosen, dtype, output)


def _known(
    operation: str, device: str, dtype: str, regime: str | None, db: str
) -> tuple[Model, Operation, dict[str, Kernel]]:
    """The model that answers, and its operation and kernels as they are declared now."""
    catalogue, known = builtin_now(), known_model(operation, device, dtype, regime, db)
    kernels = {kernel.name: kernel for kernel in catalogue.of(operation, known.device.kind)}
    return known, catalogue.operation(operation), kernels


def _store(known: Model, dtype: str, db: str, origin: dict[str, Any]) -> Model:
    """Stores a model that tells more of its provenance in the database."""
    known = replace(known, provenance={**known.provenance, **origin})
    name = name_of(builtin_now().operation(known.operation), dtype)
    with Store.open(db) as store:
        watched.add_model(store, name, known.device.name, regime_of(known), to_bytes(known))
    return known


def _publish(known: Model, dtype: str, output: Path | None) -> None:
    """Writes a model where lookups read it in a checkout, or where it is asked for."""
    name = name_of(builtin_now().operation(known.operation), dtype)
    path = output or (path_of(name, known.device.name) if in_checkout() else None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(known) + b"\n")
        click.echo(str(path), err=True)


@model.command()
@click.argument("operation")
@known_device
@dtype_option
@usual_regime_option
@database_option
@json_option
def show(operation: str, device: str, dtype: str, regime: str | None, db: str, as_json: bool) -> None:
    """What a model was fitted to, and what its answers lost at problems left out."""
    known = known_model(operation, device, dtype, regime, db)
    if as_json:
        trust = known.calibration
        print_json({
            "operation": operation, "device": known.device.name, "provenance": dict(known.provenance),
            "margin": trust.margin, "doubt": trust.doubt, "loss": spread_of(trust.losses),
            "drawn": {"problems": trust.drawn, "scale": trust.scale},
        })  # fmt: skip
    else:
        _show(known, _rows(known))


def _show(known: Model, rows: list[tuple[str, str]]) -> None:
    pairs(f"Model of {known.operation} on {known.device.name}", rows)


def _figures(of: LossSummary) -> str:
    held = f"80 % intervals of loss and time hold {of.loss_held:.0%} and {of.time_held:.0%}"
    slower = f"{of.slower / of.cases:.1%} more than 3 % slower than the library"
    return f"said {of.said:.1%}, true {of.true:.1%}; {held}; {slower}"


def _trust(known: Model) -> list[tuple[str, str]]:
    trust = known.calibration
    return [
        ("library unless faster by", f"{trust.margin:.0%}"), ("doubted by what is near", f"{trust.doubt:.0%}")
    ]  # fmt: skip


def _rows(known: Model) -> list[tuple[str, str]]:
    origin, trust = known.provenance, known.calibration
    drawn = f"{trust.scale:.2f} of that, as {trust.drawn} problems drawn after the fit tell"
    counts = f"{origin['timings']} timings of {origin['configs']} configs at {origin['problems']} problems"
    return [
        ("device", known.device.name), ("fitted to", counts),
        ("survey", f"{origin.get('survey', '')} {origin.get('measured_at', '')}".strip()),
        ("regime", str(origin.get("regime", ""))), ("kernels", ", ".join(origin.get("sources", {}))),
        ("knows", ", ".join(f"{dtype} {layout}".strip() for dtype, layout in known.traits)),
        (
            "lost at problems left out",
            ", ".join(f"{name} {value:.1%}" for name, value in spread_of(trust.losses).items()),
        ),
        *([("said of it", drawn)] if trust.drawn else []), *_trust(known),
    ]  # fmt: skip

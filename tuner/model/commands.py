"""``tuner model``: fits models of times to surveys, and shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import pairs, print_json
from tuner.cli.options import DEVICE, database_option, json_option, usual_regime_option, writable_file
from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.model.calibrate import LossSummary
    from tuner.model.fitted import Model


dtype_option = click.option(
    "--dtype", default="", help="Of the survey's problems; the operation's first unless given."
)
output_option = click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="File to write; unless given the one that lookups read, configs/tuned/DEVICE/models/OPERATION.json "
    "or OPERATION-DTYPE.json.",
)  # fmt: skip


@click.group()
def model() -> None:
    """Models of times: fitted to a survey, they answer for shapes that nobody tuned."""


@model.command()
@click.argument("operation")
@click.option(
    "--device", shell_complete=DEVICE, default="",
    help='Where the survey was made: cpu, cuda:N, or e.g. "NVIDIA H200".',
)  # fmt: skip
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
def fit(operation: str, device: str, output: Path | None, db: str, **options: Any) -> None:
    """Fit a model to the database's surveys, store it there, and publish it.

    Needs LightGBM: pip install 'tile-tuner[model]'. With --device cuda:N that GPU trains the networks, in
    tens of seconds; else the CPU does, in minutes for a survey of hundreds of thousands of timings.
    """
    from tuner.declare.folders import in_checkout
    from tuner.model.fitting import fitted

    writable_file(output)
    if options["survey"] is not None and output is None and not in_checkout():
        raise InputError("an installed package's own results are not written; name a file by -o")
    found = fitted(operation, device, db, **options)
    pairs(f"Model of {operation} on {found.device.name}", _rows(found))
    _publish(found, operation, options["dtype"], output)


device_option = click.option(
    "--device", shell_complete=DEVICE, default="", help='cpu, cuda:N, or a name such as "NVIDIA H200".'
)


@model.command()
@click.argument("operation")
@click.argument("pages", nargs=-1, required=True, metavar="PAGE.json...", type=click.Path(path_type=Path))
@device_option
@dtype_option
@usual_regime_option
@output_option
@database_option
def calibrate(
    operation: str, pages: tuple[Path, ...], device: str, output: Path | None, db: str, **of: Any
) -> None:
    """Set what a model says of its losses right, by drawn problems.

    PAGE.json is what `tuner lookup-quality OPERATION --drawn N --measure -o PAGE.md` wrote beside its page, at
    problems drawn after the model was fitted. The answers stay the same; the losses and intervals that are said
    become those seen there. Draw anew to see whether they hold.
    """
    from tuner.model.judging import calibrated_by

    writable_file(output)
    found, before, now = calibrated_by(operation, pages, device, db, **of)
    rows = [("drawn problems that count", str(now.cases)), ("before", _figures(before)), ("now", _figures(now))]
    pairs(f"Model of {operation} on {found.device.name}", rows)
    _publish(found, operation, of["dtype"], output)


@model.command()
@click.argument("operation")
@device_option
@click.option("--choose", is_flag=True, help="Choose by these problems when a kernel is answered; store that.")
@dtype_option
@usual_regime_option
@output_option
@database_option
def check(operation: str, device: str, choose: bool, output: Path | None, db: str, **of: Any) -> None:
    """Compare what a model says with surveys that it was not fitted to.

    A survey made after the fit, for a minute or two, tells how the model does on this board, at those of its
    problems where it happened to time what the model answers. With --choose these problems, 200 at the least,
    decide by how much a kernel must be predicted to be faster than the library before it is answered, and how
    much of what was timed near by counts against a prediction.
    """
    from tuner.model.judging import checked

    writable_file(output)
    found = checked(operation, device, db, choose, **of)
    trust = found.model.calibration
    rows = [
        ("problems", f"{found.before.cases}, none of which it was fitted to"),
        ("it", _figures(found.before)),
    ]
    if choose:
        rows += [
            ("library unless faster by", f"{trust.margin:.0%}"),
            ("doubted by what is near", f"{trust.doubt:.0%}"),
            ("now", _figures(found.now)),
        ]
    pairs(f"Model of {operation} on {found.model.device.name}", rows)
    if choose:
        _publish(found.model, operation, of["dtype"], output)


def _figures(of: LossSummary) -> str:
    held = f"80 % intervals of loss and time hold {of.loss_held:.0%} and {of.time_held:.0%}"
    slower = f"{of.slower / of.cases:.1%} more than 3 % slower than the library"
    return f"said {of.said:.1%}, true {of.true:.1%}; {held}; {slower}"


@model.command()
@click.argument("operation")
@device_option
@dtype_option
@usual_regime_option
@database_option
@json_option
def show(operation: str, device: str, dtype: str, regime: str | None, db: str, as_json: bool) -> None:
    """What a model was fitted to, and what its answers lost at problems left out."""
    from tuner.model.calibrate import spread_of
    from tuner.model.fitting import known_model

    found = known_model(operation, device, dtype, regime, db)
    if as_json:
        print_json({
            "operation": operation, "device": found.device.name, "provenance": dict(found.provenance),
            "margin": found.calibration.margin, "doubt": found.calibration.doubt,
            "loss": spread_of(found.calibration.losses),
            "drawn": {"problems": found.calibration.drawn, "scale": found.calibration.scale},
        })  # fmt: skip
    else:
        pairs(f"Model of {operation} on {found.device.name}", _rows(found))


def _publish(found: Model, operation: str, dtype: str, output: Path | None) -> None:
    """Writes a model where lookups read it in a checkout, or where it is asked for."""
    from tuner.declare.folders import in_checkout
    from tuner.lookup.stale import builtin_now
    from tuner.model.stored import name_of, path_of, to_bytes

    name = name_of(builtin_now().operation(operation), dtype)
    path = output or (path_of(name, found.device.name) if in_checkout() else None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(found) + b"\n")
        click.echo(str(path), err=True)


def _rows(found: Model) -> list[tuple[str, Any]]:
    from tuner.model.calibrate import spread_of

    told, all_losses = found.provenance, found.calibration.losses
    losses = ", ".join(f"{name} {value:.1%}" for name, value in spread_of(all_losses).items())
    drawn = (
        f"{found.calibration.scale:.2f} of that, as {found.calibration.drawn} problems drawn after the fit tell"
    )
    return [
        ("device", found.device.name),
        ("fitted to", f"{told['timings']} timings of {told['configs']} configs at {told['problems']} problems"),
        ("survey", f"{told.get('survey', '')} {told.get('measured_at', '')}".strip()),
        ("regime", str(told.get("regime", ""))),
        ("kernels", ", ".join(told.get("sources", {}))),
        ("knows", ", ".join(f"{dtype} {layout}".strip() for dtype, layout in found.traits)),
        ("lost at problems left out", losses),
        *([("said of it", drawn)] if found.calibration.drawn else []),
        ("library unless faster by", f"{found.calibration.margin:.0%}"),
        ("doubted by what is near", f"{found.calibration.doubt:.0%}"),
    ]

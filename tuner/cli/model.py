"""``tuner model``: fits models of times to surveys, and shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import pairs, print_json
from tuner.cli.options import DEVICE, database_option, json_option, usual_regime_option, writable_file
from tuner.errors import InputError, NothingFound

if TYPE_CHECKING:
    from tuner.lookup.model.fitted import Model


dtype_option = click.option(
    "--dtype", default="", help="Of the survey's problems; the operation's first unless given."
)


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
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="File to write; unless given the one that lookups read, configs/tuned/DEVICE/models/OPERATION.json "
    "or OPERATION-DTYPE.json.",
)  # fmt: skip
@database_option
def fit(operation: str, device: str, output: Path | None, db: str, **options: Any) -> None:
    """Fit a model to the database's surveys, store it there, and publish it.

    Needs LightGBM: pip install 'tile-tuner[model]'. With --device cuda:N that GPU trains the networks, in
    tens of seconds; else the CPU does, in minutes for a survey of hundreds of thousands of timings.
    """
    from tuner.declare.folders import in_checkout
    from tuner.lookup.declared import builtin_now
    from tuner.lookup.model.shelf import path_of
    from tuner.lookup.model.stored import name_of, to_bytes
    from tuner.requests.fitting import fitted

    writable_file(output)
    if options["survey"] is not None and output is None and not in_checkout():
        raise InputError("an installed package's own results are not written; name a file by -o")
    found = fitted(operation, device, db, **options)
    pairs(f"Model of {operation} on {found.device.name}", _rows(found))
    name = name_of(builtin_now().operation(operation), options["dtype"])
    path = output or (path_of(name, found.device.name) if in_checkout() else None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_bytes(found) + b"\n")
        click.echo(str(path), err=True)


@model.command()
@click.argument("operation")
@click.option(
    "--device", shell_complete=DEVICE, default="", help='cpu, cuda:N, or a name such as "NVIDIA H200".'
)
@dtype_option
@usual_regime_option
@database_option
@json_option
def show(operation: str, device: str, dtype: str, regime: str | None, db: str, as_json: bool) -> None:
    """What a model was fitted to, and what its answers lost at problems left out."""
    from tuner.lookup.declared import builtin_now
    from tuner.lookup.devices import device_in_full
    from tuner.lookup.model.shelf import models
    from tuner.store import Store

    dtype = dtype or builtin_now().operation(operation).dtypes[0]
    where = device_in_full(device, db)
    regime = regime or where.usual_regime
    try:
        with Store.open(db, read_only=True) as store:
            every = models(operation, regime, store=store, dtype=dtype)
    except NothingFound:
        every = models(operation, regime, dtype=dtype)
    known = [each for each in every if any(kind[0] == dtype for kind in each.traits)]
    found = next((each for each in known if each.device.name == where.name), None)
    if found is None:
        raise NothingFound(
            f"there is no model of {operation} in {dtype}, {regime}, for {where.name}; run a survey there and "
            f"`tuner model fit {operation} --dtype {dtype}`"
        )
    if as_json:
        print_json({
            "operation": operation, "device": found.device.name, "provenance": dict(found.provenance),
            "margin": found.calibration.margin, "loss": _losses(found),
        })  # fmt: skip
    else:
        pairs(f"Model of {operation} on {where.name}", _rows(found))


def _losses(found: Model) -> dict[str, float]:
    """Fractions of speed that answers lost at the survey's problems, each predicted without its own times."""
    import numpy as np

    losses = found.calibration.losses
    return {
        "mean": float(losses.mean()), "median": float(np.median(losses)),
        "p90": float(np.quantile(losses, 0.9)), "worst": float(losses.max()),
    }  # fmt: skip


def _rows(found: Model) -> list[tuple[str, Any]]:
    told = found.provenance
    losses = ", ".join(f"{name} {value:.1%}" for name, value in _losses(found).items())
    return [
        ("device", found.device.name),
        ("fitted to", f"{told['timings']} timings of {told['configs']} configs at {told['problems']} problems"),
        ("survey", f"{told.get('survey', '')} {told.get('measured_at', '')}".strip()),
        ("regime", str(told.get("regime", ""))),
        ("kernels", ", ".join(told.get("sources", {}))),
        ("knows", ", ".join(f"{dtype} {layout}".strip() for dtype, layout in found.traits)),
        ("lost at problems left out", losses),
        ("library unless faster by", f"{found.calibration.margin:.0%}"),
    ]

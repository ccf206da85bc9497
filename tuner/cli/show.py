"""``tuner show``: what a study saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.formatting import duration, pairs, table
from tuner.cli.options import DEVICE, OPERATION, database_option, parse_problem, writable_folder
from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.plots import Seen


@click.command()
@click.argument("what", metavar="STUDY|PROBLEM...", nargs=-1, required=True, shell_complete=OPERATION)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of FILE.py by name.")
@click.option(
    "--device",
    shell_complete=DEVICE,
    default="",
    help="Name or uuid of the device; default: of the latest study.",
)
@click.option("--regime", default="", help="How times were taken; default: of the latest study.")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write study.html and PNGs to this folder.")
@database_option
def show(
    what: tuple[str, ...], sets: tuple[str, ...], device: str, regime: str, folder: Path | None, db: str
) -> None:
    """Show what a study saw: speed by trial, what matters, what failed, where the time went.

    PROBLEM is e.g. "gemm 1024 1024 1024", or FILE.py with --set; STUDY is a study's name as records have it.
    With -o, one page that can be hovered and zoomed, and a PNG of each figure. No device is touched.
    """
    from tuner.requests.seeing import study_seen

    if folder is not None:
        writable_folder(folder)
    seen = study_seen(_named(what, sets), {"device": device, "regime": regime, "db": db})
    if folder is None:
        told(seen)
        return
    from tuner.plots import write_study

    for path in write_study(seen, folder):
        click.echo(str(path))


def _named(what: tuple[str, ...], sets: tuple[str, ...]) -> str | Problem:
    if what[0].endswith(".py"):
        return parse_problem(what[0], what[1:], sets, "", "")[1]
    if sets:
        raise InputError(f"--set goes with FILE.py, got it with {' '.join(what)!r}; write sizes in order")
    return " ".join(what)


def told(seen: Seen) -> None:
    """Prints a study's tables."""
    from tuner.plots.seen import ended, importance, reasons, seconds_by_stage

    pairs(seen.title, _rows(seen))
    matters = [(name, f"{share:.1%}") for name, share in importance(seen).items()]
    if matters:
        table(f"What matters in {seen.kernel}", ("parameter", "share of variance it explains alone"), matters)
    failed = [(str(count), ended(outcome, why, 120)) for (outcome, why), count in reasons(seen).items()]
    if failed:
        table("What was not measured, and why", ("trials", "why"), failed)
    spent = [(name, f"{seconds:.1f} s") for name, seconds in seconds_by_stage(seen).items()]
    if spent:
        table("Where the time of trials went", ("stage", "seconds"), spent)


def _rows(seen: Seen) -> list[tuple[str, str]]:
    rows = [("trials", f"{len(seen.trials)}, {len(seen.timed)} with a time")]
    for name, record in (("champion", seen.champion), ("library", seen.baseline)):
        if record is not None and record.measurement.time_s:
            time_s = record.measurement.time_s
            config = " ".join(f"{key}={value}" for key, value in record.config.items())
            speed = f"{seen.speed(time_s):.4g} {seen.unit}"
            rows.append((name, f"{record.kernel} {config}".strip() + f": {speed}, {duration(time_s)}"))
    return rows

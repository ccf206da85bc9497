"""``tuner show``: what a study saw."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.formatting import duration, pairs, print_json, table
from tuner.cli.options import (
    OPERATION,
    database_option,
    device_option,
    folder_option,
    json_option,
    parse_problem,
    writable_folder,
)
from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.report.comparing import Compared, Row
    from tuner.report.study_view import StudyView


@click.command()
@click.argument("what", metavar="STUDY|PROBLEM...", nargs=-1, required=True, shell_complete=OPERATION)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of FILE.py by name.")
@device_option("Name or uuid of the device; default: of the latest study.")
@click.option("--regime", default="", help="How times were taken; default: of the latest study.")
@folder_option("Write study.html and PNGs to this folder.")
@database_option
def show(
    what: tuple[str, ...], sets: tuple[str, ...], device: str, regime: str, folder: Path | None, db: str
) -> None:
    """Show what a study saw: speed by trial, what matters, what failed, where the time went.

    PROBLEM is e.g. "gemm 1024 1024 1024", or FILE.py with --set; STUDY is a study's name as records have it.
    With -o, one page that can be hovered and zoomed, and a PNG of each figure. No device is touched.
    """
    from tuner.report.study_view import recorded_study

    if folder is not None:
        writable_folder(folder)
    study = recorded_study(_named(what, sets), {"device": device, "regime": regime, "db": db})
    if folder is None:
        told(study)
        return
    from tuner.report.pages import write_study

    for path in write_study(study, folder):
        click.echo(str(path))


def _named(what: tuple[str, ...], sets: tuple[str, ...]) -> str | Problem:
    if what[0].endswith(".py"):
        return parse_problem(what[0], what[1:], sets, "", "")[1]
    if sets:
        raise InputError(f"--set goes with FILE.py, got it with {' '.join(what)!r}; write sizes in order")
    return " ".join(what)


def told(study: StudyView) -> None:
    """Prints a study's tables."""
    from tuner.report.study_view import ended, importance, reasons, seconds_by_stage

    pairs(study.title, _rows(study))
    matters = [(name, f"{share:.1%}") for name, share in importance(study).items()]
    if matters:
        table(f"What matters in {study.kernel}", ("parameter", "share of variance it explains alone"), matters)
    failed = [(str(count), ended(outcome, why, 120)) for (outcome, why), count in reasons(study).items()]
    if failed:
        table("What was not measured, and why", ("trials", "why"), failed)
    spent = [(name, f"{seconds:.1f} s") for name, seconds in seconds_by_stage(study).items()]
    if spent:
        table("Where the time of trials went", ("stage", "seconds"), spent)


def _rows(study: StudyView) -> list[tuple[str, str]]:
    rows = [("trials", f"{len(study.trials)}, {len(study.timed)} with a time")]
    for name, record in (("champion", study.champion), ("library", study.baseline)):
        if record is not None and record.measurement.time_s:
            time_s = record.measurement.time_s
            config = " ".join(f"{key}={value}" for key, value in record.config.items())
            speed = f"{study.speed(time_s):.4g} {study.unit}"
            rows.append((name, f"{record.kernel} {config}".strip() + f": {speed}, {duration(time_s)}"))
    return rows


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--operation", shell_complete=OPERATION, default="", help="Only problems of this operation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--markdown", is_flag=True, help="Print a table of Markdown.")
@folder_option("Write compare.html to this folder.")
@database_option
@json_option
def compare(
    one: str, other: str, operation: str, as_csv: bool, markdown: bool, folder: Path | None, db: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare B with A, problem by problem, those that changed most first.

    A and B are device:NAME, driver:VERSION, compiler:, library:, version: (of tile-tuner), night:DATE,
    date:FROM..TO, study:NAME or db:URL; the kind may be left out where records know the value. A ratio above 1
    says that B is faster. Its interval is of 95 %; the library's ratio shows what the machine itself did.
    """
    from tuner.report.comparing import compare_sides

    if folder is not None:
        writable_folder(folder)
    found = compare_sides(one, other, operation=operation, db=db)
    if folder is not None:
        from tuner.report.pages import write_comparison

        click.echo(str(write_comparison(found.to_json(), folder)), err=True)
    if as_json:
        print_json(found.to_json())
    elif as_csv:
        rows = [each.to_json() for each in found.rows]
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif markdown:
        click.echo(found.markdown())
    else:
        _shown(found)


def _shown(found: Compared) -> None:
    columns = ("problem", found.one, found.other, "B over A", "verdict", "library", "config")
    table(f"{found.other} against {found.one}", columns, [_cells(each) for each in found.rows])
    counts = ", ".join(f"{count} {name}" for name, count in found.counts().items() if count)
    click.echo(f"geometric mean {found.mean:.3f} over {len(found.rows)} problems: {counts}")
    for side, alone in ((found.one, found.only_one), (found.other, found.only_other)):
        if alone:
            click.echo(f"only {side}: {len(alone)} problems", err=True)


def _cells(row: Row) -> Sequence[str]:
    told = row.comparison
    how = "" if row.together else ", apart"
    same = "same" if row.to_json()["same_config"] else "another"
    return (
        f"{row.problem}, {row.regime}", duration(row.one.measurement.time_s or 0.0),
        duration(row.other.measurement.time_s or 0.0),
        f"{told.ratio:.3f} ({told.low:.3f} to {told.high:.3f}{how})", told.verdict,
        f"{row.library:.3f}" if row.library else "", same,
    )  # fmt: skip

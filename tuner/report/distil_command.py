"""``tuner distil``: chooses few configs for many shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import config_text, print_json, table
from tuner.cli.options import database_option, json_option, subject_options, writable_file
from tuner.report.shapes import measuring_options, shapes_known

if TYPE_CHECKING:
    from tuner.report.distil import Distilled
    from tuner.study.remeasure import Wanted


@click.command()
@click.argument("operation")
@click.option(
    "--configs",
    "count",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Largest number of configs.",
)
@click.option("--library", is_flag=True, help="Let the function choose the library, too.")
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None, help="Write the function to this file."
)
@subject_options
@measuring_options
@database_option
@json_option
def distil(
    operation: str, count: int, library: bool, output: Path | None, device: str, dtype: str, regime: str | None,
    measure: bool | None, seconds: float | None, db: str, as_json: bool,
) -> None:  # fmt: skip
    """Find few configs for many shapes, and write a Python function that chooses among them."""
    from tuner.report.distil import distilled, missing, shapes_of
    from tuner.report.distil_text import python_text

    writable_file(output)
    with shapes_known(operation, device, dtype, regime, db) as shapes:

        def choose() -> Distilled:
            return distilled(
                shapes_of(shapes.tuned(), shapes.subject, shapes.catalogue, library=library), count
            )

        found, left = shapes.measured(choose, missing, measure, seconds)
        text = python_text(found)
        if output is not None:
            output.write_text(text, encoding="utf-8")
        if as_json:
            print_json(_distilled_json(found, left, str(output or ""), text))
        else:
            _show_distilled(found, left, output, text)


def _distilled_json(found: Distilled, left: list[Wanted], file: str, text: str) -> dict[str, Any]:
    columns = [found.shapes.columns[number] for number in found.chosen]
    return {
        "configs": [
            {"kernel": column[0], "config": dict(column[1])} if column else {"kernel": None, "config": {}}
            for column in columns
        ],
        "shapes": [place.problem.to_json() for place in found.shapes.rows],
        "loss": {
            "best": vars(found.best), "decided": vars(found.decided), "left_out": vars(found.left_out),
        },
        "missing": [_wanted_json(each) for each in left], "file": file, "function": text,
    }  # fmt: skip


def _wanted_json(wanted: Wanted) -> dict[str, Any]:
    return {**wanted.problem.to_json(), "kernel": wanted.kernel.name, "config": dict(wanted.config)}


def _show_distilled(found: Distilled, left: list[Wanted], output: Path | None, text: str) -> None:
    shapes = found.shapes
    rows = []
    for number, column in enumerate(found.chosen):
        named = shapes.columns[column]
        best = sum(int(max(found.chosen, key=lambda c: row[c]) == column) for row in shapes.speeds)
        kernel, config = (named[0], config_text(named[1])) if named else ("the library", "-")
        rows.append((str(number), kernel, config, f"{best} of {len(shapes.rows)}"))
    table("The configs", ("", "kernel", "config", "best for"), rows)
    table(
        "What they cost, as a fraction of speed",
        ("", "loss"),
        [
            ("the best of them", str(found.best)),
            ("the one that `choose` takes", str(found.decided)),
            ("at shapes left out of all choices", str(found.left_out)),
        ],
    )
    if left:
        click.echo(f"{len(left)} times are missing; `--measure` takes them, on the device", err=True)
    click.echo(str(output) if output is not None else text)

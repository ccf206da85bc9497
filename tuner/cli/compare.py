"""``tuner compare``: two devices, drivers, versions, days or studies, problem by problem."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import OPERATION, database_option, json_option, writable_folder

if TYPE_CHECKING:
    from tuner.requests.comparing import Compared, Row


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--operation", shell_complete=OPERATION, default="", help="Only problems of this operation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--markdown", is_flag=True, help="Print a table of Markdown.")
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Write compare.html to this folder.")
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
    from tuner.requests.comparing import compare_sides

    if folder is not None:
        writable_folder(folder)
    found = compare_sides(one, other, operation=operation, db=db)
    if folder is not None:
        from tuner.plots import write_comparison

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

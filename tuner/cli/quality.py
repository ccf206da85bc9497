"""``tuner lookup-quality``: measures what answers cost at problems that nobody tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.options import database_option, json_option, writable_file
from tuner.cli.shapes import subject_options


@click.command()
@click.argument("operation", default="gemm")
@click.option(
    "--drawn", "count", type=click.IntRange(1), default=32, show_default=True, help="Problems to draw."
)
@click.option("--measure", is_flag=True, help="Time them: this takes the device for as long as they take.")
@click.option("--seconds", type=float, default=13.0, show_default=True, help="Seconds of each study.")
@click.option("--seed", type=int, default=None, help="Of problems and their studies; random unless given.")
@click.option(
    "--on-miss", type=click.Choice(["predict", "measure"]), default=("predict",), multiple=True,
    help="Answer as tuner.on_miss has it; measure times 8 configs at each problem first. Given twice, both are "
    "compared with the same studies, and -o names two pages. [default: predict]",
)  # fmt: skip
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="Write a Markdown page to this file, and its data beside it, after each problem.",
)  # fmt: skip
@subject_options
@database_option
@json_option
def lookup_quality(measure: bool, output: Path | None, db: str, as_json: bool, **options: Any) -> None:
    """Measure what answers for unknown problems cost.

    Each drawn problem is looked up and then tuned for --seconds; answer, champion and library are timed in
    turn. What a model lost at problems left out of its survey is told by `tuner model show`.
    """
    from tuner.cli.drawn import DrawnRequest, lookup_quality_drawn

    writable_file(output)
    lookup_quality_drawn(DrawnRequest(**options), measure, output, db, as_json)

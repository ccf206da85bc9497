"""``tuner lookup-quality``: measures what answers cost by leaving known problems out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import config_text, print_json, table
from tuner.cli.options import database_option, json_option, writable_file
from tuner.cli.shapes import ShapesKnown, measuring_options, shapes_known, subject_options

if TYPE_CHECKING:
    from tuner.lookup.quality import LeftOut
    from tuner.lookup.snapshot import SubjectData
    from tuner.study.remeasure import Wanted

TIERS = ("nearest-shape", "similar-device", "default")


@click.command()
@click.argument("operation", default="gemm")
@click.option(
    "--tier", type=click.Choice(TIERS), default=TIERS[0], show_default=True, help="Source of the answers."
)
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None, help="Write a Markdown table to this file."
)
@click.option(
    "--drawn", type=int, default=None, help="With --measure: draw so many problems that nobody tuned."
)
@click.option(
    "--seed", type=int, default=None, help="Of drawn problems and their studies; random unless given."
)
@click.option(
    "--on-miss", type=click.Choice(["predict", "measure"]), default="predict", show_default=True,
    help="With --drawn: answer as tuner.on_miss has it; measure times 8 configs at each problem first.",
)  # fmt: skip
@subject_options
@measuring_options
@database_option
@json_option
def lookup_quality(
    operation: str, tier: str, output: Path | None, drawn: int | None, seed: int | None, on_miss: str,
    device: str, dtype: str, regime: str | None, measure: bool | None, seconds: float | None, db: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure what answers for unknown problems cost.

    With --drawn: each drawn problem is looked up and then tuned for --seconds (13 unless given); answer,
    champion and library are timed in turn. Without it each known problem is left out and looked up.
    """
    from tuner.cli.drawn import DrawnRequest, lookup_quality_drawn
    from tuner.lookup.quality import leave_one_out, summary

    writable_file(output)
    if drawn is not None:
        asked = DrawnRequest(operation, drawn, seed, seconds, device, dtype, regime or "cold", on_miss)
        lookup_quality_drawn(asked, bool(measure), output, db, as_json)
        return
    with shapes_known(operation, device, dtype, regime, db) as shapes:

        def on_device() -> list[LeftOut]:
            return leave_one_out(shapes.data(), tier, shapes.device.name)

        cases, left = shapes.measured(on_device, lambda found: _missing(shapes.data(), found), measure, seconds)
        told = summary(cases)
        if output is not None:
            output.write_text(_markdown(shapes, cases, tier, told), encoding="utf-8")
        if as_json:
            print_json(_quality_json(shapes.data(), cases, tier, told))
            return
        rows = [_quality_row(shapes.data(), case) for case in cases]
        table(f"Answers of tier {tier} on {shapes.device.name}", ("left out", "answered", "of", "loss"), rows)
        click.echo(told)
        if left:
            click.echo(f"{len(left)} times are missing; `--measure` takes them, on the device", err=True)


def _missing(data: SubjectData, cases: list[LeftOut]) -> list[Wanted]:
    """The times that are missing: of configs that were answered but never timed for the problem."""
    from tuner.lookup.quality import unmeasured
    from tuner.study.remeasure import Wanted

    found = []
    for case in unmeasured(cases):
        place = data.matrix.places[case.place]
        found.append(Wanted(place.problem, data.matrix.kernels[case.kernel], case.config, place.best_s))
    return found


def _quality_row(data: SubjectData, case: LeftOut) -> tuple[str, str, str, str]:
    place = data.matrix.places[case.place]
    answered = case.library or f"{case.kernel} {config_text(case.config)}"
    source = str(data.matrix.places[case.source].problem) if case.source is not None else "-"
    return str(place.problem), answered, source, "not measured" if case.loss is None else f"{case.loss:.2%}"


def _quality_json(data: SubjectData, cases: list[LeftOut], tier: str, told: str) -> dict[str, Any]:
    losses = [case.loss for case in cases if case.loss is not None]
    return {
        "tier": tier,
        "cases": [
            {
                **data.matrix.places[case.place].problem.to_json(),
                "device": data.matrix.places[case.place].device.name, "kernel": case.kernel,
                "config": dict(case.config), "use": case.library or "kernel", "loss": case.loss,
            }
            for case in cases
        ],
        "measured": len(losses),
        "mean": sum(losses) / len(losses) if losses else None,
        "worst": max(losses) if losses else None,
        "said": told,
    }  # fmt: skip


def _markdown(shapes: ShapesKnown, cases: list[LeftOut], tier: str, told: str) -> str:
    subject = shapes.data().matrix.subject
    rows = [
        f"| {' | '.join((problem, f'`{answered}`', source, loss))} |"
        for problem, answered, source, loss in (_quality_row(shapes.data(), case) for case in cases)
    ]
    return "\n".join(
        [
            f"# Lookups of {subject.operation} {subject.dtype} on {shapes.device.name}, {subject.regime}",
            "",
            f"Tier `{tier}`: {told}.",
            "",
            "| left out | answered | nearest of its records | loss |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )

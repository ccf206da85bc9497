"""``tuner lookup-quality``: measures what answers cost at problems that nobody tuned."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, subject_options, writable_file
from tuner.devices.detect import kind_of
from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.declare.problem import Problem
    from tuner.lookup import Answer
    from tuner.model.calibrate import LossSummary
    from tuner.model.quality import DrawnProblem


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
def lookup_quality(
    operation: str, count: int, measure: bool, seconds: float, seed: int | None, on_miss: tuple[str, ...],
    output: Path | None, device: str, dtype: str, regime: str | None, db: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure what answers for unknown problems cost.

    Each drawn problem is looked up and then tuned for --seconds; answer, champion and library are timed in
    turn. What a model lost at problems left out of its survey is told by `tuner model show`.
    """
    from tuner.devices.detect import find
    from tuner.lookup.stale import builtin_now
    from tuner.model.quality import measured
    from tuner.model.survey_design import draw_for
    from tuner.study.locks import occupied

    writable_file(output)
    if not measure:
        raise InputError("answers are timed on the device, which takes it for minutes; say so by --measure")
    catalogue, found = builtin_now(), find(device)
    regime = regime or kind_of(found.target).survey.regime
    seed = secrets.randbits(32) if seed is None else seed
    problems = draw_for(catalogue.operation(operation), dtype, found.target, count, seed)
    title = f"Drawn problems of {operation} on {found.info.name}, {regime}, seed {seed}"
    where = {"device": found.info.name, "regime": regime, "seed": seed}
    ways = list(dict.fromkeys(on_miss))
    pages = [_Page(title + WAYS[way], where) for way in ways]
    answers = [partial(_answered, way, device, regime, db) for way in ways]
    with occupied(db, (found,), title):
        for cases in measured(problems, answers, catalogue, found, seconds, regime, seed):
            for way, page, case in zip(ways, pages, cases, strict=True):
                page.cases.append(case)
                click.echo(f"{len(page.cases)} of {count}: {' | '.join(row(case))}", err=True)
                if output is not None:
                    page.write(output.with_stem(f"{output.stem}-{way}") if len(ways) > 1 else output, seconds)
    if as_json:
        print_json([page.to_json() for page in pages] if len(pages) > 1 else pages[0].to_json())
        return
    for page in pages:
        table(page.title, COLUMNS, [row(case) for case in page.cases])
        for line in lines(page.summary):
            click.echo(line)


#: Ways to answer, and what a title says of them.
WAYS = {"predict": "", "measure": ", measured at first use"}
COLUMNS = ("problem", "match", "use", "said", "answer", "library", "champion", "loss", "library / answer")


def _answered(way: str, device: str, regime: str, db: str, problem: Problem, crew: Any) -> Answer:
    """What a lookup answers, as callables ask it; after a first use if that is the way."""
    from tuner.lookup import answer
    from tuner.lookup.asking import kept_open, parse_device, parse_key
    from tuner.lookup.stale import builtin_now
    from tuner.study.first_use import answer_at_first_use

    if way == "measure":
        return answer_at_first_use(problem, crew, builtin_now(), regime, kept_open(db))
    return answer(kept_open(db), parse_key(problem), parse_device(device), regime)


@dataclass(frozen=True)
class _Page:
    """What is told of one way to answer."""

    title: str
    where: dict[str, Any]
    cases: list[DrawnProblem] = field(default_factory=list)

    @property
    def summary(self) -> LossSummary:
        from tuner.model.quality import summary

        return summary(self.cases)

    def to_json(self) -> dict[str, Any]:
        cases = [case.to_json() for case in self.cases]
        return {"title": self.title, **self.where, "summary": self.summary.to_json(), "cases": cases}

    def write(self, output: Path, seconds: float) -> None:
        """Writes the page, and its data beside it."""
        data = {**self.to_json(), "seconds": seconds}
        output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        page = [
            f"# {self.title}", "",
            f"Each problem was answered, then tuned for {seconds:g} s; then answer, champion and library were "
            "timed in turn. Problems are drawn log-uniformly, half of them round, layouts in turn.",
            "", *(f"- {line}" for line in lines(self.summary)), "",
            f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS),
            *(f"| {' | '.join(row(case))} |" for case in self.cases), "",
            *(f"{case.problem}: {case.why}" for case in self.cases if case.why),
        ]  # fmt: skip
        output.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")


def row(of: DrawnProblem) -> tuple[str, ...]:
    """A case for people."""
    said = of.answer["expected_loss"]
    return (
        str(of.problem), of.answer["match"], of.answer["use"], "not known" if said >= 1 else f"{said:.1%}",
        *(duration(each) if each else "-" for each in (of.kernel_s, of.library_s, of.champion_s)),
        f"{of.loss:.1%}", f"{of.over_library(of.answered_s):.3f}",
    )  # fmt: skip


def lines(told: LossSummary) -> list[str]:
    """The summary for people."""
    losses = ", ".join(f"{name} {value:.1%}" for name, value in told.loss.items())
    found = [
        f"loss of {told.cases} answers, against the best of answer, library and champion: {losses}",
        f"more than 3 % slower than the library: {told.slower} of {told.cases}",
        f"geometric mean over the library: answers {told.answers:.3f}, champions {told.champions:.3f}, "
        f"ratio {told.answers / told.champions:.3f}",
    ]
    if told.said == told.said:
        found.append(f"of answers that come with an expected loss: said {told.said:.1%}, true {told.true:.1%}")
    if told.loss_held == told.loss_held:
        held = f"loss {told.loss_held:.0%}, time {told.time_held:.0%}"
        found.append(f"80 % intervals hold: {held}")
    return found

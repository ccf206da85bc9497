"""``tuner lookup-quality``: measures what answers cost at problems that nobody tuned."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
def lookup_quality(measure: bool, output: Path | None, db: str, as_json: bool, **options: Any) -> None:
    """Measure what answers for unknown problems cost.

    Each drawn problem is looked up and then tuned for --seconds; answer, champion and library are timed in
    turn. What a model lost at problems left out of its survey is told by `tuner model show`.
    """
    writable_file(output)
    lookup_quality_drawn(DrawnRequest(**options), measure, output, db, as_json)


#: Answers are what the lookup predicts.
PREDICT = "predict"
#: What a title says of the ways to answer.
FIRST = {PREDICT: "", "measure": ", measured at first use"}
COLUMNS = ("problem", "match", "use", "said", "answer", "library", "champion", "loss", "library / answer")


@dataclass(frozen=True)
class DrawnRequest:
    """What is asked for.

    Attributes:
        operation: Its name.
        count: Problems to draw.
        seconds: Of each study.
        seed: Of problems and studies; drawn where None.
        device: Where.
        dtype: Element type.
        regime: How time is taken; as usual on the device where None.
        on_miss: ``predict`` for what the lookup answers, ``measure`` for what it answers after a first use; of
            both the same studies tell the loss.
    """

    operation: str
    count: int
    seconds: float
    seed: int | None
    device: str
    dtype: str
    regime: str | None
    on_miss: Sequence[str]


def lookup_quality_drawn(
    asked: DrawnRequest, measure: bool, output: Path | None, db: str, as_json: bool
) -> None:
    """Draws problems, answers, measures, and writes a page and its JSON after each.

    Raises:
        InputError: Not to be measured, or nothing to be drawn.
    """
    from tuner.devices.detect import find
    from tuner.lookup.stale import builtin_now
    from tuner.model.quality import measured
    from tuner.model.survey_design import draw_for
    from tuner.study.locks import occupied

    if not measure:
        raise InputError("answers are timed on the device, which takes it for minutes; say so by --measure")
    catalogue, found = builtin_now(), find(asked.device)
    regime = asked.regime or kind_of(found.target).survey.regime
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    problems = draw_for(catalogue.operation(asked.operation), asked.dtype, found.target, asked.count, seed)
    title = f"Drawn problems of {asked.operation} on {found.info.name}, {regime}, seed {seed}"
    asked = replace(asked, regime=regime, on_miss=tuple(dict.fromkeys(asked.on_miss)))
    where = {"device": found.info.name, "regime": regime, "seed": seed}
    told = [
        _AnswerPage(title + FIRST[each], _page_of(output, each, asked.on_miss), [], where)
        for each in asked.on_miss
    ]
    answers = [partial(_answered, asked, db, each) for each in asked.on_miss]
    with occupied(db, (found,), title):
        for cases in measured(problems, answers, catalogue, found, asked.seconds, regime, seed):
            for each, case in zip(told, cases, strict=True):
                each.take(case, asked)
    if as_json:
        print_json([each.to_json() for each in told] if len(told) > 1 else told[0].to_json())
        return
    for each in told:
        table(each.title, COLUMNS, [row(case) for case in each.cases])
        for line in lines(each.summary):
            click.echo(line)


@dataclass(frozen=True)
class _AnswerPage:
    """What is told of one way to answer."""

    title: str
    output: Path | None
    cases: list[DrawnProblem]
    where: dict[str, Any]

    @property
    def summary(self) -> LossSummary:
        from tuner.model.quality import summary

        return summary(self.cases)

    def take(self, case: DrawnProblem, asked: DrawnRequest) -> None:
        """Prints a case, and writes the page."""
        self.cases.append(case)
        click.echo(f"{len(self.cases)} of {asked.count}: {' | '.join(row(case))}", err=True)
        if self.output is not None:
            _write(self.output, self.to_json(), self.cases, self.summary, asked.seconds)

    def to_json(self) -> dict[str, Any]:
        told = [each.to_json() for each in self.cases]
        return {"title": self.title, **self.where, "summary": self.summary.to_json(), "cases": told}


def _page_of(output: Path | None, on_miss: str, all_of_them: Sequence[str]) -> Path | None:
    """Of several pages, each has its own name."""
    return output.with_stem(f"{output.stem}-{on_miss}") if output and len(all_of_them) > 1 else output


def _answered(asked: DrawnRequest, db: str, on_miss: str, problem: Problem, crew: Any) -> Answer:
    """What a lookup answers, as callables ask it; after a first use if that is asked for."""
    from tuner.lookup import answer
    from tuner.lookup.asking import kept_open, parse_device, parse_key

    assert asked.regime is not None, "it was chosen"
    if on_miss == PREDICT:
        return answer(kept_open(db), parse_key(problem), parse_device(asked.device), asked.regime)
    from tuner.lookup.stale import builtin_now
    from tuner.study.first_use import answer_at_first_use

    return answer_at_first_use(problem, crew, builtin_now(), asked.regime, kept_open(db))


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


def _write(
    output: Path, data: dict[str, Any], cases: list[DrawnProblem], told: LossSummary, seconds: float
) -> None:
    """The page, and its data beside it."""
    data = {**data, "seconds": seconds}
    output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page = [
        f"# {data['title']}", "",
        f"Each problem was answered, then tuned for {seconds:g} s; then answer, champion and library were "
        "timed in turn. Problems are drawn log-uniformly, half of them round, layouts in turn.",
        "", *(f"- {line}" for line in lines(told)), "",
        f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS),
        *(f"| {' | '.join(row(each))} |" for each in cases), "",
        *(f"{each.problem}: {each.why}" for each in cases if each.why),
    ]  # fmt: skip
    output.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")

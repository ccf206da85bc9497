"""``tuner lookup-quality``: measures what answers cost at drawn problems.

Each problem is answered, then tuned for a while; then the answers, the study's champion and the library are
timed in turn.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import database_option, json_option, subject_options, writable_file
from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import find, kind_of
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, InputError, NothingFound
from tuner.lookup import Answer, answer
from tuner.lookup.asking import kept_open, parse_device, parse_key
from tuner.lookup.stale import builtin_now
from tuner.model.calibrate import LossSummary, summarized
from tuner.model.survey_design import Ranges, draw
from tuner.results.measurement import Measurement
from tuner.results.record import ProblemKey, Record
from tuner.store import Store
from tuner.study.first_use import FirstUse, measure
from tuner.study.locks import occupied
from tuner.study.requests import StudyRequest
from tuner.study.study import Study, open_study
from tuner.workers.device_worker import Crew

#: Ways to answer, and what a title says of them.
WAYS = {"predict": "", "measure": ", measured at first use"}
COLUMNS = ("problem", "match", "use", "said", "answer", "library", "champion", "loss", "library / answer")


@click.command()
@click.argument("operation", default="gemm")
@click.option(
    "--drawn", "count", type=click.IntRange(1), default=32, show_default=True, help="Problems to draw."
)
@click.option("--measure", is_flag=True, help="Time them: this takes the device for as long as they take.")
@click.option("--seconds", type=float, default=13.0, show_default=True, help="Seconds of each study.")
@click.option("--seed", type=int, default=None, help="Of problems and their studies; random unless given.")
@click.option(
    "--on-miss", type=click.Choice(list(WAYS)), default=("predict",), multiple=True,
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
    writable_file(output)
    if not measure:
        raise InputError("answers are timed on the device, which takes it for minutes; say so by --measure")
    catalogue, detected = builtin_now(), find(device)
    regime = regime or kind_of(detected.target).survey.regime
    seed = secrets.randbits(32) if seed is None else seed
    problems = draw(catalogue.operation(operation), Ranges.on(detected.target, dtype=dtype), count, seed)
    kernels = catalogue.of(operation, detected.target, dtype=problems[0].dtype)
    requests = [
        StudyRequest(problem, kernels, (detected,), regime, seconds, seed=seed + number)
        for number, problem in enumerate(problems)
    ]
    title = f"Drawn problems of {operation} on {detected.info.name}, {regime}, seed {seed}"
    where = {"device": detected.info.name, "regime": regime, "seed": seed}
    ways = list(dict.fromkeys(on_miss))
    pages = [Page(title + WAYS[way], where) for way in ways]
    answers = [partial(_answered, way, device, regime, db) for way in ways]
    with occupied(db, (detected,), title):
        for cases in measured(requests, answers):
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
        for line in lines(summary(page.cases)):
            click.echo(line)


def _answered(way: str, device: str, regime: str, db: str, problem: Problem, crew: Crew) -> Answer:
    """What a lookup answers, as callables ask it; after a first use if that is the way."""
    if way == "measure":
        return answer_at_first_use(problem, crew, builtin_now(), regime, kept_open(db))
    return answer(kept_open(db), parse_key(problem), parse_device(device), regime)


def answer_at_first_use(
    problem: Problem, crew: Crew, catalogue: Catalogue, regime: str = "cold", known: Store | None = None
) -> Answer:
    """What a lookup answers once a problem was measured as at its first use; the records are thrown away.

    Args:
        problem: The problem.
        crew: Workers of the device, which no other process uses; open or not.
        catalogue: Kernels.
        regime: How time is taken.
        known: Has the model and the champions to begin with, beside published ones.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
    """
    kernels = catalogue.serving(problem, crew.found[0].target)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/first.db") as store:
        crew.open()
        measure(FirstUse(problem, kernels, regime=regime), store, crew, MachineWatch(crew.found), known)
        info = crew.devices[0].info
        measured = answer(store, ProblemKey.of(problem), info, regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(measured, reasons=(*measured.reasons, took))


@dataclass(frozen=True)
class DrawnProblem:
    """A drawn problem, what was answered there, and the times of that and of what it is compared with.

    Attributes:
        problem: The problem.
        answer: As `Answer.to_json` tells it; without a device's limits.
        kernel_s: Seconds of the config that the answer names, run or not; None where it failed.
        library_s: Of the library; None without one.
        champion_s: Of the champion of a short study; None where it found none.
        champion: Its kernel and config, for people; empty without one.
        why: What went wrong; empty where nothing did.
    """

    problem: Problem
    answer: dict[str, Any]
    kernel_s: float | None = None
    library_s: float | None = None
    champion_s: float | None = None
    champion: str = ""
    why: str = ""

    @property
    def answered_s(self) -> float:
        """Seconds of what is to be used; infinite where that failed."""
        return (self.kernel_s if self.answer["use"] == "kernel" else self.library_s) or math.inf

    @property
    def loss(self) -> float:
        """Fraction of speed that the answer loses: 1 - best / answered."""
        best_s = min(time_s for time_s in (self.kernel_s, self.library_s, self.champion_s, math.inf) if time_s)
        return 1 - best_s / self.answered_s if math.isfinite(best_s) else 1.0

    def over_library(self, time_s: float | None) -> float:
        """How many times as fast as the library something is; NaN without a library or a time."""
        return self.library_s / time_s if self.library_s and time_s and math.isfinite(time_s) else math.nan

    def to_json(self) -> dict[str, Any]:
        """Seconds, fractions."""
        named = "match", "use", "kernel", "config", "predicted", "expected_loss", "expected_loss_interval"
        return {
            **self.problem.to_json(), **{name: self.answer[name] for name in named},
            "kernel_time_s": self.kernel_s, "library_time_s": self.library_s,
            "champion_time_s": self.champion_s, "champion": self.champion, "loss": self.loss, "why": self.why,
        }  # fmt: skip


def summary(cases: Sequence[DrawnProblem]) -> LossSummary:
    """What the cases tell together."""
    unknown = math.nan, math.nan
    intervals = [(case.answer["predicted"] or {}).get("time_interval_s") or unknown for case in cases]
    lows, highs = np.array(intervals).reshape(-1, 2).T
    answered_s = np.array([case.answered_s for case in cases])
    return summarized(
        np.array([case.loss for case in cases]),
        np.array([case.over_library(case.answered_s) for case in cases]),
        np.array([case.over_library(case.champion_s) for case in cases]),
        np.array([case.answer["expected_loss"] for case in cases]),
        np.array([(case.answer["expected_loss_interval"] or unknown)[1] for case in cases]),
        np.where(np.isnan(lows), np.nan, (lows <= answered_s) & (answered_s <= highs)),
    )


#: Seconds in which answers, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


def compared(study: Study, answers: Sequence[Answer]) -> tuple[DrawnProblem, ...]:
    """Searches, plays the finals, and times answers, champion and library in turn, as finals do.

    Args:
        study: Open, on the problem.
        answers: What lookups answered.

    Returns:
        A case for each answer. What does not compile has no time; the library's is that from before the search
        if it was not timed now.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    study.search()
    champion, problem = study.finals().champion, study.request.problem
    kernels = {kernel.name: kernel for kernel in study.request.kernels}
    sources: list[Answer | Record] = [*answers, *([champion.record] if champion else [])]
    named = [(source.kernel, Config(dict(source.config))) for source in sources]
    rendered = {of: render(kernels[of[0]], problem, of[1]) for of in named}
    compiled = study.session.compile_all(dict(enumerate(rendered.values())))
    players = {of: compiled[number] for number, of in enumerate(rendered) if number in compiled}
    timed: list[Measurement] = []
    with contextlib.suppress(DeviceTrouble):  # it did not survive them; the next study has a worker of its own
        timed = study.session.worker.finals(list(players.values()), IN_TURN_S) if players else []
    times = dict(zip(players, timed, strict=False))
    before = study.library.time_s if study.library else None
    library_s = min(
        (measurement.time_s for measurement in timed[len(players) :] if measurement.time_s), default=before
    )
    winner, won = (times.get(named[-1]), f"{named[-1][0]} {named[-1][1]}") if champion else (None, "")
    champion_s = winner.time_s if winner else None
    return tuple(
        DrawnProblem(
            problem, told.to_json(), times[of].time_s if of in times else None, library_s, champion_s, won,
            _trouble(times.get(of)),
        )
        for told, of in zip(answers, named, strict=False)
    )  # fmt: skip


def _trouble(timed: Measurement | None) -> str:
    if timed is None:
        return "the answer's config does not compile, or the device did not survive it"
    return "" if timed.time_s else f"the answer's config failed: {timed.outcome} {timed.reason}"


def measured(
    requests: Sequence[StudyRequest], answers: Sequence[Callable[[Problem, Crew], Answer]]
) -> Iterator[tuple[DrawnProblem, ...]]:
    """Answers each problem, tunes it for a while, and times answers, champion and library in turn.

    The studies' records are thrown away, so that the problems remain ones that nobody tuned.

    Args:
        requests: The studies, one for each problem, of one device.
        answers: Ways to look a problem up; the device's workers are at hand, open or not.

    Returns:
        A case for each way to look up, problem by problem.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Crew(requests[0].found)) as crew:
        for number, request in enumerate(requests):
            told = [ask(request.problem, crew) for ask in answers]
            with Store.open(f"sqlite:///{Path(folder) / f'{number}.db'}") as store:
                try:
                    with open_study(request, store, crew=crew) as study:
                        yield compared(study, told)
                except NothingFound as error:
                    yield tuple(
                        DrawnProblem(request.problem, answer.to_json(), why=str(error)) for answer in told
                    )


@dataclass(frozen=True)
class Page:
    """What is told of one way to answer."""

    title: str
    where: dict[str, Any]
    cases: list[DrawnProblem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The summary and all cases."""
        cases = [case.to_json() for case in self.cases]
        return {"title": self.title, **self.where, "summary": summary(self.cases).to_json(), "cases": cases}

    def write(self, output: Path, seconds: float) -> None:
        """Writes the page, and its data beside it."""
        data = {**self.to_json(), "seconds": seconds}
        output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        page = [
            f"# {self.title}", "",
            f"Each problem was answered, then tuned for {seconds:g} s; then answer, champion and library were "
            "timed in turn. Problems are drawn log-uniformly, half of them round, layouts in turn.",
            "", *(f"- {line}" for line in lines(summary(self.cases))), "",
            f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS),
            *(f"| {' | '.join(row(case))} |" for case in self.cases), "",
            *(f"{case.problem}: {case.why}" for case in self.cases if case.why),
        ]  # fmt: skip
        output.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")


def row(case: DrawnProblem) -> tuple[str, ...]:
    """A case for people."""
    expected = case.answer["expected_loss"]
    return (
        str(case.problem), case.answer["match"], case.answer["use"],
        "not known" if expected >= 1 else f"{expected:.1%}",
        *(duration(time_s) if time_s else "-" for time_s in (case.kernel_s, case.library_s, case.champion_s)),
        f"{case.loss:.1%}", f"{case.over_library(case.answered_s):.3f}",
    )  # fmt: skip


def lines(told: LossSummary) -> list[str]:
    """The summary for people."""
    losses = ", ".join(f"{name} {value:.1%}" for name, value in told.loss.items())
    text = [
        f"loss of {told.cases} answers, against the best of answer, library and champion: {losses}",
        f"more than 3 % slower than the library: {told.slower} of {told.cases}",
        f"geometric mean over the library: answers {told.answers:.3f}, champions {told.champions:.3f}, "
        f"ratio {told.answers / told.champions:.3f}",
    ]
    if not math.isnan(told.said):
        text.append(f"of answers that come with an expected loss: said {told.said:.1%}, true {told.true:.1%}")
    if not math.isnan(told.loss_held):
        text.append(f"80 % intervals hold: loss {told.loss_held:.0%}, time {told.time_held:.0%}")
    return text

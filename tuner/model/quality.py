"""``tuner lookup-quality``: measures what answers cost at drawn problems.

Each problem is answered, then tuned for a while; then answer, champion and library are timed in turn.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tuner.cli.formatting import duration, print_json
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
from tuner.model.calibrate import lines, summarized
from tuner.model.commands import TIMES
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
#: Keys of an answer that a case has, too.
ANSWERED = ("match", "use", "kernel", "config", "predicted", "expected_loss", "expected_loss_interval")
#: Seconds in which answer, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


@click.command()
@click.argument("operation", default="gemm")
@click.option(
    "--drawn", "count", type=click.IntRange(1), default=32, show_default=True, help="Problems to draw."
)
@click.option("--measure", is_flag=True, help="Time them: this takes the device for as long as they take.")
@click.option("--seconds", type=float, default=13.0, show_default=True, help="Seconds of each study.")
@click.option("--seed", type=int, default=None, help="Of problems and their studies; random unless given.")
@click.option(
    "--on-miss", type=click.Choice(list(WAYS)), default="predict", show_default=True,
    help="Answer as tuner.on_miss has it; measure times 8 configs at each problem first.",
)  # fmt: skip
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None,
    help="Write a Markdown page to this file, and its data beside it, after each problem.",
)  # fmt: skip
@subject_options
@database_option
@json_option
def lookup_quality(
    operation: str, count: int, measure: bool, seconds: float, seed: int | None, on_miss: str,
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
    drawn, ranges = catalogue.operation(operation), Ranges.on(detected.target, dtype=dtype)
    problems = [draw(drawn, ranges, number, seed) for number in range(count)]
    kernels = catalogue.of(operation, detected.target, dtype=problems[0].dtype)
    requests = [
        StudyRequest(problem, kernels, (detected,), regime, seconds, seed=seed + number)
        for number, problem in enumerate(problems)
    ]
    title = f"Drawn problems of {operation} on {detected.info.name}, {regime}, seed {seed}{WAYS[on_miss]}"
    cases: list[dict[str, Any]] = []
    page = {"title": title, "device": detected.info.name, "regime": regime, "seed": seed, "seconds": seconds}

    def answered(problem: Problem, crew: Crew) -> Answer:
        if on_miss == "measure":
            return answer_at_first_use(problem, crew, catalogue, regime, kept_open(db))
        return answer(kept_open(db), parse_key(problem), parse_device(device), regime)

    with occupied(db, (detected,), title):
        for case in measured(requests, answered):
            cases.append(case)
            page |= {"summary": summary(cases), "cases": cases}
            click.echo(f"{len(cases)} of {count}: {' | '.join(row(case))}", err=True)
            if output is not None:
                output.with_suffix(".json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
                output.write_text(markdown(page), encoding="utf-8")
    print_json(page) if as_json else click.echo(markdown(page))


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


def measured(
    requests: Sequence[StudyRequest], answered: Callable[[Problem, Crew], Answer]
) -> Iterator[dict[str, Any]]:
    """Answers each problem, tunes it for a while, and times answer, champion and library in turn.

    The studies' records are thrown away, so that the problems remain ones that nobody tuned.

    Args:
        requests: The studies, one for each problem, of one device.
        answered: Looks a problem up; the device's workers are at hand, open or not.

    Returns:
        Problem by problem its case (`case_of`).

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Crew(requests[0].found)) as crew:
        for number, request in enumerate(requests):
            result = answered(request.problem, crew)
            with Store.open(f"sqlite:///{Path(folder) / f'{number}.db'}") as store:
                try:
                    with open_study(request, store, crew=crew) as study:
                        yield compared(study, result)
                except NothingFound as error:
                    yield case_of(request.problem, result, why=str(error))


def compared(study: Study, answer: Answer) -> dict[str, Any]:
    """Searches, plays the finals, and times an answer, the champion and the library in turn, as finals do.

    Args:
        study: Open, on the problem.
        answer: What a lookup answered.

    Returns:
        The case (`case_of`). What does not compile has no time; the library's is that from before the search if
        it was not timed now.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    study.search()
    champion, problem = study.finals().champion, study.request.problem
    kernels = {kernel.name: kernel for kernel in study.request.kernels}
    sources: list[Answer | Record] = [answer, *([champion.record] if champion else [])]
    named = [(source.kernel, Config(dict(source.config))) for source in sources]
    rendered = {of: render(kernels[of[0]], problem, of[1]) for of in named}
    compiled = study.session.compile_all(dict(enumerate(rendered.values())))
    players = {of: compiled[number] for number, of in enumerate(rendered) if number in compiled}
    timed: list[Measurement] = []
    with contextlib.suppress(DeviceTrouble):  # it did not survive them; the next study has a worker of its own
        timed = study.session.worker.finals(list(players.values()), IN_TURN_S) if players else []
    before = study.library.time_s if study.library else None
    library_s = min((one.time_s for one in timed[len(players) :] if one.time_s), default=before)
    ours, *theirs = (dict(zip(players, timed, strict=False)).get(of) for of in named)
    winner = (theirs[0].time_s if theirs[0] else None, "{} {}".format(*named[1])) if theirs else (None, "")
    why = "the answer's config does not compile, or the device did not survive it"
    if ours:
        why = "" if ours.time_s else f"the answer's config failed: {ours.outcome} {ours.reason}"
    return case_of(problem, answer, (ours.time_s if ours else None, library_s, winner[0]), winner[1], why)


def case_of(
    problem: Problem,
    answer: Answer,
    times_s: Sequence[float | None] = (None, None, None),
    champion: str = "",
    why: str = "",
) -> dict[str, Any]:
    """A drawn problem as JSON: what was answered there, the times of that and of what it is compared with.

    Args:
        problem: The problem.
        answer: What a lookup answered.
        times_s: Seconds of the config that the answer names, run or not; of the library; and of the champion of
            a short study. None for what failed or is not there.
        champion: The champion's kernel and config, for people; empty without one.
        why: What went wrong; empty where nothing did.

    Returns:
        ``loss`` among the rest: the fraction of speed that the answer loses, 1 - best / answered.
    """
    told = answer.to_json()
    answered_s = times_s[0 if told["use"] == "kernel" else 1] or math.inf
    best_s = min((time_s for time_s in times_s if time_s), default=0.0)
    return {
        **problem.to_json(), **{name: told[name] for name in ANSWERED},
        **dict(zip(TIMES, times_s, strict=True)), "champion": champion, "loss": 1 - best_s / answered_s,
        "why": why,
    }  # fmt: skip


def _times(cases: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Seconds of answers, libraries and champions; NaN where there are none."""
    kernel_s, library_s, champion_s = (np.array([case[name] for case in cases], float) for name in TIMES)
    return np.where([case["use"] == "kernel" for case in cases], kernel_s, library_s), library_s, champion_s


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the cases tell together."""
    answered_s, library_s, champion_s = _times(cases)
    unknown = math.nan, math.nan
    intervals = [(case["predicted"] or {}).get("time_interval_s") or unknown for case in cases]
    low_s, high_s = np.array(intervals, float).T
    return summarized(
        np.array([case["loss"] for case in cases]), library_s / answered_s, library_s / champion_s,
        np.array([case["expected_loss"] for case in cases]),
        np.array([(case["expected_loss_interval"] or unknown)[1] for case in cases]),
        np.where(np.isnan(low_s), np.nan, (low_s <= answered_s) & (answered_s <= high_s)),
    )  # fmt: skip


def row(case: Mapping[str, Any]) -> tuple[str, ...]:
    """A case for people."""
    expected, sizes = case["expected_loss"], " x ".join(map(str, case["shape"].values()))
    (answered_s,), (library_s,), _ = _times([case])
    return (
        f"{case['operation']} {sizes} {case['dtype']} {case['layout']}".strip(), case["match"], case["use"],
        "not known" if expected >= 1 else f"{expected:.1%}",
        *(duration(case[name]) if case[name] else "-" for name in TIMES),
        f"{case['loss']:.1%}", f"{library_s / answered_s:.3f}",
    )  # fmt: skip


def markdown(page: Mapping[str, Any]) -> str:
    """The summary and all cases for people."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(row, page["cases"])]
    return "\n".join([
        f"# {page['title']}", "",
        f"Each problem was answered, then tuned for {page['seconds']:g} s; then answer, champion and library "
        "were timed in turn. Problems are drawn log-uniformly, half of them round, layouts in turn.",
        "", *(f"- {line}" for line in lines(summary(page["cases"]))), "",
        *(f"| {' | '.join(cells)} |" for cells in rows), "",
        *(f"{row(case)[0]}: {case['why']}" for case in page["cases"] if case["why"]),
    ]).rstrip() + "\n"  # fmt: skip

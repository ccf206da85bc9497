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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tuner.cli.formatting import duration, print_json
from tuner.cli.options import data_options, epilogue_option, precision_option, subject_options, writable_file
from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import filled
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import find, kind_of
from tuner.errors import DeviceTrouble, InputError, NothingFound
from tuner.lookup import Answer, answer
from tuner.lookup.answers import UNMEASURED
from tuner.lookup.asking import kept_open, parse_device, parse_key
from tuner.lookup.stale import builtin_now
from tuner.model.calibrate import spread_of, spread_text
from tuner.model.commands import TIMES
from tuner.model.survey_design import Ranges, draw
from tuner.results.measurement import SLOWER, Measurement
from tuner.results.objectives import limit_for
from tuner.results.record import ProblemKey, Record
from tuner.store import Store
from tuner.study.first_use import SECONDS
from tuner.study.first_use import measure as measure_first_use
from tuner.study.locks import occupied
from tuner.study.requests import StudyRequest
from tuner.study.study import Study, open_study
from tuner.workers.device_worker import Crew

#: Ways to answer, and what a title says of them.
WAYS = {"predict": "", "measure": ", measured at first use"}
#: Keys of an answer that a case has, too.
ANSWERED = ("match", "use", "kernel", "config", "predicted", "expected_loss", "expected_loss_interval")
#: Seconds in which answer, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


@click.command()
@click.argument("operation", default="gemm")
@click.option("--drawn", "count", type=click.IntRange(1), default=32, show_default=True, help="Problems drawn.")
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
@epilogue_option
@precision_option
@data_options
def lookup_quality(
    count: int, measure: bool, seconds: float, seed: int | None, output: Path | None, as_json: bool, **on: Any
) -> None:
    """Measure what answers for unknown problems cost.

    Each drawn problem is looked up and then tuned for --seconds; answer, champion and library are timed in
    turn. What a model lost at problems left out of its survey is told by `tuner model show`.
    """
    writable_file(output)
    if not measure:
        raise InputError("answers are timed on the device, which takes it for minutes; say so by --measure")
    catalogue, detected = builtin_now(), find(on["device"])
    operation, known = catalogue.operation(on["operation"]), kept_open(on["db"])
    regime = on["regime"] or kind_of(detected.target).survey.regime
    ranges = Ranges.on(detected.target, **{name: on[name] for name in ("dtype", "precision", "epilogue")})
    seed = secrets.randbits(32) if seed is None else seed
    where = f"{operation.name} on {detected.info.name}, {regime}, seed {seed}{WAYS[on['on_miss']]}"
    page: dict[str, Any] = {
        "title": f"Drawn problems of {where}", "device": detected.info.name, "regime": regime, "seed": seed,
        "seconds": seconds, "cases": [],
    }  # fmt: skip
    with occupied(on["db"], (detected,), page["title"]), contextlib.closing(Crew((detected,))) as crew:
        for number in range(count):
            problem = draw(operation, ranges, number, seed)
            kernels, limit = catalogue.serving(problem, detected.target), limit_for(problem.precision, None)
            request = StudyRequest(
                problem, kernels, (detected,), regime, seconds, seed=seed + number, error_limit=limit
            )
            if on["on_miss"] == "measure":
                answered = answer_at_first_use(request, crew, catalogue, known)
            else:
                answered = answer(known, parse_key(problem), parse_device(on["device"]), regime)
            page["cases"].append(case := measured(request, crew, answered))
            page["summary"] = summary(page["cases"])
            click.echo(f"{number + 1} of {count}: {' | '.join(row(case))}", err=True)
            if output is not None:
                output.with_suffix(".json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
                output.write_text(markdown(page), encoding="utf-8")
    print_json(page) if as_json else click.echo(markdown(page))


def answer_at_first_use(request: StudyRequest, crew: Crew, catalogue: Catalogue, known: Store | None) -> Answer:
    """What a lookup answers once a problem was measured as at its first use; the records are thrown away.

    Args:
        request: The problem, and how time is taken.
        crew: Workers of the device, which no other process uses; open or not.
        catalogue: Kernels.
        known: Has the model and the champions to begin with, beside published ones.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
    """
    problem, begun_s = request.problem, time.monotonic()
    first = replace(request, kernels=catalogue.serving(problem, crew.found[0].target), seconds=SECONDS)
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/first.db") as store:
        crew.open()
        measure_first_use(first, store, crew, known)
        info = crew.devices[0].info
        result = answer(store, ProblemKey.of(problem), info, request.regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(result, reasons=(*result.reasons, took))


def measured(request: StudyRequest, crew: Crew, answered: Answer) -> dict[str, Any]:
    """Tunes a problem for a while, and times a lookup's answer, the champion and the library in turn.

    The study's records are thrown away, so that the problem remains one that nobody tuned.

    Args:
        request: The study.
        crew: Workers of the device, open or not.
        answered: What a lookup answered.

    Returns:
        The case (`case_of`).

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/study.db") as store:
        try:
            with open_study(request, store, crew=crew) as study:
                return _compared(study, answered)
        except NothingFound as error:
            return case_of(request.problem, answered, why=str(error))


def _compared(study: Study, answered: Answer) -> dict[str, Any]:
    """Searches, plays the finals, and times answer, champion and library once more, as finals do.

    What does not compile has no time; the library's is that from before the search if it was not timed now.
    """
    study.search()
    champion, problem = study.finals().champion, study.request.problem
    kernels = {kernel.name: kernel for kernel in study.request.kernels}
    sources: list[Answer | Record] = [answered, *([champion.record] if champion else [])]
    named = [(source.kernel, Config(dict(source.config))) for source in sources]
    players = list(dict.fromkeys(named))
    rendered = {at: render(kernels[name], problem, config) for at, (name, config) in enumerate(players)}
    compiled, timed = study.session.pool.compile_all(rendered), list[Measurement]()
    with contextlib.suppress(DeviceTrouble):  # it did not survive them; the next study has a worker of its own
        timed = study.session.worker.finals(list(compiled.values()), IN_TURN_S) if compiled else []
    results = dict(zip((players[at] for at in compiled), timed, strict=False))
    before = study.library.time_s if study.library else None
    library_s = min((one.time_s for one in timed[len(compiled) :] if one.time_s), default=before)
    ours, best = results.get(named[0]), results.get(named[-1]) if champion else None
    why = "the answer's config does not compile, or the device did not survive it"
    if ours:
        why = "" if ours.time_s else f"the answer's config failed: {ours.outcome} {ours.reason}"
    times_s = ours.time_s if ours else None, library_s, best.time_s if best else None
    return case_of(problem, answered, times_s, "{} {}".format(*named[1]) if champion else "", why)


def case_of(
    problem: Problem, answer: Answer, times_s: Sequence[float | None] = (None, None, None),
    champion: str = "", why: str = "",
) -> dict[str, Any]:  # fmt: skip
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
    data = answer.to_json()
    answered_s = times_s[0 if data["use"] == "kernel" else 1] or math.inf
    best_s = min((time_s for time_s in times_s if time_s), default=0.0)
    return {
        **problem.to_json(), **{name: data[name] for name in ANSWERED},
        **dict(zip(TIMES, times_s, strict=True)), "champion": champion, "loss": 1 - best_s / answered_s,
        "why": why,
    }  # fmt: skip


def _seconds(case: Mapping[str, Any]) -> tuple[float, float, float]:
    """Seconds of the answer, the library and the champion; NaN where there are none."""
    kernel_s, library_s, champion_s = (case[name] or math.nan for name in TIMES)
    return kernel_s if case["use"] == "kernel" else library_s, library_s, champion_s


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the cases tell together, as JSON.

    ``slower`` counts answers more than 3 % slower than the library. ``answers`` and ``champions`` are geometric
    means of how many times as fast as the library they are. ``said`` and ``true`` are mean losses of the cases
    of which one was said. ``loss_held`` and ``time_held`` are shares of the 80 % intervals that hold.
    """
    answered_s, library_s, champion_s = np.array([_seconds(case) for case in cases]).T
    said = [case for case in cases if case["expected_loss"] < UNMEASURED]
    of_loss = [(case["expected_loss_interval"], case["loss"]) for case in said]
    of_time = [((case["predicted"] or {}).get("time_interval_s"), _seconds(case)[0]) for case in cases]
    held = {
        name: _mean([interval[0] <= value <= interval[1] + 1e-9 for interval, value in pairs if interval])
        for name, pairs in (("loss_held", of_loss), ("time_held", of_time))
    }
    return {
        "cases": len(cases), "loss": spread_of(np.array([case["loss"] for case in cases])),
        "slower": int(np.sum(answered_s > (1 + SLOWER) * library_s)),
        "answers": _geometric(library_s / answered_s), "champions": _geometric(library_s / champion_s),
        "said": _mean([case["expected_loss"] for case in said]), "true": _mean([case["loss"] for case in said]),
        **held,
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _geometric(ratios: Any) -> float | None:
    mean = _mean(np.log(ratios[np.isfinite(ratios)]))
    return None if mean is None else math.exp(mean)


def row(case: Mapping[str, Any]) -> tuple[str, ...]:
    """A case for people."""
    expected, sizes = case["expected_loss"], " x ".join(map(str, case["shape"].values()))
    answered_s, library_s, _ = _seconds(case)
    return (
        f"{case['operation']} {sizes} {case['dtype']} {case['layout']}".strip(), case["match"], case["use"],
        "not known" if expected >= UNMEASURED else f"{expected:.1%}",
        *(duration(case[name]) if case[name] else "-" for name in TIMES),
        f"{case['loss']:.1%}", f"{library_s / answered_s:.3f}",
    )  # fmt: skip


def markdown(page: Mapping[str, Any]) -> str:
    """The summary and all cases for people."""
    figure = lambda value: value if value is None else f"{value:.3f}"
    template = Path(__file__).with_name("templates") / "quality.md.jinja"
    return filled(
        template, {"spread": spread_text, "figure": figure}, page=page, known=summary(page["cases"]), row=row
    )

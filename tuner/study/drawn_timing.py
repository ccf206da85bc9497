"""Answers, the champion of a short study and the library, timed in turn."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.lookup.answers import Answer
from tuner.results.measurement import Measurement
from tuner.study.drawn import Drawn
from tuner.study.in_turn import timed_in_turn
from tuner.study.study import Study

#: Seconds in which answers, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


def compared(study: Study, found: Sequence[Answer]) -> tuple[Drawn, ...]:
    """Searches, plays the finals, and times answers, champion and library in turn.

    Args:
        study: Open, on the problem.
        found: What lookups answered.

    Returns:
        A case for each answer.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    study.search()
    champion = study.finals().champion
    kernels = {each.name: each for each in study.request.kernels}
    problem, picked = study.request.problem, [(each.kernel, Config(dict(each.config))) for each in found]
    if champion is not None:
        picked.append((champion.record.kernel, Config(dict(champion.record.config))))
    rendered = {pick: render(kernels[pick[0]], problem, pick[1]) for pick in picked}
    times, library = timed_in_turn(study, rendered, IN_TURN_S)
    library_s = library.time_s if library else None
    winner, won = (times.get(picked[-1]), f"{picked[-1][0]} {picked[-1][1]}") if champion else (None, "")
    cases = []
    for answer, pick in zip(found, picked, strict=False):
        answered = times.get(pick)
        fine = answered is not None and answered.time_s
        cases.append(Drawn(
            problem, answer.to_json(), answered.time_s if answered else None, library_s,
            winner.time_s if winner else None, won, "" if fine else _trouble(answered),
        ))  # fmt: skip
    return tuple(cases)


def _trouble(answered: Measurement | None) -> str:
    if answered is None:
        return "the answer's config does not compile, or the device did not survive it"
    return f"the answer's config failed: {answered.outcome} {answered.reason}"

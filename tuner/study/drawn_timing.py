"""An answer, the champion of a short study and the library, timed in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.declare.kernel import Rendered, render
from tuner.declare.space import Config
from tuner.errors import DeviceTrouble
from tuner.lookup.answers import Answer
from tuner.results.measurement import Measurement
from tuner.study.drawn import Drawn
from tuner.study.study import Study

#: Seconds in which answer, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


def compared(study: Study, found: Answer) -> Drawn:
    """Searches, plays the finals, and times answer, champion and library in turn.

    Args:
        study: Open, on the problem.
        found: What the lookup answered.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    study.search()
    champion = study.finals().champion
    kernels = {each.name: each for each in study.request.kernels}
    named = {"answer": (found.kernel, Config(dict(found.config)))}
    if champion is not None:
        named["champion"] = champion.record.kernel, Config(dict(champion.record.config))
    problem = study.request.problem
    times, library = _in_turn(
        study, {name: render(kernels[kernel], problem, config) for name, (kernel, config) in named.items()}
    )
    answered = times.get("answer")
    why = "" if answered is not None and answered.time_s else _trouble(answered)
    winner = times.get("champion")
    return Drawn(
        problem, found.to_json(), answered.time_s if answered else None, library.time_s if library else None,
        winner.time_s if winner else None,
        f"{named['champion'][0]} {named['champion'][1]}" if champion is not None else "", why,
    )  # fmt: skip


def _in_turn(
    study: Study, rendered: Mapping[str, Rendered]
) -> tuple[dict[str, Measurement], Measurement | None]:
    """Measurements by name, and the library's; of what compiles."""
    compiled = study.session.compile_all(dict(enumerate(rendered.values())))
    players = {name: compiled[number] for number, name in enumerate(rendered) if number in compiled}
    if not players:
        return {}, study.library
    try:
        found = study.session.worker.finals(list(players.values()), IN_TURN_S)
    except DeviceTrouble:  # it did not survive them; the next study has a worker of its own
        return {}, study.library
    libraries = [each for each in found[len(players) :] if each.time_s]
    best = min(libraries, key=lambda each: each.time_s or math.inf, default=study.library)
    return dict(zip(players, found, strict=False)), best


def _trouble(answered: Measurement | None) -> str:
    if answered is None:
        return "the answer's config does not compile, or the device did not survive it"
    return f"the answer's config failed: {answered.outcome} {answered.reason}"

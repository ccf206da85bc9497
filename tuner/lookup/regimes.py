"""Answers from another regime than was asked for: better than a default, and told as what they are."""

from __future__ import annotations

from dataclasses import replace

from tuner.devices.protocol import REGIMES
from tuner.lookup.answers import EXACT, UNMEASURED, Answer, Loss, Question


def other_regimes(question: Question) -> list[str]:
    """The other regimes, those with caches in the same state first.

    As part of a graph or not makes a difference of microseconds; full or empty caches may turn the order of
    configs round.
    """
    state = question.regime.partition("-")[0]
    return sorted((each for each in REGIMES if each != question.regime), key=lambda each: state not in each)


def of_another_regime(found: Answer, question: Question) -> Answer:
    """An answer to the question from what was timed in another regime."""
    assert found.question is not None, "a tier keeps its question"
    regime = found.question.regime
    reason = f"nothing was timed {question.regime} on such a device; this was timed {regime}"
    if found.match == EXACT:
        said = f"not measured: timed {regime} for this very problem, and not {question.regime}"
        found = replace(found, loss=Loss(UNMEASURED, 0, said), library=_library(found))
    elif found.loss.cases:
        found = replace(found, loss=replace(found.loss, said=f"{regime}: {found.loss.said}"))
    return replace(found, question=question, reasons=(reason, *found.reasons))


def _library(found: Answer) -> str:
    """The library's name where it won."""
    return "" if found.use == "kernel" else found.use

"""Answers of a model of times, for the extension point "predictor" (`tuner.lookup.snapshot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.lookup.answers import (
    PREDICTED,
    RECKONED,
    SIMILAR_DEVICE,
    UNMEASURED,
    Answer,
    Loss,
    Predicted,
    Question,
)
from tuner.model.fitted import Model
from tuner.model.near import TunedNear
from tuner.model.predict import Prediction, Predictor, predictor_for
from tuner.model.stored import models
from tuner.results.record import latest_hash

if TYPE_CHECKING:
    from tuner.store.reading import Reader

#: Leads that differ by less look the same when they are printed.
NOTICEABLE = 0.005


def from_model(
    model: Model, question: Question, problem: Problem, kernels: Sequence[Kernel], alike: str = ""
) -> Answer | None:
    """What a model answers; None where it does not know such problems, or none of its configs is legal.

    Args:
        model: Of the question's device, or of one that is like it.
        question: What is asked.
        problem: The same as it is declared now.
        kernels: The kernels that may answer, as they are now.
        alike: In what the model's device is like the question's; empty where it is the same.
    """
    if not model.knows(problem):
        return None
    found = predictor_for(model, kernels, question.device).answer(problem)
    if found.best is None:
        return None
    baseline = problem.operation.baselines.get(question.device.kind)
    name = baseline.named(problem) if baseline else "the library"
    library_s = found.library_s if math.isfinite(found.library_s) else None
    told = Predicted(found.best.time_s, library_s, None if alike else found.time_interval_s)
    lead, least = math.exp(found.gain), _least_lead(model, question.device, bool(alike))
    by_library = library_s is not None and not lead > least
    stale, why = staleness_of(model, question.device, kernels)
    return Answer(
        None, SIMILAR_DEVICE if alike else PREDICTED, _loss(model, found, alike), stale=stale, stale_reason=why,
        question=question, default=(found.best.kernel, found.best.config), library=name if by_library else "",
        reasons=(*([alike] if alike else []), _reason(model, found, told, name, least)),
        predicted=told,
    )  # fmt: skip


def _least_lead(model: Model, device: DeviceInfo, alike: bool) -> float:
    """How many times as fast as the library a kernel must be predicted to be.

    Nobody has measured how far predictions are off on a device that is only alike; none is
    trusted from another CPU: their libraries, cores and caches differ more.
    """
    if not alike:
        return math.exp(model.calibration.margin)
    return math.inf if kind_of(device.kind).is_host else 1 / (1 - RECKONED)


def _loss(model: Model, found: Prediction, alike: str) -> Loss:
    if alike:
        return Loss(UNMEASURED, 0, "not measured: no problem was timed on this device")
    cases, (low, high) = len(model.calibration.losses), found.loss_interval
    searched = model.calibration.searched
    against = "what a study is likely to find, extrapolated from fewer tries there"
    if searched:
        against = f"a longer search, which {searched} of them had; at the others {against}"
    said = (
        f"measured at {cases} surveyed problems, each predicted without its own times, against {against}; the "
        "nearest ones count more"
    )
    if drawn := model.calibration.drawn:
        told = f"what {drawn} problems drawn after the fit lost against studies"
        said = f"{model.calibration.scale:.2f} of what was {said}: it is scaled to {told}"
    said += f"; four of five lose {low:.1%} to {high:.1%}"
    return Loss(found.expected_loss, cases, said, found.loss_interval)


def _reason(model: Model, found: Prediction, told: Predicted, library: str, least: float) -> str:
    assert found.best is not None, "a config is answered"
    counts, kernel, lead = model.provenance, found.best.kernel, math.exp(found.gain)
    rests = f"predicted from {counts.get('timings', 0)} timings at {counts.get('problems', 0)} problems"
    if told.library_s is None:
        return rests
    if lead > least:
        return f"{rests}: {kernel} is {told.speedup:.2f} x as fast as {library}"
    why = f"below {least:.2f} x" if math.isfinite(least) else "on another CPU"
    # Where what was timed near by says less than the prediction, that is what was too little.
    near = f" and {lead:.2f} x with what was timed near by" if lead < told.speedup * (1 - NOTICEABLE) else ""
    return f"{rests}: {library} is the safer choice, {kernel} is {told.speedup:.2f} x as fast{near}, {why}"


def staleness_of(model: Model, device: DeviceInfo, kernels: Sequence[Kernel]) -> tuple[bool, str]:
    """Whether kernels, or the driver of the device, have changed since the survey; and what."""
    sources = model.provenance.get("sources", {})
    changed = sorted(  # a hash takes milliseconds, so those that were not surveyed are not asked for theirs
        each.name for each in kernels
        if each.name in sources and latest_hash(sources[each.name]) != each.source_hash
    )  # fmt: skip
    if changed:
        return True, f"kernels have changed since the survey: {', '.join(changed)}; survey and fit again"
    then, here = model.device.driver, device.driver
    if model.device.name == device.name and then and here and then != here:
        return True, f"the driver was {then} in the survey and is {here}; survey and fit again"
    return False, ""


def search(
    problem: Problem, kernels: Sequence[Kernel], device: DeviceInfo, regime: str, store: Reader | None
) -> Predictor | None:
    """The predictor of the device's model, by the kernels whose sources are those of its survey."""
    every = models(problem.operation.name, regime, store=store, dtype=problem.dtype)
    model = next((model for model in every if model.device.name == device.name), None)
    if model is None or not model.knows(problem):
        return None
    sources = model.provenance.get("sources", {})
    surveyed = [each for each in kernels if latest_hash(sources.get(each.name, "")) == each.source_hash]
    return predictor_for(model, surveyed, device) if surveyed else None


#: What lookups and studies ask: the models there are, what one answers, what tuned problems answer where there
#: is none, and the predictor for a study.
PREDICTOR = SimpleNamespace(models=models, answer=from_model, near=TunedNear, search=search)

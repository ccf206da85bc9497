"""Answers of a model, or of tuned problems: the extension point "predictor" (`tuner.lookup.snapshot`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.lookup import answers
from tuner.lookup.answers import Answer, Loss, Predicted, Question
from tuner.lookup.snapshot import TunedProblem
from tuner.model.physics import limits
from tuner.model.predict import Model, Predictor, predictor_for
from tuner.model.stored import model_of, models
from tuner.model.table import Choices, Evidence
from tuner.results.distance import distances, log_dims
from tuner.results.record import ProblemKey, latest_hash

if TYPE_CHECKING:
    from tuner.store.reading import Reader

#: How many times as fast as the library a config must be where nobody measured how far such figures are off.
LEAD = 1 / (1 - answers.RECKONED)


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
    prediction, trust = predictor_for(model, kernels, question.device).answer(problem), model.calibration
    if prediction.best is None:
        return None
    library_s = prediction.library_s if math.isfinite(prediction.library_s) else None
    predicted = Predicted(prediction.best.time_s, library_s, None if alike else prediction.time_interval_s)
    lead, least = math.exp(prediction.gain), LEAD if alike else math.exp(trust.margin)
    counts, (low, high) = model.provenance, prediction.loss_interval
    rests = f"predicted from {counts.get('timings', 0)} timings at {counts.get('problems', 0)} problems"
    doubt = f"{lead:.2f} x with what was timed near by, and {least:.2f} x is needed"
    loss = Loss(answers.UNMEASURED, 0, "not measured: no problem was timed on this device")
    if not alike:
        said = f"measured at {len(trust.losses)} surveyed problems, each predicted without its own times"
        if trust.drawn:
            said += f", and scaled to what {trust.drawn} problems drawn after the fit lost against studies"
        elif trust.scale > 1:
            said += ", and raised for configs that nobody timed there"
        said += f"; the nearest ones count more; four of five lose {low:.1%} to {high:.1%}"
        loss = Loss(prediction.expected_loss, len(trust.losses), said, prediction.loss_interval)
    return _answer(
        question, problem, alike, (rests, "" if library_s is None or lead > least else doubt),
        default=prediction.best[:2], predicted=predicted, loss=loss,
        stale_reason=stale_reason(
            model, question.device, next(one for one in kernels if one.name == prediction.best.kernel)
        ),
    )  # fmt: skip


def _answer(
    question: Question, problem: Problem, alike: str, reasons: tuple[str, str], predicted: Predicted,
    **more: Any,
) -> Answer:  # fmt: skip
    """An answer by what was timed at other problems, or on another device.

    Args:
        question: What is asked.
        problem: The same as it is declared now.
        alike: In what the other device is like the question's; empty where it is the same.
        reasons: What the answer rests on; and why the kernel's lead over the library is not supported, empty if
            it is. None is on another CPU: their libraries, cores and caches differ more.
        predicted: Times.
        more: Other attributes.
    """
    (rests, doubt), kind = reasons, question.device.kind
    baseline = problem.operation.baselines.get(kind)
    library = baseline.named(problem) if baseline else ""
    if alike and kind_of(kind).is_host:
        doubt = doubt or "another CPU tells too little of it"
    if library and doubt:
        rests += f"; {library} is the safer choice: the kernel has {predicted.speedup:.2f} x its speed, {doubt}"
    return Answer(
        None, answers.SIMILAR_DEVICE if alike else answers.PREDICTED, question=question,
        library=library if doubt else "", reasons=(*([alike] if alike else []), rests), predicted=predicted,
        stale=bool(more["stale_reason"]), **more,
    )  # fmt: skip


def stale_reason(model: Model, device: DeviceInfo, kernel: Kernel) -> str:
    """What has changed since the survey, of an answer's kernel or the device's driver; empty if nothing has."""
    surveyed = model.provenance.get("sources", {}).get(kernel.name, kernel.source_hash)
    if latest_hash(surveyed) != kernel.source_hash:
        return f"kernels have changed since the survey: {kernel.name}; survey and fit again"
    then, here = model.device.driver, device.driver
    if model.device.name == device.name and then and here and then != here:
        return f"the driver was {then} in the survey and is {here}; survey and fit again"
    return ""


def search(
    problem: Problem, kernels: Sequence[Kernel], device: DeviceInfo, regime: str, store: Reader | None
) -> Predictor | None:
    """The predictor of the device's model, by the kernels whose sources are those of its survey."""
    model = model_of(problem.operation.name, regime, store, device.name, ProblemKey.of(problem).arithmetic)
    if model is None or not model.knows(problem):
        return None
    sources = model.provenance.get("sources", {})
    surveyed = [kernel for kernel in kernels if latest_hash(sources.get(kernel.name, "")) == kernel.source_hash]
    return predictor_for(model, surveyed, device) if surveyed else None


#: A problem is near another one if no dim differs by a larger factor.
NEAR = 4.0
#: Near problems with the library's time that must speak for a kernel.
LEAST_NEAR = 3


class TunedNear:
    """Answers from the tuned problems of one operation, dtype and regime on one device, without a survey."""

    def __init__(self, tuned: Sequence[TunedProblem], kernels: Iterable[Kernel]) -> None:
        """Takes what was tuned.

        Args:
            tuned: At least one problem.
            kernels: The kernels that may answer, as they are now.
        """
        self._tuned, self._sources = tuned, {kernel.name: kernel.source_hash for kernel in kernels}
        self._columns = list(dict.fromkeys(column for one in tuned for column in one.times))
        self._choices = Choices(self._columns, kernels)
        self._kinds = list(dict.fromkeys(one.problem.layout for one in tuned))
        self._library_s, best_s = np.array([(one.library_s, one.best_s) for one in tuned]).T
        rates, quickest = limits([one.problem for one in tuned], best_s), int(best_s.argmin())
        # The quickest of few problems may be a long one: what its work explains is no launch.
        work_s = replace(rates, launch_s=0.0).roofline_s(tuned[quickest].problem)
        self._rates = replace(rates, launch_s=max(float(best_s[quickest]) - work_s, 0.0))
        self._places = np.array([log_dims(one.problem.shape) for one in tuned])
        number = {column: at for at, column in enumerate(self._columns)}
        behind = [time.time_s / one.best_s for one in tuned for time in one.times.values()]
        self._evidence = Evidence(
            self._places, np.array([self._kinds.index(one.problem.layout) for one in tuned], np.int32),
            np.log(self._library_s / best_s),
            np.cumsum([0, *(len(one.times) for one in tuned)]).astype(np.int32),
            np.array([number[column] for one in tuned for column in one.times], np.int32),
            np.maximum(np.log(behind), 0.0),
        )  # fmt: skip
        self._standing = replace(self._evidence, library=np.zeros(len(tuned)))

    def answer(self, question: Question, problem: Problem, alike: str = "") -> Answer | None:
        """What tuned problems answer; None where no legal config was good near by.

        The library is to be used unless the config is expected to be faster by more than a figure that nobody
        has measured may be off; on another CPU always.

        Args:
            question: What is asked.
            problem: The same as it is declared now.
            alike: In what the device of the problems is like the question's; empty where it is the same.
        """
        kind = self._kinds.index(problem.layout) if problem.layout in self._kinds else -1
        count = len(self._columns)
        behind, gains = self._evidence.around(problem, kind, count)
        legal = self._choices.legal(problem, question.device, np.isfinite(behind))
        if not len(legal):
            return None
        # A config that was good at some of the near problems should not be bad at others.
        behind -= self._standing.around(problem, kind, count)[1]
        best = int(legal[np.argmin(behind[legal])])
        named, gain = self._columns[best], float(gains[best])
        here = log_dims(problem.shape)
        timed = [at for at, tuned in enumerate(self._tuned) if named in tuned.times]
        near = self._tuned[min(timed, key=distances(self._places, here).__getitem__)]
        time = near.times[named]
        kernel_s = time.time_s * self._rates.roofline_s(problem) / self._rates.roofline_s(near.problem)
        predicted = Predicted(kernel_s, kernel_s * math.exp(gain) if math.isfinite(gain) else None, None)
        close = (np.abs(self._places - here) <= math.log2(NEAR)).all(axis=1) & (self._library_s > 0)
        rests = (
            f"no survey was made; problems tuned: {len(self._tuned)}; {named[0]} took "
            f"{time.time_s / near.best_s:.2f} x the best time at {near.problem} on {near.device.name}"
        )
        doubt = f"{LEAD:.2f} x is needed at {LEAST_NEAR} problems with all dims within {NEAR:g} x"
        if predicted.speedup > LEAD and close.sum() >= LEAST_NEAR:
            doubt = ""
        changed = time.source_hash != self._sources[named[0]]
        return _answer(
            question, problem, alike, (rests, doubt), default=named, predicted=predicted,
            loss=Loss(answers.UNMEASURED, 0, "not measured: it takes a survey of the operation on this device"),
            stale_reason=f"kernel {named[0]!r} has changed since; tune again" if changed else "",
        )  # fmt: skip


#: What lookups and studies ask: the models there are, what one answers, what tuned problems answer where there
#: is none, and the predictor for a study.
PREDICTOR = SimpleNamespace(models=models, answer=from_model, near=TunedNear, search=search)

"""What a survey knows before it begins: published results, records, earlier surveys, and a model's word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.model.predict import predictor_for
from tuner.model.stored import models
from tuner.model.survey_design import Design, Proposals, SurveyRequest
from tuner.model.survey_pool import Named
from tuner.model.surveyed import joined
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY
from tuner.store import Store, published


def design(request: SurveyRequest, store: Store, device: DeviceInfo) -> Design:
    """The design of a survey that goes on from all that is known of the operation on such a device.

    Raises:
        InputError: The ranges leave no problem.
    """
    found = Design(request, device, proposals(request, device, store))
    for problem, times_s in _tuned(request, store, device) + _surveyed(request, store, device):
        numbered = {found.pool.number(named): each_s for named, each_s in times_s.items()}
        found.seen.add(problem, {at: each_s for at, each_s in numbered.items() if at is not None})
    return found


def proposals(request: SurveyRequest, device: DeviceInfo, store: Store) -> Proposals:
    """What the device's model takes for the fastest; nothing where there is none."""
    every = models(request.operation.name, request.regime, store=store, dtype=request.limits.dtype)
    known = [each for each in every if each.device.name == device.name]
    if not known:
        return lambda problem, count: []
    predictor = predictor_for(known[0], request.kernels, device)

    def asked(problem: Problem, count: int) -> list[Named]:
        if not known[0].knows(problem):
            return []
        return [(each.kernel, each.config) for each in predictor.candidates(problem, count)]

    return asked


def _tuned(
    request: SurveyRequest, store: Store, device: DeviceInfo
) -> list[tuple[ProblemKey, dict[Named, float]]]:
    """Problems with the times of their champions and, where published, runners-up."""
    operation = request.operation.name
    published_here = [
        each
        for each in published.entries(operation)
        if (each.champion.record.device.kind, each.champion.record.device.name) == (device.kind, device.name)
    ]
    champions = store.champions(operation=operation, device=device)
    found = []
    for champion, others in [
        *((each, ()) for each in champions),
        *((each.champion, each.runners_up) for each in published_here),
    ]:
        record = champion.record
        times = {_named(each.kernel, each.config): each.time_s for each in others}
        times[_named(record.kernel, record.config)] = record.measurement.time_s or math.inf
        found.append((record.problem, times))
    return found


def _surveyed(
    request: SurveyRequest, store: Store, device: DeviceInfo
) -> list[tuple[ProblemKey, dict[Named, float]]]:
    """Problems of earlier surveys, also of this one, with the times of configs of kernels as they are."""
    sources = {kernel.name: kernel.source_hash for kernel in request.kernels}
    found = joined(store.survey_parts(request.operation.name, device, request.regime), sources)
    times: list[dict[Named, float]] = [{} for _ in found.problems]
    for problem, config, time_s in zip(found.problem, found.config, found.time_s.tolist(), strict=True):
        if config != LIBRARY:
            times[problem][_named(found.configs[config][0], dict(found.configs[config][1]))] = time_s
    return list(zip(found.problems, times, strict=True))


def _named(kernel: str, config: Mapping[str, Any]) -> Named:
    return kernel, Config(config)

"""The surveys of a night, before its problems: each goes on where it ended in the night before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tuner.declare.catalogue import Catalogue, builtin
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import InputError
from tuner.lookup.demand import most_wanted
from tuner.model.survey import refit_if_possible, run_survey
from tuner.model.survey_design import CONFIGS, PER_PROBLEM, Ranges, SurveyRequest
from tuner.night.plan import PlanItem
from tuner.night.plan_items import Plan, SurveyItem
from tuner.results.objectives import limit_for
from tuner.results.record import Wanted
from tuner.store import Store


def run_surveys(plan: Plan, store: Store, found: DetectedDevice, deadline_s: float | None) -> Iterator[str]:
    """Runs the plan's surveys, each for its seconds or up to the deadline.

    Args:
        plan: The plan.
        store: Where timings go.
        found: The device.
        deadline_s: When the night ends, by `time.monotonic`; None without an end.

    Yields:
        What each came to, for people.

    Raises:
        DeviceTrouble: The device cannot be opened or stays unwell; what was timed is kept.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """
    for item in plan.surveys:
        seconds = item.table.seconds
        left_s = seconds if deadline_s is None else min(seconds, deadline_s - time.monotonic())
        if left_s <= 0:
            yield f"survey of {item.operation.name}: not reached"
            continue
        request = _request(item, found, left_s)
        progress = run_survey(request, store)
        told = f"{progress.timings} timings at {progress.problems} problems"
        if progress.problems:
            told = f"{told}; {refit_if_possible(store, request)}"
        yield f"survey of {item.operation.name}: {told}"


def _request(item: SurveyItem, found: DetectedDevice, seconds: float) -> SurveyRequest:
    table, operation = item.table, item.operation
    kernels = item.catalogue.of(
        operation.name, found.target, tuple(table.kernels), dtype=table.dtype or operation.dtypes[0]
    )
    regime = item.regime or kind_of(found.target).survey.regime
    ranges = Ranges.on(found.target, most=table.most, layouts=tuple(table.layouts), dtype=table.dtype)
    return SurveyRequest(
        operation, tuple(kernels), found, seconds, regime, table.seed, ranges, item.problems, table.drawn,
        table.configs or CONFIGS, table.per_problem or PER_PROBLEM,
    )  # fmt: skip


def with_wanted(plan: Plan, store: Store, found: DetectedDevice) -> Plan:
    """The plan with what programs asked for on a device, before its own problems.

    Args:
        plan: A plan; its ``wanted`` says how many.
        store: Where demand is counted.
        found: The device.
    """
    if not plan.wanted:
        return plan
    catalogue = builtin()
    asked = most_wanted(store, device=found.info.name, limit=plan.wanted)
    items = [item for each in asked if (item := _item(plan, each, catalogue)) is not None]
    merged: dict[object, PlanItem] = {item.key: item for item in items}
    for item in plan.items:  # its own budget counts, and its place is before those that nobody asked for
        before = merged.get(item.key)
        merged[item.key] = item if before is None else replace(item, wanted=before.wanted)
    return replace(plan, items=tuple(merged.values()))


def _item(plan: Plan, wanted: Wanted, catalogue: Catalogue) -> PlanItem | None:
    """The problem as an item; None where it is not declared any more."""
    key = wanted.problem
    try:
        operation = catalogue.operation(key.operation)
        problem = key.of_operation(operation)
    except InputError:
        return None
    limit = limit_for(key.precision, None)
    return PlanItem(
        problem,
        catalogue,
        seconds=plan.wanted_seconds,
        trials=plan.wanted_trials,
        error_limit=limit,
        wanted=wanted,
    )

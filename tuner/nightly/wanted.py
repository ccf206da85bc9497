"""The most wanted problems become problems of a night."""

from __future__ import annotations

from dataclasses import replace

from tuner.declare.catalogue import Catalogue, builtin
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError
from tuner.lookup.wanted import most_wanted
from tuner.nightly.plan import Plan, PlanItem
from tuner.results.error_limit import limit_for
from tuner.results.wanted import Wanted
from tuner.store import Store


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

"""Champions as JSON: who answers, who did before, and what was said about them."""

from __future__ import annotations

from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.results.crowns import Crown
from tuner.results.record import Champion, ProblemKey
from tuner.store import Store
from tuner.store.streams import Selection
from tuner.watch.crowns import Reign, reign, reigns


def reign_json(found: Reign) -> dict[str, Any]:
    """A problem on a device with the champion that answers, and the one before it."""
    place, rules = found.place, found.rules
    return {
        "operation": place.problem.operation, "shape": place.problem.dims, "dtype": place.problem.dtype,
        "layout": place.problem.layout, "precision": place.problem.precision,
        **place.problem.told_epilogue, "device": place.device,
        "regime": place.regime, "champion": found.champion and champion_json(found, found.champion),
        "before": found.before and champion_json(found, found.before), "pinned": rules.pinned or None,
        "frozen_at": rules.frozen_at or None,
    }  # fmt: skip


def champion_json(found: Reign, champion: Champion) -> dict[str, Any]:
    """A champion with its figures, and whether it may answer."""
    record, library = champion.record, champion.baseline
    return {
        "id": champion.id, "kernel": record.kernel, "config": dict(record.config),
        "time_s": record.measurement.time_s, "tflops": record.tflops, "gbps": record.gbps,
        "speedup": champion.speedup or None,
        "library": library and {"name": library.kernel, "time_s": library.measurement.time_s},
        "verdict": champion.verdict, "crowned_at": champion.crowned_at,
        "state": found.state(champion) or None, "confirmed": champion.id in found.rules.confirmed,
        "provisional_reasons": list(champion.doubts), "record_id": record.id,
        "device_uuid": record.device.uuid, "driver": record.device.driver,
    }  # fmt: skip


def crown_json(crown: Crown) -> dict[str, Any]:
    """An entry of the crown log."""
    return {
        "id": crown.id, "act": crown.act.value, "champion": crown.champion or None, "who": crown.who,
        "why": crown.why, "made_at": crown.made_at,
    }  # fmt: skip


def history_json(found: Reign) -> dict[str, Any]:
    """Everybody who was champion of a problem on a device, and all that was said about them."""
    return (
        reign_json(found)
        | {"history": [champion_json(found, each) for each in found.history]}
        | {"log": [crown_json(each) for each in found.log]}
    )


def history_of(store: Store, problem: ProblemKey, device: DeviceInfo, regime: str) -> dict[str, Any]:
    """The history of one problem on a device.

    Raises:
        NothingFound: It never had a champion.
    """
    return history_json(reign(store, problem, device.name, regime))


def champions_page(store: Store, wanted: Selection, after: int, limit: int) -> dict[str, Any]:
    """A page of the champions that answer, in the order of their problems."""
    found = [
        each
        for each in reigns(store, wanted.operation, wanted.device, wanted.regime)
        if wanted.has(each.place.problem) and each.champion is not None
    ]
    page = [reign_json(each) for each in found[after : after + limit]]
    more = after + limit if len(found) > after + limit else None
    return {"champions": page, "count": len(found), "next": more}

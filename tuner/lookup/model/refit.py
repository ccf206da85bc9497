"""Fits a model to what a database's surveys timed, and stores it there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.lookup.model.fit import fit
from tuner.lookup.model.predict import Model
from tuner.lookup.model.stored import to_bytes
from tuner.lookup.model.surveyed import timings
from tuner.store import Store, models


def can_fit() -> bool:
    """Whether the library that grows trees is installed."""
    return importlib.util.find_spec("lightgbm") is not None


def refit(
    store: Store,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo,
    regime: str,
    seed: int = 0,
) -> Model:
    """Fits a model to the database's surveys, and stores it in place of the one before it.

    Args:
        store: Where surveys are, and the model goes.
        operation: What is predicted.
        kernels: The kernels as they are now: times of other sources are left out.
        device: Where.
        regime: How the times were taken.
        seed: Of folds and samples.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were.
        TunerError: LightGBM is not installed.
        StoreTrouble: The database cannot be read or written.
    """
    by_name = {each.name: each for each in kernels}
    found = timings(store, operation, by_name.values(), device, regime)
    told = {**found.provenance, **circumstances(regime)}
    model = fit(replace(found, provenance=told), by_name, device, seed)
    models.add(store, operation.name, device.name, regime, to_bytes(model))
    return model


def circumstances(regime: str) -> dict[str, Any]:
    """What a model says of how it was made."""
    return {"regime": regime, "fitted_at": datetime.now(UTC).isoformat(timespec="seconds")}

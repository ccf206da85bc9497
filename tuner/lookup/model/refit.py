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
from tuner.devices.gpu_process import Gpu
from tuner.errors import InputError, NothingFound
from tuner.lookup.legality import completed
from tuner.lookup.model.fit import fit
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.stored import name_of, to_bytes
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
    dtype: str = "",
    gpu: Gpu | None = None,
) -> Model:
    """Fits a model to the database's surveys, and stores it in place of the one before it.

    Args:
        store: Where surveys are, and the model goes.
        operation: What is predicted.
        kernels: The kernels as they are now: times of other sources are left out.
        device: Where.
        regime: How the times were taken.
        seed: Of folds and samples.
        dtype: Of what is predicted; the operation's first unless given.
        gpu: Where networks are trained; None for the CPU.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were.
        TunerError: LightGBM is not installed.
        StoreTrouble: The database cannot be read or written.
    """
    by_name = {each.name: each for each in kernels}
    found = timings(store, operation, by_name.values(), device, regime, dtype)
    told = {**found.provenance, **circumstances(regime)}
    model = fit(replace(found, provenance=told), by_name, device, seed, gpu=gpu)
    models.add(store, name_of(operation, dtype), device.name, regime, to_bytes(model))
    return model


def refit_if_possible(
    store: Store,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo,
    regime: str,
    dtype: str = "",
    gpu: Gpu | None = None,
) -> str:
    """The same at the end of a survey; returns what came of it, for people.

    Args:
        store: Where surveys are, and the model goes.
        operation: What is predicted.
        kernels: The kernels as they are now.
        device: Where, with its limits or without.
        regime: How the times were taken.
        dtype: Of what was surveyed; the operation's first unless given.
        gpu: Where networks are trained, which nothing else uses now; None for the CPU.

    Raises:
        StoreTrouble: The database cannot be read or written.
    """
    if not can_fit():
        return "no model was fitted: LightGBM is not installed; pip install 'tile-tuner[model]'"
    try:
        where = completed(device, store.devices())
        refit(store, operation, kernels, where, regime, dtype=dtype, gpu=gpu)
    except (InputError, NothingFound) as error:
        return f"no model was fitted: {error}"
    return "a model was fitted; lookups answer by it"


def circumstances(regime: str) -> dict[str, Any]:
    """What a model says of how it was made."""
    return {"regime": regime, "fitted_at": datetime.now(UTC).isoformat(timespec="seconds")}

"""Fits a model to what a database's surveys timed, and stores it there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.devices.cuda.process import Gpu
from tuner.errors import InputError, NothingFound
from tuner.lookup.legality import completed
from tuner.model.fit import fit
from tuner.model.fitted import Model
from tuner.model.stored import name_of, to_bytes
from tuner.model.surveyed import joined
from tuner.model.table import LIBRARY, Timings
from tuner.store import Store, models
from tuner.store.reading import Reader


def timings(
    store: Reader,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str = "cold",
    dtype: str = "",
) -> Timings:
    """All that surveys timed of an operation on a kind of device, of kernels as they are now.

    Args:
        store: Where from.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        device: Where; a text is a uuid or a name.
        regime: How time was taken.
        dtype: Of the problems; the operation's first unless given.

    Raises:
        NothingFound: Nothing of it was surveyed.
    """
    dtype = dtype or operation.dtypes[0]
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    found = joined(store.survey_parts(operation.name, device, regime), hashes)
    asked = np.array([each.dtype == dtype for each in found.problems], bool)
    rows = asked[found.problem] if len(asked) else np.zeros(0, bool)
    if not rows.any():
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({dtype}, {regime}) on "
            f"{device if isinstance(device, str) else device.name}; run `tuner survey {operation.name}`"
        )
    problems, problem = np.unique(found.problem[rows], return_inverse=True)
    configs, config = np.unique(found.config[rows], return_inverse=True)
    library = int(configs[0] == LIBRARY)  # it has no place among the configs
    chosen = [found.configs[at] for at in configs[library:].tolist()]
    named = [found.problems[at] for at in problems.tolist()]
    return Timings(
        [operation.problem(each.dims, each.dtype, each.layout) for each in named],
        [(kernel, Config(dict(values))) for kernel, values in chosen], problem, config - library,
        found.time_s[rows], found.registers[configs[library:]], found.provenance,
    )  # fmt: skip


def from_database(
    url: str,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str,
    dtype: str = "",
) -> Timings:
    """Returns `timings` of a database.

    Raises:
        NothingFound: There is no database, or nothing of it was surveyed.
        StoreTrouble: The database cannot be read.
    """
    with Store.open(url, read_only=True) as store:
        return timings(store, operation, kernels, device, regime, dtype)


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

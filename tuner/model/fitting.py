"""Models that are fitted to surveys, of a file or of a database, and the one that answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.devices.cuda.process import Gpu, held_gpu
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound
from tuner.lookup.asking import device_in_full
from tuner.lookup.legality import completed
from tuner.lookup.stale import builtin_now
from tuner.model.fit import fit
from tuner.model.fitted import Model
from tuner.model.stored import models, name_of, to_bytes
from tuner.model.survey_file import read_survey
from tuner.model.surveyed import joined
from tuner.model.table import Timings
from tuner.results.survey import LIBRARY
from tuner.store import Store
from tuner.store import models as stored_models
from tuner.store.reading import Reader


def fitted(
    operation: str,
    device: str,
    db: str,
    *,
    survey: Path | None = None,
    dtype: str = "",
    regime: str | None = None,
    measured_at: str = "",
    seed: int = 0,
) -> Model:
    """The model of a file of timings, or of the database's surveys, which is stored there.

    Args:
        operation: Name of what is predicted.
        device: Where timings were taken; ``cuda:N`` has that GPU train the networks, and holds it.
        db: URL of the database.
        survey: File of timings; None for the database's surveys.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.
        measured_at: When, where the file does not tell.
        seed: Of folds and samples.

    Raises:
        NothingFound: Nothing of it was surveyed.
        InputError: Too few problems were, or the file is none of timings.
        TunerError: LightGBM is not installed.
        EnvironmentTrouble: The device or the database cannot be used, or another process has the GPU.
    """
    catalogue, where = builtin_now(), device_in_full(device, db)
    declared, regime = catalogue.operation(operation), regime or kind_of(where.kind).survey.regime
    kernels = {each.name: each for each in catalogue.of(operation, where.kind)}
    with held_gpu(device, f"model fit {operation}") as gpu:
        if survey is None:
            with Store.open(db) as store:
                return refit(store, declared, kernels.values(), where, regime, seed, dtype, gpu)
        told = circumstances(regime) | ({"measured_at": measured_at} if measured_at else {})
        return fit(read_survey(survey, declared, dtype, told), kernels, where, seed, gpu=gpu)


def known_model(operation: str, device: str, dtype: str, regime: str | None, db: str) -> Model:
    """The model that answers: the database's, or the published one.

    Args:
        operation: Name of what is predicted.
        device: Name, or as commands take it.
        dtype: Of what is predicted; the operation's first unless given.
        regime: How times were taken; as is usual on the device unless given.
        db: URL of the database, which need not exist.

    Raises:
        NothingFound: There is none.
        InputError: A published one cannot be read.
        StoreTrouble: The database cannot be read.
    """
    dtype = dtype or builtin_now().operation(operation).dtypes[0]
    where = device_in_full(device, db)
    regime = regime or kind_of(where.kind).survey.regime
    try:
        with Store.open(db, read_only=True) as store:
            every = models(operation, regime, store=store, dtype=dtype)
    except NothingFound:
        every = models(operation, regime, dtype=dtype)
    known = [each for each in every if any(kind[0] == dtype for kind in each.traits)]
    found = next((each for each in known if each.device.name == where.name), None)
    if found is None:
        raise NothingFound(
            f"there is no model of {operation} in {dtype}, {regime}, for {where.name}; run a survey there and "
            f"`tuner model fit {operation} --dtype {dtype}`"
        )
    return found


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
    stored_models.add(store, name_of(operation, dtype), device.name, regime, to_bytes(model))
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
    if importlib.util.find_spec("lightgbm") is None:
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

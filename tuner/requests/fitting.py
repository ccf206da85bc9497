"""Models as the command line asks for them: the one that answers, or one fitted to surveys or to a file."""

from __future__ import annotations

from pathlib import Path

from tuner.devices.gpu_process import held_gpu
from tuner.errors import NothingFound
from tuner.lookup.declared import builtin_now
from tuner.lookup.devices import device_in_full
from tuner.lookup.model.fit import fit
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.refit import circumstances, refit
from tuner.lookup.model.shelf import models
from tuner.lookup.model.survey_file import read_survey
from tuner.store import Store


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
    declared, regime = catalogue.operation(operation), regime or where.usual_regime
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
    regime = regime or where.usual_regime
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

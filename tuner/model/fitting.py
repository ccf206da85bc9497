"""From surveys, in a file or in a database, to a model; and the model that answers.

A survey's file is a NumPy file of ``shape``, ``config`` and ``time_s``, one value a timing: the number of its
problem, of its config (-1: the library), and seconds. ``shapes`` is a JSON text of lists of dims, each followed
by the layout, ``configs`` one of pairs of a kernel's name and its config. ``provenance``, a JSON object, may
tell where it was made.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.devices.cuda.process import Gpu
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound, TunerError
from tuner.lookup.asking import device_in_full
from tuner.lookup.stale import builtin_now
from tuner.model.fit import fit
from tuner.model.predict import Model
from tuner.model.stored import models, name_of, to_bytes
from tuner.model.table import Timings
from tuner.results.record import ProblemKey, latest_hash, utc_now
from tuner.results.survey import LIBRARY, SurveyPart, Timing
from tuner.store import Store, watched
from tuner.store.reading import Reader


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
    for model in every:
        if model.device.name == where.name and any(of == dtype for of, _ in model.traits):
            return model
    raise NothingFound(
        f"there is no model of {operation} in {dtype}, {regime}, for {where.name}; run a survey there and "
        f"`tuner model fit {operation} --dtype {dtype}`"
    )


def read_survey(path: Path, operation: Operation, dtype: str, provenance: Mapping[str, Any]) -> Timings:
    """Reads the file of a survey.

    Args:
        path: The file.
        operation: What was timed.
        dtype: Of all problems; the operation's first when empty.
        provenance: Is added to the file's own, with its name and hash.

    Raises:
        InputError: It is not of this form.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            problems = [
                operation.problem(dict(zip(operation.dims, sizes, strict=True)), dtype, layout)
                for *sizes, layout in json.loads(str(data["shapes"]))
            ]
            configs = [(kernel, Config(config)) for kernel, config in json.loads(str(data["configs"]))]
            problem, config = (np.asarray(data[name], dtype=np.int64) for name in ("shape", "config"))
            time_s = np.asarray(data["time_s"], dtype=np.float64)
            own = json.loads(str(data["provenance"])) if "provenance" in data else {}
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except TunerError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"a survey is a NumPy file of shape, config, time_s, shapes and configs, {path} is not: {error}; "
            "name another one"
        ) from error
    origin = {**own, **provenance, "survey": path.name, "survey_sha256": digest}
    return Timings(problems, configs, problem, config, time_s, provenance=origin)


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
    surveyed = joined(store.survey_parts(operation.name, device, regime), operation, kernels, dtype)
    if surveyed is None:
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({dtype}, {regime}) on "
            f"{device if isinstance(device, str) else device.name}; run `tuner survey {operation.name}`"
        )
    return surveyed


def joined(
    parts: Sequence[SurveyPart], operation: Operation, kernels: Iterable[Kernel], dtype: str = ""
) -> Timings | None:
    """Parts of surveys as arrays; of a config timed twice at a problem the last time counts.

    Args:
        parts: Of one operation, regime and kind of device, in the order measured.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        dtype: Of the problems; any when empty.

    Returns:
        None where nothing was timed.
    """
    sources = {kernel.name: latest_hash(kernel.source_hash) for kernel in kernels}
    registers: dict[tuple[str, Config], int] = {}
    times: dict[tuple[ProblemKey, tuple[str, Config] | None], Timing] = {}
    for part in parts:
        configs = [(config.kernel, Config(dict(config.config))) for config in part.configs]
        current = [sources.get(config.kernel) == latest_hash(config.source_hash) for config in part.configs]
        for named, config in zip(configs, part.configs, strict=True):
            registers.setdefault(named, config.registers)
        for timing in part.timings:
            problem, is_library = part.problems[timing.problem], timing.config == LIBRARY
            if dtype in ("", problem.dtype) and (is_library or current[timing.config]):
                times[problem, None if is_library else configs[timing.config]] = timing
    times = {at: timing for at, timing in times.items() if not timing.outcome.failed}
    if not times:
        return None
    problems = {key: number for number, key in enumerate(dict.fromkeys(key for key, _ in times))}
    numbers = {
        named: number
        for number, named in enumerate(dict.fromkeys(named for _, named in times if named is not None))
    }
    return Timings(
        [operation.problem(key.dims, key.dtype, key.layout) for key in problems], list(numbers),
        np.array([problems[key] for key, _ in times], np.int64),
        np.array([LIBRARY if named is None else numbers[named] for _, named in times], np.int64),
        np.array([timing.time_s for timing in times.values()]),
        np.array([registers[named] for named in numbers], float), _provenance(parts),
    )  # fmt: skip


def _provenance(parts: Sequence[SurveyPart]) -> dict[str, Any]:
    """Where the timings of some parts come from."""
    measured = [part.measured_at for part in parts]
    return {
        "devices": sorted({part.device.name for part in parts}),
        "regimes": sorted({part.regime for part in parts}),
        "versions": {name: text for part in parts for name, text in part.versions.items()},
        "measured_at": max(measured), "first": min(measured), "parts": len(parts),
    }  # fmt: skip


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
    by_name = {kernel.name: kernel for kernel in kernels}
    surveyed = timings(store, operation, by_name.values(), device, regime, dtype)
    surveyed = replace(surveyed, provenance={**surveyed.provenance, **circumstances(regime)})
    model = fit(surveyed, by_name, device, seed, gpu=gpu)
    watched.add_model(store, name_of(operation, dtype), device.name, regime, to_bytes(model))
    return model


def circumstances(regime: str) -> dict[str, Any]:
    """What a model says of how it was made."""
    return {"regime": regime, "fitted_at": utc_now()}

"""Fits a model to a survey. Needs LightGBM, the extra ``model``; answering does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.devices.gpu_process import Gpu
from tuner.errors import InputError
from tuner.lookup.model.calibrate import calibrate
from tuner.lookup.model.data import Timings
from tuner.lookup.model.evidence import evidence
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.left_out import left_out
from tuner.lookup.model.parts import Recipe, parts_of
from tuner.lookup.model.shortlist import shortlist
from tuner.lookup.model.table import table

#: Problems below which nothing can be left out.
LEAST_PROBLEMS = 20


def fit(
    timings: Timings,
    kernels: Mapping[str, Kernel],
    device: DeviceInfo,
    seed: int = 0,
    recipe: Recipe | None = None,
    gpu: Gpu | None = None,
) -> Model:
    """Fits a model.

    Args:
        timings: A survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        seed: Of the folds and of the trees' samples.
        recipe: How; with the usual trees and networks unless given.
        gpu: Where networks are trained; None for the CPU.

    Raises:
        InputError: There are fewer than 20 problems.
        TunerError: LightGBM is not installed.
    """
    if len(timings.problems) < LEAST_PROBLEMS:
        raise InputError(
            f"a model needs {LEAST_PROBLEMS} problems at least, got {len(timings.problems)}; survey more"
        )
    recipe = recipe or Recipe()
    data = table(timings, kernels, device)
    known, share = left_out(timings.problems, data, seed, recipe, gpu)
    parts = parts_of(data, np.arange(len(timings.problems)), seed, recipe, gpu)
    chosen = shortlist(data.problem, data.config, data.time_s)
    return Model(
        timings.problems[0].operation.name, device, data.limits, [timings.configs[at] for at in chosen],
        data.parameters[:, chosen], {key: of.some(chosen) for key, of in data.traits.items()}, parts.forest,
        parts.library, calibrate(known), {**_provenance(timings, kernels, device), "shortlist": len(chosen)},
        evidence(timings.problems, list(data.traits), data, np.arange(len(timings.problems)), chosen),
        parts.network and dataclasses.replace(parts.network, share=share),
    )  # fmt: skip


def _provenance(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> dict[str, Any]:
    used = sorted({kernel for kernel, _ in timings.configs})
    return {
        **timings.provenance, "device": device.name, "driver": device.driver, "timings": len(timings.time_s),
        "problems": len(timings.problems), "configs": len(timings.configs),
        "sources": {name: kernels[name].source_hash for name in used if name in kernels},
    }  # fmt: skip

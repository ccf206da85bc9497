"""Records that the tests of callables put into the database, so that a kernel or the library is chosen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tuner.catalogue import builtin
from tuner.devices.detect import cpu_info
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.measurement import Error, Measurement, Outcome
from tuner.record import Champion, Record, Role
from tuner.store import Store

#: Kernels that compile in a moment.
QUICK = {("gemm", "cpu"): "blocked", ("gemv", "cpu"): "naive", ("transpose", "cpu"): "blocked"}
CATALOGUE = builtin()


def declared(operation: str, target: str, name: str) -> Kernel:
    """A built-in kernel."""
    (kernel,) = CATALOGUE.of(operation, target, (name,))
    return kernel


def crowned(
    operation: str,
    shape: Mapping[str, int],
    dtype: str = "float32",
    layout: str = "",
    config: Mapping[str, Any] | None = None,
    speedup: float = 2.0,
    kernel: str = "",
    device: DeviceInfo | None = None,
    time_s: float = 1e-3,
    library_s: float = 0.0,
) -> Champion:
    """Stores a champion in the database of ``TUNER_DB``; its kernel's other parameters take their defaults."""
    device = device or cpu_info()
    problem = CATALOGUE.operation(operation).problem(dict(shape), dtype, layout)
    chosen = declared(operation, device.kind, kernel or QUICK[operation, device.kind])
    measured = Measurement(Outcome.MEASURED, samples_s=(time_s,) * 3, error=Error(1e-6, 2e-7, 0.1))
    library_s = library_s or time_s * speedup
    beside = Measurement(Outcome.MEASURED, samples_s=(library_s,) * 3, error=Error(1e-6, 2e-7, 0.1))
    from tuner.preparation import key_of

    common: dict[str, Any] = {"problem": key_of(problem), "device": device, "regime": "cold"}
    work = {"flops": problem.work.flops, "bytes": problem.work.bytes}
    record = Record(
        **common, role=Role.FINAL, kernel=chosen.name, measurement=measured, work=work,
        config={**(chosen.default_config() or {}), **(config or {})}, source_hash=chosen.source_hash,
    )  # fmt: skip
    baseline = Record(
        **common, role=Role.BASELINE, kernel="NumPy" if device.kind == "cpu" else "cuBLAS", config={},
        source_hash="", measurement=beside, work=work,
    )  # fmt: skip
    champion = Champion(record, baseline, library_s / time_s, "first", {"total": 1, "measured": 1, "failed": 0})
    with Store.open(os.environ["TUNER_DB"]) as store:
        store.crown(champion)
    return champion

"""Records that the tests of callables put into the database, so that a kernel or the library is chosen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.callables import dispatch
from tuner.catalogue import builtin
from tuner.devices.detect import cpu_info
from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.measurement import Error, Measurement, Outcome
from tuner.preparation import key_of
from tuner.record import Champion, Record, Role
from tuner.store import Store

#: Kernels that compile in a moment.
QUICK = {("gemm", "cpu"): "blocked", ("gemv", "cpu"): "naive", ("transpose", "cpu"): "blocked"}
CATALOGUE = builtin()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without records: copied sooner than made."""
    path = tmp_path_factory.mktemp("records") / "studies.db"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_database: Path) -> Iterator[None]:
    """Nothing is known of earlier tests, and the database is this test's own."""
    shutil.copy(empty_database, tmp_path / "studies.db")
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    tuner.clear_caches()
    yield
    tuner.clear_caches()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that calls were prepared for, in order."""
    names: list[str] = []
    prepare = dispatch.kernel_call

    def noted(request: Any, decision: Any, family: Any) -> Any:
        names.append(decision.kernel.name)
        return prepare(request, decision, family)

    monkeypatch.setattr(dispatch, "kernel_call", noted)
    return names


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
    regime: str = "cold",
) -> Champion:
    """Stores a champion in the database of ``TUNER_DB``; its kernel's other parameters take their defaults."""
    device = device or cpu_info()
    problem = CATALOGUE.operation(operation).problem(dict(shape), dtype, layout)
    chosen = declared(operation, device.kind, kernel or QUICK[operation, device.kind])
    measured = Measurement(Outcome.MEASURED, samples_s=(time_s,) * 3, error=Error(1e-6, 2e-7, 0.1))
    library_s = library_s or time_s * speedup
    beside = Measurement(Outcome.MEASURED, samples_s=(library_s,) * 3, error=Error(1e-6, 2e-7, 0.1))
    common: dict[str, Any] = {"problem": key_of(problem), "device": device, "regime": regime}
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

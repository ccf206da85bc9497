"""The CPU through NumPy and Numba: loads rendered modules, runs and times them with the host's clock."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy
import psutil
import threadpoolctl

from tuner.devices import numba_source
from tuner.devices.detect import cpu_info
from tuner.devices.power import EnergyCounters, keep_busy
from tuner.devices.protocol import Arrays, CompileFailed, LaunchFailed, Run, declared_baseline
from tuner.errors import DeviceTrouble
from tuner.kernel import Rendered

#: The flush reads and writes this many times the last-level cache.
FLUSH_FACTOR = 2


class CpuDevice:
    """This machine's CPU; see `tuner.devices.protocol.Device`."""

    xp = numpy

    def __init__(self) -> None:
        self.info = replace(
            cpu_info(), architecture=llvm.get_host_cpu_name(), runtime=f"Numba {numba.__version__}"
        )
        self.versions = {"numpy": numpy.__version__, **numba_source.versions(), **blas_versions()}
        self._flush = numpy.ones(FLUSH_FACTOR * max(self.info.l2_bytes, 1 << 24) // 8, dtype=numpy.float64)

    def free_bytes(self) -> int:
        """Memory that is available without swapping."""
        return int(psutil.virtual_memory().available)

    def random(self, seed: int) -> Any:
        """NumPy's generator."""
        return numpy.random.default_rng(seed)

    def load(self, rendered: Rendered, code: bytes, arrays: Arrays) -> Run:
        """Imports the rendered module and binds the arguments; see the protocol."""
        try:
            entry = numba_source.load_module(rendered)
        except CompileFailed as error:
            raise LaunchFailed(str(error)) from error
        arguments = [each.item() if isinstance(each, numpy.generic) else each for each in arrays.arguments()]

        def run() -> None:
            try:
                entry(*arguments)
            except Exception as error:
                raise LaunchFailed(f"{type(error).__name__}: {error}") from error

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.NumbaWarning)
            # Loads the machine code, so that the first timed run does not.
            self._warm(entry, rendered, arrays)
        return run

    def _warm(self, entry: Any, rendered: Rendered, arrays: Arrays) -> None:
        try:
            numba_source.NumbaCompiler().compile(rendered, self.info.architecture, arrays.problem)
        except CompileFailed as error:
            raise LaunchFailed(str(error)) from error

    def library(self, arrays: Arrays) -> Run | None:
        """The declared baseline; see the protocol."""
        return declared_baseline(self, arrays)

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def samples_s(self, run: Run, count: int, regime: str) -> list[float]:
        """Times runs with the host's monotonic clock; see the protocol."""
        if regime not in ("cold", "hot"):
            raise DeviceTrouble(f"a CPU is timed cold or hot, got regime {regime!r}; choose one of them")
        samples = []
        for _ in range(count):
            if regime == "cold":
                self._flush += 1.0
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        return samples

    def circumstances(self) -> Mapping[str, float]:
        """Load average and clock as the operating system gives them."""
        seen = {"load_1min": psutil.getloadavg()[0]}
        frequency = psutil.cpu_freq()
        if frequency is not None:
            seen["clock_hz"] = frequency.current * 1e6
        return seen

    def power_w(self, run: Run) -> float | None:
        """By the energy counters of the packages, all that goes on there included."""
        counters = EnergyCounters()
        if counters.trouble:
            return None
        before_j, before_s = counters.read_j(), time.perf_counter()
        keep_busy(run, self.synchronize)
        after_j, after_s = counters.read_j(), time.perf_counter()
        return counters.between_j(before_j, after_j) / (after_s - before_s)

    def canary(self) -> None:
        """A CPU that answers is well."""


def blas_versions() -> dict[str, str]:
    """NumPy's BLAS: name and version, the core type it chose, its threads."""
    for pool in threadpoolctl.threadpool_info():
        if pool["user_api"] == "blas" and "numpy" in pool["filepath"]:
            break
    else:
        return {"library": f"NumPy {numpy.__version__}"}
    return {
        "library": f"NumPy {numpy.__version__} ({pool['internal_api']} {pool['version']})",
        "blas_core_type": str(pool.get("architecture", "unknown")),
        "blas_threads": str(pool["num_threads"]),
    }

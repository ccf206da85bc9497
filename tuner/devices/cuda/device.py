"""A CUDA GPU through CuPy: loads cubins, launches and times them with device events."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.devices.cuda.kind import nvml, runtime_version
from tuner.devices.cuda.launching import DRIVER_ERRORS, LoadedKernel, helper
from tuner.devices.cuda.nvrtc import nvrtc_version, target_architecture
from tuner.devices.protocol import Device, LaunchFailed, Run, keep_busy
from tuner.errors import DeviceTrouble

#: Seconds between two readings of clocks and power; a reading takes about a millisecond.
LOOK_EVERY_S = 0.05
#: Cycles, some 20 ms, after which the holding kernel ends by itself: for a full queue, and for a library that
#: waits for numbers of the device before it launches more.
HOLD_LIMIT_CYCLES = 40_000_000
#: If the clock falls below this share of the default one during a batch of samples, the batch is repeated after
#: a pause, up to a limit (NVBench's throttle threshold and recovery delay).
THROTTLED_BELOW, THROTTLE_PAUSE_S, MAX_THROTTLED = 0.75, 0.05, 20
#: Samples of each copy to and from the host, after one that touches pages; their median counts.
TRANSFERS = 5


def _errors() -> tuple[type[Exception], ...]:
    """Returns CuPy's exceptions; cuBLAS's only if that library is loaded, which needs a machine with a GPU."""
    cublas = sys.modules.get("cupy_backends.cuda.libs.cublas")
    return (*DRIVER_ERRORS, cublas.CUBLASError) if cublas else DRIVER_ERRORS


@contextlib.contextmanager
def _failing_launches(what: str = "") -> Iterator[None]:
    """Turns CuPy's exceptions into `LaunchFailed`: the context may be poisoned."""
    try:
        yield
    except _errors() as error:
        raise LaunchFailed(f"{what}{error}", device_unwell=True) from error


class CudaDevice(Device):
    """The first GPU visible to this process."""

    xp = cupy

    def __init__(self) -> None:
        try:
            if runtime.getDeviceCount() < 1:
                raise DeviceTrouble("a CUDA device needs a GPU, found none; use --device cpu")
            cupy.cuda.Device(0).use()
            self.info = describe()
        except _errors() as error:
            raise DeviceTrouble(f"the GPU cannot be used: {error}; run `tuner doctor`") from error
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._flush = cupy.empty(max(self.info.l2_bytes, 1 << 20), dtype=cupy.uint8)
        self._hold = helper(Path(__file__).with_name("hold.cu").read_text(encoding="utf-8"), "hold")
        pinned = cupy.cuda.PinnedMemory(64, runtime.hostAllocMapped)
        self._flag_memory = cupy.cuda.PinnedMemoryPointer(pinned, 0)
        self._flag = numpy.frombuffer(self._flag_memory, dtype=numpy.int32, count=1)
        self._hold_arguments = (self._flag_memory.ptr, numpy.int64(HOLD_LIMIT_CYCLES))
        self._monitor = _Monitor(self.info.uuid)
        self._readings: dict[str, float] = {}
        self._looked_s = 0.0
        self._before, self._after = cupy.cuda.Event(), cupy.cuda.Event()
        from cupy_backends.cuda.libs import cublas

        handle = cupy.cuda.device.get_cublas_handle()
        # CuPy allows TF32 only on request (CUPY_TF32); default math keeps sgemm in FP32 in any case.
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
        self.versions = {
            "driver": self.info.driver, "cupy": cupy.__version__, "compiler": nvrtc_version(),
            "library": f"cuBLAS {cublas.getVersion(handle)}", "cuda_runtime": str(runtime.runtimeGetVersion()),
        }  # fmt: skip

    def free_bytes(self) -> int:
        """Bytes of free device memory, including unused memory in CuPy's pool."""
        cupy.get_default_memory_pool().free_all_blocks()
        return int(runtime.memGetInfo()[0])

    def synchronize(self) -> None:
        """Waits for the stream; see the protocol."""
        with _failing_launches():
            self._stream.synchronize()

    def samples_s(self, run: Run, count: int, regime: str, before: Run | None = None) -> list[float]:
        """Times runs with device events around each; see the protocol."""
        if regime.endswith("-graph"):
            run = self._captured(run)
        samples: list[float] = []
        throttled = 0
        while len(samples) < count:
            sample_s = self._held(run, regime.startswith("cold"), before)
            if self._is_throttled() and throttled < MAX_THROTTLED:
                throttled += 1
                time.sleep(THROTTLE_PAUSE_S)
                continue
            samples.append(sample_s)
        if throttled:
            self._readings["throttled"] = float(throttled)
        return samples

    def _is_throttled(self) -> bool:
        clock_hz = self._readings.get("sm_clock_hz", 0.0)
        return 0 < clock_hz < THROTTLED_BELOW * self._monitor.default_clock_hz

    def _held(self, run: Run, cold: bool, before: Run | None) -> float:
        """Takes one sample as NVBench takes a cold one: flush, wait, hold, event, run, event, release, wait."""
        stream, flag = self._stream, self._flag
        try:
            with _failing_launches():
                if before is not None:
                    before()
                if cold:
                    runtime.memsetAsync(self._flush.data.ptr, 0, self._flush.nbytes, stream.ptr)
                stream.synchronize()
                flag[0] = 0
                self._hold((1, 1, 1), (1, 1, 1), self._hold_arguments, 0)
                self._before.record(stream)
                run()
                self._after.record(stream)
                flag[0] = 1
                self._look()
                stream.synchronize()
                return float(cupy.cuda.get_elapsed_time(self._before, self._after)) * 1e-3
        finally:
            flag[0] = 1

    def _look(self) -> None:
        """Reads clocks and power while the device is busy, but seldom enough to cost no time."""
        now = time.monotonic()
        if now - self._looked_s > LOOK_EVERY_S:
            self._looked_s = now
            self._readings = self._monitor.read()

    def _captured(self, run: Run) -> Run:
        self.synchronize()
        self._stream.begin_capture()
        try:
            run()
        finally:
            graph = self._stream.end_capture()
        graph.launch(stream=self._stream)
        self.synchronize()
        return lambda: graph.launch(stream=self._stream)

    def circumstances(self, run: Run) -> Mapping[str, float]:
        """NVML's readings during the last samples, and a kernel's occupancy."""
        return self._readings | ({"occupancy": run.occupancy} if isinstance(run, LoadedKernel) else {})

    def power_w(self, run: Run) -> float | None:
        """Returns NVML's reading after `run` alone has filled the time over which it averages."""
        if "power_w" not in self._monitor.read():
            return None
        batch = keep_busy(run, self.synchronize)
        for _ in range(batch):
            run()
        # Read while runs go on, because some boards report the power of the moment.
        power_w = self._monitor.read().get("power_w")
        self.synchronize()
        return power_w

    def transfers_s(self, problem: Problem) -> dict[str, float]:
        """See the protocol."""
        to_device, to_host = (
            [(cupy.empty(tensor.bytes, "uint8"), numpy.ones(tensor.bytes, "uint8")) for tensor in tensors]
            for tensors in (problem.inputs, problem.outputs)
        )

        def allocate() -> None:
            addresses = [runtime.malloc(tensor.bytes) for tensor in problem.tensors]
            for address in addresses:
                runtime.free(address)

        def copy(kind: int, pairs: list[tuple[Any, Any]]) -> None:
            for there, here in pairs:
                ends = there.data.ptr, here.ctypes.data
                runtime.memcpy(*(ends if kind == runtime.memcpyHostToDevice else ends[::-1]), here.nbytes, kind)

        return {
            "allocate": self._median_s(allocate),
            "to_device": self._median_s(lambda: copy(runtime.memcpyHostToDevice, to_device)),
            "to_host": self._median_s(lambda: copy(runtime.memcpyDeviceToHost, to_host)),
        }

    def _median_s(self, action: Run) -> float:
        samples = []
        for _ in range(TRANSFERS + 1):
            self.synchronize()
            begun_s = time.perf_counter()
            action()
            self.synchronize()
            samples.append(time.perf_counter() - begun_s)
        return statistics.median(samples[1:])

    def canary(self) -> None:
        """Adds two small vectors and reads the sum back; see the protocol."""
        with _failing_launches("the device is unwell: "):
            total = float(cupy.arange(1000, dtype=cupy.float32).sum().get())
        if total != 499500.0:
            raise LaunchFailed(f"the device adds wrongly: {total}", device_unwell=True)


class _Monitor:
    """NVML's readings of the board; empty if NVML does not respond.

    Attributes:
        default_clock_hz: Default clock of the multiprocessors for applications; 0 if unknown.
    """

    def __init__(self, uuid: str) -> None:
        self.default_clock_hz = 0.0
        self._readings: dict[str, Callable[[], float]] = {}
        try:
            library = nvml()
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            warnings.warn(f"no clocks or power will be recorded: {error}", stacklevel=2)
            return
        self._error, clock = library.NVMLError, library.NVML_CLOCK_SM
        with contextlib.suppress(self._error):
            self.default_clock_hz = library.nvmlDeviceGetDefaultApplicationsClock(handle, clock) * 1e6
        self._readings = {
            "sm_clock_hz": lambda: library.nvmlDeviceGetClockInfo(handle, clock) * 1e6,
            "temperature_c": lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
            "power_w": lambda: library.nvmlDeviceGetPowerUsage(handle) * 1e-3,
            "throttle_reasons": lambda: library.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }

    def read(self) -> dict[str, float]:
        values = {}
        for name, reading in self._readings.items():
            with contextlib.suppress(self._error):
                values[name] = float(reading())
        return values


def describe(index: int = 0) -> DeviceInfo:
    """Returns identity and limits of the GPU with this number, as CUDA counts in this process."""
    properties = runtime.getDeviceProperties(index)
    capability = properties["major"] * 10 + properties["minor"]
    return DeviceInfo(
        properties["name"].decode(), "cuda", _uuid(index), architecture=target_architecture(capability),
        driver=_driver_version(), runtime=runtime_version(runtime.driverGetVersion()),
        memory_bytes=properties["totalGlobalMem"], compute_capability=capability,
        sm_count=properties["multiProcessorCount"], warp_size=properties["warpSize"],
        max_threads_per_block=properties["maxThreadsPerBlock"],
        max_threads_per_sm=properties["maxThreadsPerMultiProcessor"],
        shared_bytes_per_block=properties["sharedMemPerBlockOptin"],
        shared_bytes_per_sm=properties["sharedMemPerMultiprocessor"],
        registers_per_block=properties["regsPerBlock"],
        registers_per_thread=255,  # no query reports it; it is the same for every architecture since 3.5
        l2_bytes=properties["l2CacheSize"],
    )  # fmt: skip


def _uuid(index: int) -> str:
    """Returns the device's UUID as NVML spells it.

    A worker is started with the UUID of its one device, which may be a MIG instance. CuPy's own copy ends at
    the first zero byte.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith(("GPU-", "MIG-")) and "," not in visible:
        return visible
    with contextlib.suppress(Exception):
        library = nvml()
        handle = library.nvmlDeviceGetHandleByPciBusId(runtime.deviceGetPCIBusId(index))
        return str(library.nvmlDeviceGetUUID(handle))
    return ""


def _driver_version() -> str:
    with contextlib.suppress(Exception):
        return str(nvml().nvmlSystemGetDriverVersion())
    return "unknown"

"""A CUDA GPU through CuPy: loads cubins, launches and times them with device events."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.devices.cuda.launching import DRIVER_ERRORS, LoadedKernel
from tuner.devices.cuda.nvrtc import compile_cubin, nvrtc_version, target_architecture
from tuner.devices.detect import language_of
from tuner.devices.protocol import Arrays, LaunchFailed, Run, declared_baseline, keep_busy
from tuner.errors import DeviceTrouble

#: Seconds between two readings of clocks and power; a reading takes about a millisecond.
LOOK_EVERY_S = 0.05
#: Cycles after which the holding kernel ends by itself, so that a full queue cannot hang.
HOLD_LIMIT_CYCLES = 4_000_000_000
#: If the clock falls below this share of the default one during a batch of samples, the batch is repeated after
#: a pause, up to a limit (NVBench's throttle threshold and recovery delay).
THROTTLED_BELOW, THROTTLE_PAUSE_S, MAX_THROTTLED = 0.75, 0.05, 20
#: Holds the stream until the host has queued all launches, so that times contain no launch overhead (as
#: NVBench's blocking kernel does).
HOLD_SOURCE = """
extern "C" __global__ void hold(const volatile int* released, long long limit_cycles) {
    const long long start = clock64();
    while (!*released && clock64() - start < limit_cycles) {}
}
"""


def _errors() -> tuple[type[Exception], ...]:
    """Returns CuPy's exceptions; cuBLAS's only if that library is loaded, which needs a machine with a GPU."""
    cublas = sys.modules.get("cupy_backends.cuda.libs.cublas")
    return (*DRIVER_ERRORS, cublas.CUBLASError) if cublas else DRIVER_ERRORS


class CudaDevice:
    """The first GPU visible to this process; see `tuner.devices.protocol.Device`."""

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
        self._start_hold()
        self._monitor = _Monitor(self.info.uuid)
        self._seen: dict[str, float] = {}
        self._looked_s = 0.0
        self._before, self._after = cupy.cuda.Event(), cupy.cuda.Event()
        from cupy_backends.cuda.libs import cublas

        handle = cupy.cuda.device.get_cublas_handle()
        # CuPy allows TF32 only on request (CUPY_TF32); default math keeps sgemm in FP32 in any case.
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
        self.versions = {
            "driver": self.info.driver,
            "cupy": cupy.__version__,
            "compiler": nvrtc_version(),
            "library": f"cuBLAS {cublas.getVersion(handle)}",
            "cuda_runtime": str(runtime.runtimeGetVersion()),
        }

    def _start_hold(self) -> None:
        cubin, _ = compile_cubin(HOLD_SOURCE, target_architecture(self.info.compute_capability))
        self._hold_module = cupy.cuda.function.Module()
        self._hold_module.load(cubin)
        self._hold = self._hold_module.get_function("hold")
        self._flag_memory = cupy.cuda.PinnedMemoryPointer(
            cupy.cuda.PinnedMemory(64, runtime.hostAllocMapped), 0
        )
        self._flag = numpy.frombuffer(self._flag_memory, dtype=numpy.int32, count=1)
        self._hold_arguments = (self._flag_memory.ptr, numpy.int64(HOLD_LIMIT_CYCLES))

    def free_bytes(self) -> int:
        """Bytes of free device memory, including unused memory in CuPy's pool."""
        cupy.get_default_memory_pool().free_all_blocks()
        return int(runtime.memGetInfo()[0])

    def random(self, seed: int) -> Any:
        """CuPy's generator."""
        return cupy.random.default_rng(seed)

    def load(self, rendered: Rendered, code: bytes, arrays: Arrays) -> Run:
        """Lets the kernel's language bind it; see the protocol."""
        return language_of(rendered.target).bind(rendered, code, arrays, self.info)

    def library(self, arrays: Arrays, threads: int = 0) -> Run | None:
        """The declared baseline; see the protocol."""
        return None if threads else declared_baseline(self, arrays)

    def synchronize(self) -> None:
        """Waits for the stream; see the protocol."""
        try:
            self._stream.synchronize()
        except _errors() as error:
            raise LaunchFailed(str(error), device_unwell=True) from error

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
            self._seen["throttled"] = float(throttled)
        return samples

    def _is_throttled(self) -> bool:
        clock_hz = self._seen.get("sm_clock_hz", 0.0)
        return 0 < clock_hz < THROTTLED_BELOW * self._monitor.default_clock_hz

    def _held(self, run: Run, cold: bool, before: Run | None) -> float:
        """Takes one sample as NVBench takes a cold one: flush, wait, hold, event, run, event, release, wait."""
        stream, flag = self._stream, self._flag
        try:
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
        except _errors() as error:
            raise LaunchFailed(str(error), device_unwell=True) from error
        finally:
            flag[0] = 1

    def _look(self) -> None:
        """Reads clocks and power while the device is busy, but seldom enough to cost no time."""
        now = time.monotonic()
        if now - self._looked_s > LOOK_EVERY_S:
            self._looked_s = now
            self._seen = self._monitor.read()

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
        return self._seen | ({"occupancy": run.occupancy} if isinstance(run, LoadedKernel) else {})

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

    def canary(self) -> None:
        """Adds two small vectors and reads the sum back; see the protocol."""
        try:
            total = cupy.arange(1000, dtype=cupy.float32).sum().get()
        except _errors() as error:
            raise LaunchFailed(f"the device is unwell: {error}", device_unwell=True) from error
        if float(total) != 499500.0:
            raise LaunchFailed(f"the device adds wrongly: {total}", device_unwell=True)


class _Monitor:
    """NVML's readings of the board; empty if NVML does not respond.

    Attributes:
        default_clock_hz: Default clock of the multiprocessors for applications; 0 if unknown.
    """

    def __init__(self, uuid: str) -> None:
        self._handle: Any = None
        self.default_clock_hz = 0.0
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            warnings.warn(f"no clocks or power will be recorded: {error}", stacklevel=2)
            return
        with contextlib.suppress(pynvml.NVMLError):
            mhz = pynvml.nvmlDeviceGetDefaultApplicationsClock(self._handle, pynvml.NVML_CLOCK_SM)
            self.default_clock_hz = mhz * 1e6

    def read(self) -> dict[str, float]:
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], Any]] = {
            "sm_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * 1e-3,
            "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        }
        seen = {}
        for name, read in readings.items():
            try:
                seen[name] = float(read())
            except nvml.NVMLError:
                continue
        return seen


def describe(index: int = 0) -> DeviceInfo:
    """Returns identity and limits of the GPU with this number, as CUDA counts in this process."""
    properties = runtime.getDeviceProperties(index)
    capability = properties["major"] * 10 + properties["minor"]
    version = runtime.driverGetVersion()
    return DeviceInfo(
        name=properties["name"].decode(),
        kind="cuda",
        uuid=_uuid(index),
        architecture=target_architecture(capability),
        driver=_driver_version(),
        runtime=f"CUDA {version // 1000}.{version % 1000 // 10}",
        memory_bytes=properties["totalGlobalMem"],
        compute_capability=capability,
        sm_count=properties["multiProcessorCount"],
        warp_size=properties["warpSize"],
        max_threads_per_block=properties["maxThreadsPerBlock"],
        max_threads_per_sm=properties["maxThreadsPerMultiProcessor"],
        shared_bytes_per_block=properties["sharedMemPerBlockOptin"],
        shared_bytes_per_sm=properties["sharedMemPerMultiprocessor"],
        registers_per_block=properties["regsPerBlock"],
        registers_per_thread=255,  # no query reports it; it is the same for every architecture since 3.5
        l2_bytes=properties["l2CacheSize"],
    )


def _uuid(index: int) -> str:
    """Returns the device's UUID as NVML spells it.

    A worker is started with the UUID of its one device, which may be a MIG instance. CuPy's own copy ends at
    the first zero byte.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith(("GPU-", "MIG-")) and "," not in visible:
        return visible
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(runtime.deviceGetPCIBusId(index))
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except Exception:
        return ""


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return "unknown"

"""What a kind of device and a language of kernels are, and the errors that they raise.

Each is a folder of `tuner/devices`. Its module `kind.py` has a `KIND`, a `DeviceKind`; its module `language.py`
has a `LANGUAGE`, a `Language`. They are found there, and named nowhere else. A folder may have both, or one: a
second language for GPUs would be a folder without a kind. These two modules load no library of the device's.
The suites in `tests/contracts` run over all of them.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered
from tuner.declare.language import SourceLanguage, source_language
from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.results.measurement import CompileReport

#: How times are taken. ``cold``: the last-level cache is flushed before each launch; ``hot``: it is not.
#: ``-graph``: the launch is replayed from a CUDA graph.
REGIMES = ("cold", "hot", "cold-graph", "hot-graph")

#: Bytes on either side of an output that no kernel may touch.
GUARD_BYTES = 64 << 10

#: Seconds of work before power is read: NVML reports the mean of the last second (NVML API reference).
BUSY_S = 1.0
#: Seconds of work queued at a time, so that the device never waits for the host for long.
BATCH_S = 0.02
#: Queues (GPU) or performs (CPU) one run.
Run = Callable[[], None]


class CompileFailed(Exception):
    """A rendered kernel does not compile; the message is the compiler's."""


class LaunchFailed(Exception):
    """A compiled kernel cannot be loaded or launched.

    Attributes:
        device_unwell: True if the device's context may be poisoned, so that the worker must be replaced.
    """

    def __init__(self, reason: str, device_unwell: bool = False) -> None:
        super().__init__(reason)
        self.device_unwell = device_unwell


class ImpossibleTime(LaunchFailed):
    """A time that no run can take. The worker's clock may be spoilt, so it must be replaced."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, device_unwell=True)


@dataclass(frozen=True)
class Binary:
    """Machine code of a rendered kernel and the compiler's report.

    Attributes:
        code: A cubin; empty if the code lies in the compiler's own cache (Numba).
        report: The compiler's report.
    """

    code: bytes
    report: CompileReport


class Arrays:
    """The arrays of a problem on a device.

    Attributes:
        problem: What is computed.
        arrays: Name -> array as stored, including outputs.
    """

    problem: Problem
    arrays: Mapping[str, Any]

    @property
    def references(self) -> Mapping[str, Any]:
        """Name of an output -> float64 array, for the current inputs."""
        raise NotImplementedError

    def arguments(self) -> list[Any]:
        """Tensors, then scalars as NumPy's numbers, as a kernel takes them."""
        import numpy  # by devices alone: whoever asks what kinds there are does without

        scalars = [numpy.dtype(scalar.dtype).type(scalar.value) for scalar in self.problem.scalars]
        return [*(self.arrays[tensor.name] for tensor in self.problem.tensors), *scalars]


class Device:
    """One device, used by one worker process at a time.

    Attributes:
        xp: The array module: numpy or cupy.
        info: Identity and limits.
        versions: Name -> version of compiler, driver and libraries.
    """

    xp: Any
    info: DeviceInfo
    versions: Mapping[str, str]

    def free_bytes(self) -> int:
        """Bytes of memory that are free now."""
        raise NotImplementedError

    def random(self, seed: int) -> Any:
        """A generator of `xp` with ``standard_normal`` and ``integers``."""
        return self.xp.random.default_rng(seed)

    def load(self, rendered: Rendered, code: bytes, arrays: Arrays) -> Run:
        """Makes a compiled kernel ready to run on the arrays.

        Raises:
            LaunchFailed: It cannot be loaded, or needs more than the device has.
        """
        return language_of(rendered.target).bind(rendered, code, arrays, self.info)

    def library(self, arrays: Arrays, threads: int = 0) -> Run | None:
        """Returns a run of the operation's baseline.

        Args:
            arrays: The arrays on which it computes.
            threads: CPU threads that it is set to use; 0 keeps its default.

        Returns:
            None if the operation declares none for this kind of device, or if its threads cannot be set.

        Raises:
            LaunchFailed: It cannot be prepared.
        """
        baseline = arrays.problem.operation.baselines.get(self.info.kind)
        if baseline is None or threads:
            return None

        def run() -> None:
            try:
                baseline.call(self.xp, arrays.problem, arrays.arrays)
            except Exception as error:
                raise LaunchFailed(
                    f"the baseline {baseline.name} fails: {type(error).__name__}: {error}"
                ) from error

        return run

    def in_programs(self, run: Run, library: Run, seconds: float) -> dict[str, float]:
        """How a run compares with the library as programs call both, where that is another matter.

        Args:
            run: A kernel's, which has run before.
            library: The library's.
            seconds: That it may take; each state is timed once in any case.

        Returns:
            Name of a state (`tuner.results.measurement.STATES`) -> the library's time over the run's then.
        """
        return {}

    def synchronize(self) -> None:
        """Waits for all queued work.

        Raises:
            LaunchFailed: Queued work failed.
        """

    def samples_s(self, run: Run, count: int, regime: str, before: Run | None = None) -> list[float]:
        """Times `count` runs and returns seconds, in order of measurement. `run` must have run before.

        Args:
            run: The run to time.
            count: Number of samples.
            regime: One of `REGIMES`.
            before: Called before each sample, ahead of the flush, untimed: it draws new inputs.

        Raises:
            LaunchFailed: A run failed.
        """
        raise NotImplementedError

    def circumstances(self, run: Run) -> Mapping[str, float]:
        """Returns clocks, temperature and power as last read during `samples_s`, and what is known of a run.

        The latter is ``occupancy`` for a kernel on a GPU, ``threads`` for a library on a CPU.
        """
        raise NotImplementedError

    def power_w(self, run: Run) -> float | None:
        """Measures the mean power in watts of back-to-back runs; None if the device does not report it.

        It takes about a second.

        Raises:
            LaunchFailed: A run failed.
        """
        raise NotImplementedError

    def transfers_s(self, problem: Problem) -> dict[str, float]:
        """Seconds, by the host's clock, of the steps around a kernel whose data lies in host memory.

        ``allocate`` (and free) all arrays, copy the inputs ``to_device`` and the outputs ``to_host``, from and
        to ordinary (pageable) memory. Empty for a device that needs none of this.
        """
        return {}

    def canary(self) -> None:
        """Runs a small computation and checks its result.

        Raises:
            LaunchFailed: The device is not healthy.
        """


def keep_busy(run: Callable[[], None], synchronize: Callable[[], None], seconds: float = BUSY_S) -> int:
    """Runs something again and again.

    Args:
        run: Queues or performs one run.
        synchronize: Waits for what was queued.
        seconds: Duration.

    Returns:
        Number of runs that take about `BATCH_S`.
    """
    batch, end_s = 1, time.monotonic() + seconds
    while True:
        begun_s = time.monotonic()
        for _ in range(batch):
            run()
        synchronize()
        now_s = time.monotonic()
        if now_s >= end_s:
            return batch
        if now_s - begun_s < BATCH_S / 2:
            batch *= 2


class Compiler(Protocol):
    """Compiles rendered kernels. It needs no device and runs in any number of processes."""

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Compiles for an architecture.

        Raises:
            CompileFailed: The source does not compile.
        """


class Language(SourceLanguage):
    """A language of kernels: how sources are read, written, hashed, compiled and bound to arrays.

    Attributes:
        array_library: Library whose arrays its kernels take: ``NumPy``, ``CuPy``.
        compiler_packages: Packages whose version tells the compiler's, and the compiler's name in records. A
            compiler that did not come as one of them tells its version only to a process that loads it.
        loader: What loads its kernels on a GPU for callers, as ``MODULE:CLASS``.
        by_sizes: True if machine code is for the problem's numbers, False if for any.
    """

    array_library: str
    loader: str = "tuner.devices.cuda.calling:Loaded"
    by_sizes: bool = False
    compiler_packages: tuple[tuple[str, str], ...] = ()

    def compiler(self) -> Compiler:
        """Opens its compiler, with its cache of machine code.

        Raises:
            DeviceTrouble: The compiler is not installed.
            EnvironmentTrouble: The cache cannot be written.
        """
        raise NotImplementedError

    def loadable(self, rendered: Rendered, code: bytes) -> tuple[Rendered, bytes]:
        """A kernel for a GPU with the launch that its compiler chose, and what the driver loads."""
        return rendered, code

    def exported(self, kernel: Kernel, problem: Problem, config: Mapping[str, Any]) -> tuple[Rendered, str]:
        """A library's product as C++, and what the linker is told; see `is_library`."""
        raise NotImplementedError

    def module(self, rendered: Rendered, problem: Problem) -> str:
        """A kernel as a Python module that needs its compiler alone; empty where exports write their own."""
        return ""

    def bind(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
        """Makes a compiled kernel ready to run on arrays; see `Device.load`."""
        raise NotImplementedError


def language_of(target: str) -> Language:
    """The language of kernels with this target.

    Raises:
        DeclarationError: There is none.
    """
    language = source_language(target)
    assert isinstance(language, Language)
    return language


@dataclass(frozen=True)
class DetectedDevice:
    """A device that can be opened.

    Attributes:
        spec: ``cpu``, ``cuda:0``.
        info: Identity. Only the process that opens a GPU knows its limits.
        environment: Environment variables that make this device the only one that a worker process sees.
    """

    spec: str
    info: DeviceInfo
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """Kind of device whose kernels it runs; a kind of tests may stand for another."""
        return self.info.kind

    @property
    def opening(self) -> str:
        """The spec for `DeviceKind.open` inside the worker."""
        return self.info.kind if self.spec.startswith(self.info.kind) else self.spec

    def to_json(self) -> dict[str, Any]:
        """The device with the spec by which commands name it."""
        return {"spec": self.spec, **self.info.to_json()}


class LoadWatch:
    """Watches the load on devices; made before this process uses them."""

    def restart(self) -> None:
        """Discards earlier readings; from now on this process may use the devices."""

    def load(self) -> Mapping[str, float]:
        """Returns the load since the start or the last restart, as records keep it in their circumstances.

        Of several devices it is that of the worst.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SurveyDefaults:
    """How a kind of device is surveyed unless told.

    Attributes:
        regime: How times are taken.
        ahead: Turns whose configs are compiled ahead of being timed.
        least: The least number of configs timed at one problem.
        turn_s: Seconds for the configs of a problem: long problems get fewer configs.
        most_bytes: Bytes of a drawn problem at the most.
        most_flops: Its operations at the most.
    """

    regime: str
    ahead: int
    least: int
    turn_s: float
    most_bytes: float
    most_flops: float


def not_a_spec(spec: str) -> InputError:
    """Returns the error for a text that names no device."""
    return InputError(f"a device is cpu, cuda or cuda:N, got {spec!r}; `tuner devices` lists those found")


class DeviceKind:
    """A kind of device: how its devices are found, opened and watched, and what holds for all of them.

    Attributes:
        name: ``cpu``, ``cuda``; the first part of a device's spec.
        first: Spec of its first device.
        is_host: True if its devices are the processor and memory of this process: arrays are NumPy's, compiling
            beside a measurement disturbs it, and cores are what devices share.
        regimes: How times can be taken there; see `REGIMES`.
        survey: How surveys go about it.
        driver_counts: True if a new driver makes records stale.
        guessed_rates: Flops and bytes in a second that stand for times that nobody has measured or predicted.
        copied_bytes_per_s: Bytes of a caller's array that are copied in a second, a low guess.
        copy_s: Seconds that any copy takes.
        fastest_hz: Clock that none of its devices reaches.
        most_per_cycle: Bytes of operands of its arithmetic, and bytes written, that none of its cores or
            multiprocessors exceeds in a cycle.
        times_pass: False if its runs do not take the times that it tells.
        states_s: Seconds of finals in which configs are timed as programs call them (`Device.in_programs`).
        least_limits: What every device of the kind has at the least, by field of `DeviceInfo`.
    """

    name: str
    first: str
    is_host: bool
    regimes: tuple[str, ...]
    survey: SurveyDefaults
    driver_counts: bool
    guessed_rates: tuple[float, float]
    copied_bytes_per_s: float
    copy_s: float
    fastest_hz: float
    most_per_cycle: tuple[float, float]
    times_pass: bool = True
    states_s: float = 0.0
    least_limits: Mapping[str, int] = MappingProxyType({})

    def detect(self) -> list[DetectedDevice]:
        """Returns its devices on this machine, without opening them."""
        raise NotImplementedError

    def find(self, spec: str) -> DetectedDevice:
        """Returns the device of this kind that a spec names.

        Raises:
            InputError: Not a spec.
            DeviceTrouble: No such device here.
        """
        raise NotImplementedError

    def open(self, spec: str) -> Device:
        """Opens the device that this process sees.

        Raises:
            DeviceTrouble: It cannot be opened.
        """
        raise NotImplementedError

    def compiler(self, language: Language, spec: str) -> Compiler:
        """Opens a compiler for its devices."""
        return language.compiler()

    def describe(self, number: int) -> DeviceInfo:
        """Describes a device that this process has in use, by its number there."""
        return self.detect()[number].info

    def watch(self, devices: Sequence[DetectedDevice]) -> LoadWatch:
        """Watches the load on some of its devices."""
        raise NotImplementedError

    def throttle_reasons(self, device: DetectedDevice) -> int:
        """Why a device runs below its clocks now: bits of `tuner.results.measurement.SLOWED`."""
        return 0

    def lock_names(self, info: DeviceInfo) -> list[str]:
        """Names of what only one process at a time may time on, in the order in which they are locked."""
        return [re.sub(r"[^A-Za-z0-9-]+", "-", info.uuid or f"{info.kind}-{info.name}")]

    def power_trouble(self) -> str:
        """Why it is known beforehand that power cannot be measured; empty if it may be."""
        return ""

    def likeness(self, info: DeviceInfo) -> tuple[str, str]:
        """What two devices of different models share if they are alike: for people, and to compare.

        The second is empty if that is unknown.
        """
        return f"of architecture {info.architecture}, too", info.architecture

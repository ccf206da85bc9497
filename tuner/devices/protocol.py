"""Protocols of devices and compilers, and the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.results.measurement import CompileReport

#: How times are taken. ``cold``: the last-level cache is flushed before each launch; ``hot``: it is not.
#: ``-graph``: the launch is replayed from a CUDA graph.
REGIMES = ("cold", "hot", "cold-graph", "hot-graph")

#: Bytes on either side of an output that no kernel may touch.
GUARD_BYTES = 64 << 10

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


@dataclass(frozen=True)
class Binary:
    """Machine code of a rendered kernel and the compiler's report.

    Attributes:
        code: A cubin; empty if the code lies in the compiler's own cache (Numba).
        report: The compiler's report.
    """

    code: bytes
    report: CompileReport


class Arrays(Protocol):
    """The arrays of a problem on a device (see `tuner.workers.workload.Workload`)."""

    @property
    def problem(self) -> Problem:
        """What is computed."""
        ...

    @property
    def arrays(self) -> Mapping[str, Any]:
        """Name -> array as stored, including outputs."""
        ...

    @property
    def references(self) -> Mapping[str, Any]:
        """Name of an output -> float64 array, for the current inputs."""
        ...

    def arguments(self) -> Sequence[Any]:
        """Tensors, then scalars, as a kernel takes them."""
        ...


class Device(Protocol):
    """One device, used by one worker process at a time."""

    @property
    def info(self) -> DeviceInfo:
        """Identity and limits."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Name -> version of compiler, driver and libraries."""
        ...

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""
        ...

    def free_bytes(self) -> int:
        """Bytes of memory that are free now."""
        ...

    def random(self, seed: int) -> Any:
        """A generator of `xp` with ``standard_normal`` and ``integers``."""
        ...

    def load(self, rendered: Rendered, code: bytes, arrays: Arrays) -> Run:
        """Makes a compiled kernel ready to run on the arrays.

        Raises:
            LaunchFailed: It cannot be loaded, or needs more than the device has.
        """
        ...

    def library(self, arrays: Arrays, threads: int = 0) -> Run | None:
        """Returns a run of the operation's baseline.

        Args:
            arrays: The arrays on which it computes.
            threads: CPU threads that it is set to use; 0 keeps its default.

        Returns:
            None if the operation declares none for this kind of device, or if its threads cannot be set.
        """
        ...

    def synchronize(self) -> None:
        """Waits for all queued work.

        Raises:
            LaunchFailed: Queued work failed.
        """
        ...

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
        ...

    def circumstances(self, run: Run) -> Mapping[str, float]:
        """Returns clocks, temperature and power as last read during `samples_s`, and what is known of a run.

        The latter is ``occupancy`` for a kernel on a GPU, ``threads`` for a library on a CPU.
        """
        ...

    def power_w(self, run: Run) -> float | None:
        """Measures the mean power in watts of back-to-back runs; None if the device does not report it.

        It takes about a second.

        Raises:
            LaunchFailed: A run failed.
        """
        ...

    def canary(self) -> None:
        """Runs a small computation and checks its result.

        Raises:
            LaunchFailed: The device is not healthy.
        """
        ...


def declared_baseline(device: Device, arrays: Arrays) -> Run | None:
    """Returns a run of the baseline that the problem's operation declares for a kind of device.

    Raises:
        LaunchFailed: It cannot be prepared.
    """
    baseline = arrays.problem.operation.baselines.get(device.info.kind)
    if baseline is None:
        return None

    def run(of: Callable[[Any, Problem, Mapping[str, Any]], None] = baseline.call) -> None:
        try:
            of(device.xp, arrays.problem, arrays.arrays)
        except Exception as error:
            raise LaunchFailed(
                f"the baseline {baseline.name} fails: {type(error).__name__}: {error}"
            ) from error

    run(baseline.prepare)
    return run


class Compiler(Protocol):
    """Compiles rendered kernels. It needs no device and runs in any number of processes."""

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Compiles for an architecture.

        Raises:
            CompileFailed: The source does not compile.
        """
        ...

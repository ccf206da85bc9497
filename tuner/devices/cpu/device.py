"""The CPU through NumPy and Numba: loads rendered modules, runs and times them with the host's clock."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import llvmlite
import llvmlite.binding as llvm
import numpy
import psutil
import threadpoolctl
from numpy.typing import NDArray

from tuner.devices.cpu.kind import KIND, cpu_info
from tuner.devices.cpu.numba import COMPILER
from tuner.devices.machine_load import EnergyCounters, memory_bytes
from tuner.devices.protocol import Arrays, Device, Run, keep_busy
from tuner.errors import DeviceTrouble
from tuner.results.measurement import AFTER_IDLING, IN_TURN, STATES, median_interval

#: The flush reads and writes this multiple of the last-level cache.
FLUSH_FACTOR = 2
#: A library's threads spin on after a call. OpenBLAS's spun for 0.11 s on the machine where this was measured,
#: and a kernel with a thread on each core took twice its time meanwhile. The next measurement waits until this
#: process uses less than `QUIET_SHARE` of a core in two readings, up to a limit.
QUIET_SHARE, LOOK_S, QUIET_WITHIN_S = 0.1, 0.002, 1.0
#: Calls of a block in a state of a program, fewer where there is no time for so many pairs of blocks. A rest
#: before each where the program idles. The time of a block is its lower quartile: what others do only adds.
CALLS, PAIRS, REST_S = 10, 4, 0.005


class LibraryRun:
    """A library's run with a fixed number of BLAS threads.

    Attributes:
        threads: Threads that its BLAS may use.
    """

    def __init__(self, run: Run, pools: threadpoolctl.ThreadpoolController, threads: int) -> None:
        self.threads = threads
        self._run, self._pools = run, pools

    def __call__(self) -> None:
        """Runs once with its number of threads."""
        with self.limited() as run:
            run()

    @contextmanager
    def limited(self) -> Iterator[Run]:
        """Sets the threads and yields the bare run, because setting them takes longer than a small product."""
        with self._pools.limit(limits=self.threads):
            yield self._run


class CpuDevice(Device):
    """This machine's CPU."""

    xp = numpy

    def __init__(self) -> None:
        self.info = replace(cpu_info(), architecture=llvm.get_host_cpu_name(), runtime=COMPILER)
        self.versions = {
            "numpy": numpy.__version__, "compiler": COMPILER,
            "llvmlite": str(llvmlite.__version__), **blas_versions(),
        }  # fmt: skip
        self._pools = threadpoolctl.ThreadpoolController().select(user_api="blas")
        self._timed_last: Run | None = None
        # It takes memory, and up to a second, when the first cold sample is taken. Each core writes a part, and
        # flushes its own caches, too.
        whole = numpy.zeros(FLUSH_FACTOR * max(self.info.l2_bytes, 1 << 24) // 8)
        self._flush = numpy.array_split(whole, self.info.cores)
        self._writers = ThreadPoolExecutor(self.info.cores)

    def free_bytes(self) -> int:
        """Bytes of memory available without swapping."""
        return memory_bytes()[1] - (0 if self._flush[0][0] else sum(part.nbytes for part in self._flush))

    def library(self, arrays: Arrays, threads: int = 0) -> Run | None:
        """The declared baseline; see the protocol."""
        run = super().library(arrays)
        default = int(self.versions.get("blas_threads", 0))
        uses_blas = run and default and arrays.problem.operation.baselines[self.info.kind].blas
        if run is None or (threads and not uses_blas):
            return None
        if not default:
            return run
        return LibraryRun(run, self._pools, (threads or default) if uses_blas else 1)

    def samples_s(self, run: Run, count: int, regime: str, before: Run | None = None) -> list[float]:
        """Times runs with the host's monotonic clock; see the protocol."""
        if regime not in KIND.regimes:
            raise DeviceTrouble(f"a CPU is timed cold or hot, got regime {regime!r}; choose one of them")
        if run is not self._timed_last:
            wait_until_quiet()
            self._timed_last = run
        samples = list[float]()
        with _bare(run) as timed:
            for _ in range(count):
                if before is not None:
                    before()
                if regime == "cold":
                    list(self._writers.map(_write, self._flush))
                start = time.perf_counter()
                timed()
                samples.append(time.perf_counter() - start)
        return samples

    def in_programs(self, run: Run, library: Run, seconds: float) -> dict[str, float]:
        """Times both back to back, in turn with each other, and after rests; see the protocol."""
        with _bare(library) as other:
            share_s = seconds / len(STATES)
            return {state: _supported(ratios_in(state, run, other, share_s)) for state in STATES}

    def circumstances(self, run: Run) -> Mapping[str, float]:
        """Load average and clock from the operating system; a library's threads."""
        circumstances = {"load_1min": psutil.getloadavg()[0]}
        if isinstance(run, LibraryRun):
            circumstances["threads"] = float(run.threads)
        if (frequency := psutil.cpu_freq()) is not None:
            circumstances["clock_hz"] = frequency.current * 1e6
        return circumstances

    def power_w(self, run: Run) -> float | None:
        """Reads the packages' energy counters, which include everything that runs there."""
        counters = EnergyCounters()
        if counters.trouble:
            return None
        before_j, before_s = counters.read_j(), time.perf_counter()
        with _bare(run) as bare:
            keep_busy(bare, self.synchronize)
        after_j, after_s = counters.read_j(), time.perf_counter()
        return counters.between_j(before_j, after_j) / (after_s - before_s)


def _write(part: NDArray[numpy.float64]) -> None:
    part += 1.0


def _bare(run: Run) -> AbstractContextManager[Run]:
    """Returns the part of a run that is timed."""
    return run.limited() if isinstance(run, LibraryRun) else nullcontext(run)


def _took_s(call: Run) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


def _supported(ratios: Sequence[float]) -> float:
    """The median of the pairs; where these do not tell who is faster, the low end of its interval."""
    low, high = median_interval(ratios)
    return low if low < 1 < high else statistics.median(ratios)


def ratios_in(state: str, own: Run, library: Run, seconds: float) -> list[float]:
    """The library's time over a run's in a state of a program: a ratio for each pair of short blocks of calls.

    The two blocks of a pair lie together, and each begins as often as the other, so that what else the machine
    does meets both.

    Args:
        state: One of `tuner.results.measurement.STATES`.
        own: What is compared with the library.
        library: The library's run.
        seconds: Pairs come in twos, one of either order; none begin that would take longer by the mean of those
            before, but the first.
    """
    begun_s, ratios = time.monotonic(), list[float]()
    count = max(1, min(CALLS, int(seconds / PAIRS / (_took_s(own) + _took_s(library)))))
    while len(ratios) % 2 or not ratios or (time.monotonic() - begun_s) * (1 + 2 / len(ratios)) < seconds:
        is_even = len(ratios) % 2 == 0
        calls = (library, own) if is_even else (own, library)
        if state == IN_TURN:
            calls[1]()  # which the first one follows, too
            turns = [[_took_s(call) for call in calls] for _ in range(count)]
            first_s, second_s = map(_lower_quartile, zip(*turns, strict=True))
        else:
            # A pair begins with what the one before ended with.
            waits, idles = (not ratios, True), state == AFTER_IDLING
            first_s, second_s = (_block_s(*block, count, idles) for block in zip(calls, waits, strict=True))
        ratios.append(first_s / second_s if is_even else second_s / first_s)
    return ratios


def _block_s(call: Run, waits: bool, count: int, idles: bool) -> float:
    """The lower quartile of some calls, which may wait until nothing of another library's spins any more."""
    if waits:
        wait_until_quiet()
    if not idles:
        call()
    times_s = []
    for _ in range(count):
        time.sleep(REST_S if idles else 0.0)
        times_s.append(_took_s(call))
    return _lower_quartile(times_s)


def _lower_quartile(times_s: Sequence[float]) -> float:
    return sorted(times_s)[len(times_s) // 4]


def wait_until_quiet() -> None:
    """Waits until this process's threads sleep, including those of libraries."""
    end_s, quiet = time.monotonic() + QUIET_WITHIN_S, 0
    while quiet < 2 and time.monotonic() < end_s:
        before_s = time.process_time()
        time.sleep(LOOK_S)
        quiet = quiet + 1 if time.process_time() - before_s < QUIET_SHARE * LOOK_S else 0


def blas_versions() -> dict[str, str]:
    """Describes NumPy's BLAS: name and version, the core type it chose, its threads."""
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

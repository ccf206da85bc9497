"""One problem on its devices: a session compiles, measures and stores its configs.

Studies, ladders, measurements of a device's limits and re-measurements all work through a session.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role, measured_as_now
from tuner.store import Store
from tuner.study.recorder import Recorder
from tuner.study.setup import check_fits
from tuner.workers.compile_pool import CompilePool, ruled_out
from tuner.workers.device_worker import DeviceWorker


@dataclass(frozen=True)
class Conditions:
    """How configs are measured.

    Attributes:
        regime: How times are taken.
        energy: True to measure energy beside time.
        error_limit: Configs whose error exceeds this multiple of the library's are not timed; None for no
            limit.
    """

    regime: str = "cold"
    energy: bool = False
    error_limit: float | None = None


@contextmanager
def open_workers(found: Sequence[DetectedDevice]) -> Iterator[list[DeviceWorker]]:
    """Device workers, one for each device; they start side by side and end with the block.

    Raises:
        DeviceTrouble: A device cannot be opened.
    """
    with ExitStack() as stack:
        workers = []
        for device in found:
            workers.append(DeviceWorker(device))
            stack.callback(workers[-1].close)
        for worker in workers:
            worker.open()
        yield workers


class Session:
    """The devices, compile workers and recorders of one problem.

    Attributes:
        problem: What is computed.
        workers: The devices; baseline and finals are measured on the first.
        recorders: Make the records, one for each device.
    """

    def __init__(
        self,
        workers: Sequence[DeviceWorker],
        problem: Problem,
        recorder: Recorder,
        conditions: Conditions,
        pool_size: int = 0,
    ) -> None:
        """Takes the devices; `prepare` makes the arrays, and the compile workers start at first use.

        Args:
            workers: Open device workers of equal devices.
            problem: What is computed.
            recorder: Of the first device.
            conditions: How configs are measured.
            pool_size: Number of compile workers; by default as many as suit the machine.

        Raises:
            DeclarationError: The operation's declaration fails for this problem.
            InputError: The problem does not fit into a device's memory.
        """
        for worker in workers:
            check_fits(problem, worker.free_bytes, worker.info)
        self.problem, self.workers, self._conditions = problem, workers, conditions
        self.recorders = tuple(replace(recorder, device=each.info) for each in workers)
        self._named = {**problem.to_json(), "origin": recorder.origin}
        self._pool_size = pool_size
        self._pool: CompilePool | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.close()

    @property
    def pool(self) -> CompilePool:
        """The compile workers; they start at first use and end with the session."""
        if self._pool is None:
            first = self.workers[0]
            self._pool = CompilePool(
                first.opening, first.info.architecture, self._named, self._pool_size, devices=len(self.workers)
            )
        return self._pool

    @property
    def worker(self) -> DeviceWorker:
        """The first device."""
        return self.workers[0]

    @property
    def recorder(self) -> Recorder:
        """Of the first device."""
        return self.recorders[0]

    @property
    def store(self) -> Store:
        """Where records go."""
        return self.recorder.store

    @property
    def shares_cores(self) -> bool:
        """True if compiling would disturb timing: on a CPU."""
        return self.worker.info.kind == "cpu"

    def start_compiling(self) -> CompilePool:
        """Starts the compile workers ahead of their first use, beside other work."""
        return self.pool

    def prepare(self) -> None:
        """Makes arrays and reference on each device.

        Raises:
            DeviceTrouble: A device cannot, e.g. for lack of memory.
        """
        asked = self._conditions
        for worker in self.workers:
            worker.prepare(self._named, asked.regime, asked.energy, asked.error_limit)

    def compile_all(self, rendered: Mapping[int, Rendered]) -> dict[int, CompiledConfig]:
        """Compiles several configs and waits for all of them; those that fail are left out."""
        return self.pool.compile_all(rendered) if rendered else {}

    def compile(self, kernel: Kernel, config: Config) -> CompiledConfig | Measurement:
        """Compiles one config and waits for it.

        Returns:
            The machine code, or how the compilation failed.
        """
        self.pool.submit(0, render(kernel, self.problem, config))
        compiled = None
        while compiled is None:
            select.select(self.pool.channels, [], [], 0.2)
            compiled = next(iter(self.pool.ready()), None)
        if compiled.compiled_config is not None:
            return compiled.compiled_config
        assert compiled.failure is not None
        return compiled.failure

    def measure(
        self, compiled: CompiledConfig, best_s: float | None = None, limit_s: float | None = None
    ) -> Measurement:
        """Measures a compiled config on the first device, and waits for the end.

        Args:
            compiled: The config to measure.
            best_s: Time to beat in seconds; a config that cannot is pruned. None to measure to the end.
            limit_s: Seconds that it may take; by default they follow from `best_s`.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        rejected = ruled_out(compiled, self.worker.info)
        if rejected is not None and (best_s is not None or rejected.outcome is not Outcome.PRUNED):
            return rejected
        self.worker.begin(compiled, best_s, limit_s)
        while not self.worker.arrived():
            select.select([self.worker.channel], [], [], 0.2)
        return self.worker.finish()

    def add(self, role: Role, kernel: Kernel, config: Config, measurement: Measurement) -> Record:
        """Stores a measurement of the first device."""
        record = self.recorder.of_kernel(role, kernel, config, measurement)
        self.store.add(record)
        return record

    def records(self, role: Role, kernels: Mapping[str, Kernel]) -> list[Record]:
        """Returns stored records of the problem that hold for these kernels as they are now, by name."""
        recorder = self.recorder
        return [
            record
            for record in recorder.past(role)
            if (kernel := kernels.get(record.kernel)) is not None
            and record.origin == recorder.origin
            and measured_as_now(record, kernel, self.problem)
        ]

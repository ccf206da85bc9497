"""One problem on its devices: a session compiles, measures and stores its configs.

Studies, ladders, measurements of a device's limits and re-measurements all work through a session.
"""

from __future__ import annotations

import functools
import select
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role, measured_as_now
from tuner.store import Store
from tuner.study.recorder import Recorder
from tuner.study.setup import check_fits
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import CompilePool, ruled_out
from tuner.workers.device_worker import Crew, DeviceWorker


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


class Session:
    """The devices, compile workers and recorders of one problem.

    Attributes:
        problem: What is computed.
        workers: The devices; baseline and finals are measured on the first.
        recorders: Make the records, one for each device.
    """

    def __init__(
        self,
        crew: Crew,
        problem: Problem,
        recorder: Recorder,
        conditions: Conditions,
        codes: dict[str, CompiledConfig] | None = None,
    ) -> None:
        """Takes the devices; `prepare` makes the arrays, and the compile workers start at first use.

        Args:
            crew: Open workers of equal devices; at the session's end they rest.
            problem: What is computed.
            recorder: Of the first device.
            conditions: How configs are measured.
            codes: Machine code by the hash of its source, shared by sessions of problems that compile alike; by
                default none is kept.

        Raises:
            DeclarationError: The operation's declaration fails for this problem.
            InputError: The problem does not fit into a device's memory.
        """
        for worker in crew.devices:
            check_fits(problem, worker.free_bytes, worker.info)
        self.problem, self.workers, self._conditions = problem, tuple(crew.devices), conditions
        self.recorders = tuple(replace(recorder, device=each.info) for each in self.workers)
        self._named = {**problem.to_json(), "origin": recorder.origin}
        self._crew, self._codes = crew, codes

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.rest()

    @functools.cached_property
    def pool(self) -> CompilePool:
        """The compile workers."""
        return self._crew.pool(self._named)

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
        return kind_of(self.worker.info.kind).is_host

    def known_code(self, rendered: Rendered) -> CompiledConfig | None:
        """Machine code of a source that was compiled before; None without."""
        known = self._codes.get(rendered.hash) if self._codes else None
        return known and replace(known, rendered=rendered)

    def keep_code(self, compiled: CompiledConfig) -> None:
        """Keeps machine code for sessions that share it."""
        if self._codes is not None:
            self._codes[compiled.rendered.hash] = compiled

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

"""Writes the measurements of one run of a study to the store, with their provenance."""

from __future__ import annotations

import collections
import functools
import hashlib
import select
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import DeclarationError, InputError, TunerError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME
from tuner.results.record import (
    OBJECTIVES_OF_STUDY,
    VERIFICATION,
    VERIFICATION_NAME,
    ProblemKey,
    Record,
    Role,
    measured_as_now,
    new_id,
)
from tuner.store import Store
from tuner.version import __version__
from tuner.workers.bench import CompiledConfig
from tuner.workers.compile_pool import CompilePool, ruled_out
from tuner.workers.device_worker import Crew, DeviceWorker

#: Boards of one model do not differ by more; if the library's times do, one of them was disturbed.
MOST_APART = 1.5


def library_times(baselines: Iterable[Record], regime: str, library: str) -> dict[str, float]:
    """Returns board -> the library's median of medians there, in seconds.

    Args:
        baselines: Records of the library for one problem on one model of device.
        regime: How time was taken.
        library: The library's version.
    """
    found: dict[str, list[float]] = {}
    for record in baselines:
        time_s = record.measurement.time_s
        if time_s and record.regime == regime and record.versions.get("library", "") == library:
            found.setdefault(record.device.uuid, []).append(time_s)
    return {board: statistics.median(times_s) for board, times_s in found.items()}


def seen_from(board: str, records: Sequence[Record], library_s: dict[str, float]) -> list[Record]:
    """Returns records with the times that they would have on one board.

    Args:
        board: UUID of the board.
        records: Records of one problem, from any board of the model.
        library_s: The library's time by board. What was measured on a board without one stays as it is.
    """
    ours_s = library_s.get(board)
    return [_seen(each, ours_s, library_s.get(each.device.uuid), board) for each in records]


def _seen(record: Record, ours_s: float | None, theirs_s: float | None, board: str) -> Record:
    if record.device.uuid == board or not ours_s or not theirs_s:
        return record
    factor = ours_s / theirs_s
    if not 1 / MOST_APART < factor < MOST_APART:
        return record
    samples_s = tuple(each * factor for each in record.measurement.samples_s)
    return replace(record, measurement=replace(record.measurement, samples_s=samples_s))


@dataclass(frozen=True)
class Recorder:
    """Makes the records of one run; holds what they have in common.

    Attributes:
        store: Where records go.
        problem: The problem.
        device: The device.
        regime: How times are taken.
        versions: Name -> version of everything involved on the device.
        study: Name of the study.
        session: Id of this run.
    """

    store: Store
    problem: Problem
    device: DeviceInfo
    regime: str
    versions: Mapping[str, str]
    study: str
    session: str = field(default_factory=new_id)

    @property
    def origin(self) -> str:
        """File of a user's own operation; empty for a built-in one."""
        return str(self.problem.operation.origin or "")

    @property
    def work(self) -> dict[str, float]:
        """``flops`` and ``bytes`` of a run."""
        work = self.problem.work
        return {"flops": work.flops, "bytes": work.bytes}

    def past(self, role: Role) -> list[Record]:
        """Returns stored records of the problem with this driver and compiler, of any kernel.

        Times of trials on other boards of the model are seen from this one.
        """
        key = ProblemKey.of(self.problem)
        known = past_records(self.store, key, self.device, self.regime, self.versions, role)
        board = self.device.uuid
        if role is not Role.TRIAL or all(each.device.uuid == board for each in known):
            return known
        baselines = self.store.records(problem=key, device=self.device, role=Role.BASELINE)
        library_s = library_times(baselines, self.regime, self.versions.get("library", ""))
        return seen_from(board, known, library_s)

    def of_kernel(self, role: Role, kernel: Kernel, config: Config, measurement: Measurement) -> Record:
        """A record of a kernel's config; it is not stored yet."""
        record = self._record(role, kernel.name, dict(config), kernel.source_hash, measurement)
        fallback = kernel.falls_back_to(config)
        return replace(record, versions={**record.versions, "fallback": fallback}) if fallback else record

    def of_baseline(self, measurement: Measurement) -> Record:
        """Makes a record of the library, with its number of threads, without storing it."""
        name = self.problem.operation.baselines[self.device.kind].named(self.problem)
        record = self._record(Role.BASELINE, name, {}, "", measurement)
        if "threads" not in measurement.circumstances:
            return record
        threads = str(int(measurement.circumstances["threads"]))
        return replace(record, versions={**record.versions, "blas_threads": threads})

    def _record(
        self, role: Role, kernel: str, config: Mapping[str, Any], source_hash: str, measurement: Measurement
    ) -> Record:
        return Record(
            problem=ProblemKey.of(self.problem), device=self.device, regime=self.regime, role=role,
            kernel=kernel, config=config, source_hash=source_hash, measurement=measurement,
            work=self.work,
            versions={"tuner": __version__, VERIFICATION_NAME: str(VERIFICATION), **self.versions},
            study=self.study, session=self.session, origin=self.origin,
        )  # fmt: skip


class WriteBehind:
    """Stores records in order; all waiting ones go into one transaction.

    It works inside ``with`` only, and leaving the block waits until all is stored. On a CPU target the thread
    would disturb timing; with `inline` a record is stored before `put` returns.

    Attributes:
        storing_s: Seconds that storing took in the thread.
    """

    def __init__(self, store: Callable[[list[Record]], object], inline: bool) -> None:
        """Prepares it.

        Args:
            store: Stores records in one transaction; they are on disk when it returns.
            inline: True to store in `put`.
        """
        self._store, self._inline = store, inline
        self._changed = threading.Condition()
        self._waiting: collections.deque[tuple[Record, Callable[[], None]]] = collections.deque()
        self._storing = 0
        self._closed = True
        self._failure: BaseException | None = None
        self.storing_s = 0.0

    @property
    def pending(self) -> int:
        """Records that are not stored yet.

        Raises:
            Exception: What storing raised.
        """
        with self._changed:
            self._check()
            return len(self._waiting) + self._storing

    def put(self, record: Record, stored: Callable[[], None]) -> None:
        """Stores a record, soon.

        Args:
            record: The record to store.
            stored: Called once it is on disk, possibly in another thread.

        Raises:
            Exception: Storing this record or an earlier one raised it.
        """
        if self._inline:
            self._store([record])
            stored()
            return
        with self._changed:
            self._check()
            self._waiting.append((record, stored))
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> WriteBehind:
        """Starts the thread."""
        if not self._inline:
            self._closed = False
            self._thread = threading.Thread(target=self._run, name="write behind", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all is stored; re-raises errors of storing, unless another error is already raised."""
        if self._inline:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if error is None:
            self._check()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._changed:
                self._failure = error

    def _step(self) -> bool:
        """Stores the waiting records; False if there are none and no more will come."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken = list(self._waiting)
            self._waiting.clear()
            self._storing = len(taken)
        if not taken:
            return False
        start = time.perf_counter()
        self._store([record for record, _ in taken])
        self.storing_s += time.perf_counter() - start
        for _, stored in taken:
            stored()
        with self._changed:
            self._storing = 0
        return True


@dataclass(frozen=True)
class TimingConditions:
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
        conditions: TimingConditions,
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


def study_name(
    problem: ProblemKey,
    device: DeviceInfo,
    regime: str,
    kernels: Iterable[Kernel],
    objectives: Sequence[str] = TIME,
    error_limit: float | None = None,
) -> str:
    """Names a study; other kernels, sources, objectives or error limits make another study."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    aims = f"{OBJECTIVES_OF_STUDY}{' '.join(objectives)}" if len(objectives) > 1 else ""
    limit = "" if error_limit is None else f", error limit {error_limit:g}"
    return f"{problem} on {device.name}, {regime}, kernels {digest}{aims}{limit}"


def past_records(
    store: Store,
    problem: ProblemKey,
    device: DeviceInfo,
    regime: str,
    versions: Mapping[str, str],
    role: Role = Role.TRIAL,
) -> list[Record]:
    """Returns records of a problem measured with this driver and compiler, of any kernel."""
    return [
        record
        for record in store.records(problem=problem, device=device, role=role)
        if record.regime == regime
        and all(record.versions.get(name) == versions.get(name) for name in ("compiler", "driver"))
    ]


def check_fits(problem: Problem, free_bytes: int, device: DeviceInfo) -> None:
    """Refuses a problem whose declaration fails, or that exceeds free memory.

    Raises:
        DeclarationError: What its operation declares fails for this problem.
        InputError: It does not fit, or a dim is too large for kernels.
    """
    try:
        needed, work = problem.memory_bytes, problem.work
        _ = problem.scalars, problem.tolerance, float(work.flops), float(work.bytes)
    except TunerError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"tensors, work, scalars and terms of operation {problem.operation.name!r} must hold for every "
            f"problem; for {problem} they fail with {type(error).__name__}: {error}; correct them"
        ) from error
    if needed > free_bytes:
        raise InputError(
            f"a problem's arrays and float64 reference must fit into free memory ({free_bytes / 2**30:.3g} GiB "
            f"on {device.name}), {problem} needs {needed / 2**30:.3g} GiB; choose smaller dims"
        )

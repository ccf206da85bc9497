"""The devices and compile workers of one problem, and the records of one run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
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
from tuner.workers.device_worker import LONG_LIMIT_S, Crew, DeviceWorker
from tuner.workers.sampling import SCREEN_SHARE, SCREEN_WALL_S

#: Boards of one model do not differ by more; if the library's times do, one of them was disturbed.
MOST_APART = 1.5


def on_board(board: str, record: Record, library_s: Mapping[str, float]) -> Record:
    """A record with the times that it would have on a board, by the library's times on each board.

    Args:
        board: UUID of the board.
        record: From any board of the model. That of a board without a time of the library stays as it is.
        library_s: UUID of a board -> the library's time there.
    """
    ours_s, theirs_s = library_s.get(board), library_s.get(record.device.uuid)
    factor = ours_s / theirs_s if ours_s and theirs_s else 1.0
    if record.device.uuid == board or not 1 / MOST_APART < factor < MOST_APART:
        return record
    samples_s = tuple(sample_s * factor for sample_s in record.measurement.samples_s)
    return replace(record, measurement=replace(record.measurement, samples_s=samples_s))


def timeable(
    code: CompiledConfig | Measurement, worker: DeviceWorker, prunes_spills: bool = False
) -> CompiledConfig | Measurement:
    """Machine code that can be timed on a device; else why it cannot.

    Args:
        code: What a compile worker returned.
        worker: The device.
        prunes_spills: True if what spills many registers is not to be timed either.
    """
    rejected = ruled_out(code, worker.info) if isinstance(code, CompiledConfig) else None
    return rejected if rejected and (prunes_spills or rejected.outcome is not Outcome.PRUNED) else code


class Session:
    """The devices and compile workers of one problem after the other; makes the records of one run.

    Attributes:
        problem: What is computed.
        store: Where records go.
        regime: How times are taken.
        workers: The devices; baseline and finals are measured on the first.
        worker: The first device.
        device: Its identity.
        versions: Name -> version of everything involved there, this package included.
        key: Names the problem in records.
        origin: File of a user's own operation; empty for a built-in one.
        shares_cores: True if compiling would disturb timing: on a CPU.
    """

    def __init__(
        self, crew: Crew, store: Store, problem: Problem, regime: str, study: str, energy: bool = False,
        error_limit: float | None = None, seconds: float | None = None, may_vary: bool = False,
    ) -> None:  # fmt: skip
        """Takes the devices; `prepare` makes the arrays.

        Args:
            crew: Open workers of equal devices; at the session's end they rest.
            store: Where records go.
            problem: What is computed.
            regime: How times are taken.
            study: Name of the study, for the records.
            energy: True to measure energy beside time.
            error_limit: Configs whose error exceeds this multiple of the library's are not timed; None for no
                limit.
            seconds: The budget, of which a host times each config for a share at the most; None for no limit.
            may_vary: True to time configs, too, whose bits differ between two runs.

        Raises:
            DeclarationError: The operation's declaration fails for this problem.
            InputError: The problem does not fit into a device's memory.
        """
        self.store, self.workers = store, tuple(crew.devices)
        self.worker: DeviceWorker = self.workers[0]
        self.device, self.regime = self.worker.info, regime
        self.versions = {"tuner": __version__, VERIFICATION_NAME: str(VERIFICATION), **self.worker.versions}
        self.shares_cores = kind_of(self.device.kind).is_host
        self._energy, self._error_limit, self._may_vary = energy, error_limit, may_vary
        share_s = SCREEN_SHARE * (seconds or math.inf) if self.shares_cores else math.inf
        self._screen_s = min(share_s, SCREEN_WALL_S)
        self._crew, self._study, self._id = crew, study, new_id()
        self.take_up(problem)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.rest()

    @staticmethod
    def named(problem: Problem) -> dict[str, Any]:
        """A problem as workers are told it; see `tuner.workers.bench.problem_from`."""
        return {**problem.to_json(), "origin": str(problem.operation.origin or "")}

    def take_up(self, problem: Problem) -> None:
        """What is rendered and compiled from now on is for this problem.

        Raises:
            DeclarationError: The operation's declaration fails for this problem.
            InputError: The problem does not fit into a device's memory.
        """
        for worker in self.workers:
            check_fits(problem, worker.free_bytes, worker.info)
        self.problem, self.key, self.origin = problem, ProblemKey.of(problem), self.named(problem)["origin"]

    @cached_property
    def pool(self) -> CompilePool:
        """The compile workers."""
        return self._crew.pool(self.named(self.problem))

    def prepare(self, limit_s: float = LONG_LIMIT_S) -> None:
        """Makes arrays and reference on each device.

        Raises:
            DeviceTrouble: A device cannot, e.g. for lack of memory.
            NothingFound: It takes a device longer than so many seconds.
        """
        how = self.regime, self._energy, self._error_limit, limit_s, self._screen_s, self._may_vary
        for worker in self.workers:
            worker.prepare(self.named(self.problem), *how)

    def timed(
        self, kernel: Kernel, config: Config, limit_s: float
    ) -> tuple[CompiledConfig | None, Measurement]:
        """Compiles a config and measures it to the end on the first device, however slow; nothing is stored.

        Args:
            kernel: Its kernel.
            config: The config.
            limit_s: Seconds that it may take.

        Returns:
            The machine code, None if it was not measured; and the measurement.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        code = timeable(self.pool.results({0: render(kernel, self.problem, config)})[0], self.worker)
        if isinstance(code, Measurement):
            return None, code
        self.worker.begin(code, None, limit_s)
        measurement = self.worker.finish()
        return code if measurement.outcome is Outcome.MEASURED else None, measurement

    def of_kernel(
        self, role: Role, kernel: Kernel, config: Config, measurement: Measurement, worker: int = 0
    ) -> Record:
        """A record of a kernel's config, measured by a worker; it is not stored yet."""
        fallback = kernel.falls_back_to(config)
        more = {"fallback": fallback} if fallback else {}
        device = self.workers[worker].info
        return self._record(device, role, kernel.name, config, kernel.source_hash, measurement, more)

    def of_baseline(self, measurement: Measurement, versions: Mapping[str, str] | None = None) -> Record:
        """A record of the library, with its number of threads; it is not stored yet.

        Args:
            measurement: Its measurement.
            versions: Those of the process that measured it, if that was another one.
        """
        name = self.problem.operation.baselines[self.device.kind].named(self.problem)
        more = dict(versions or {})
        if "threads" in measurement.circumstances:
            more["blas_threads"] = str(int(measurement.circumstances["threads"]))
        return self._record(self.device, Role.BASELINE, name, {}, "", measurement, more)

    def _record(
        self, device: DeviceInfo, role: Role, kernel: str, config: Mapping[str, Any], source_hash: str,
        measurement: Measurement, versions: Mapping[str, str],
    ) -> Record:  # fmt: skip
        own = {**self.versions, **versions}
        return Record(
            self.key, device, self.regime, role, kernel, dict(config), source_hash, measurement,
            asdict(self.problem.work), own, self._study, self._id, self.origin,
        )  # fmt: skip

    def add(self, role: Role, kernel: Kernel, config: Config, measurement: Measurement) -> None:
        """Stores a measurement of the first device."""
        self.store.add(self.of_kernel(role, kernel, config, measurement))

    def past(self, role: Role) -> list[Record]:
        """Returns stored records of the problem with this driver and compiler, of any kernel.

        Trials of other boards of the model have the times that they would have on this one.
        """
        past = partial(past_records, self.store, self.key, self.device, self.regime, self.versions)
        if role is not Role.TRIAL:
            return past(role)
        library_s = {
            record.device.uuid: record.measurement.time_s
            for record in past(Role.BASELINE)
            if record.measurement.time_s and record.versions.get("library") == self.versions.get("library")
        }
        return [on_board(self.device.uuid, record, library_s) for record in past(role)]

    def records(self, role: Role, kernels: Mapping[str, Kernel]) -> list[Record]:
        """Returns stored records of the problem that hold for these kernels as they are now, by name."""
        return [
            record
            for record in self.past(role)
            if (kernel := kernels.get(record.kernel)) is not None
            and record.origin == self.origin
            and (record.versions.get("library") == self.versions.get("library") or not kernel.is_library)
            and measured_as_now(record, kernel, self.problem)
        ]


def study_name(
    problem: ProblemKey | str, device: DeviceInfo, regime: str, kernels: Iterable[Kernel],
    objectives: Sequence[str] = TIME, error_limit: float | None = None, bits: str = "",
) -> str:  # fmt: skip
    """Names a study; other kernels, sources, objectives, error limits or bits make another study."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    aims = f"{OBJECTIVES_OF_STUDY}{' '.join(objectives)}" if len(objectives) > 1 else ""
    limit = "" if error_limit is None else f", error limit {error_limit:g}"
    held = f", bits {bits}" if bits else ""
    return f"{problem} on {device.name}, {regime}, kernels {digest}{aims}{limit}{held}"


def past_records(
    store: Store, problem: ProblemKey, device: DeviceInfo, regime: str, versions: Mapping[str, str], role: Role
) -> list[Record]:
    """Returns records of a problem measured with this driver and compiler, of any kernel."""
    return [
        record
        for record in store.records(problem=problem, device=device, role=role, regime=regime)
        if all(record.versions.get(name) == versions.get(name) for name in ("compiler", "driver"))
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

"""Writes the measurements of one run of a study to the store, with their provenance."""

from __future__ import annotations

import collections
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.results.measurement import Measurement
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, Record, Role, new_id
from tuner.store import Store
from tuner.study.setup import key_of, past_records
from tuner.version import __version__

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
        key = key_of(self.problem)
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
            problem=key_of(self.problem), device=self.device, regime=self.regime, role=role, kernel=kernel,
            config=config, source_hash=source_hash, measurement=measurement,
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

"""Known times of an operation's shapes on a device, and timing of those that are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.devices.protocol import REGIMES
from tuner.errors import DeviceTrouble

if TYPE_CHECKING:
    from tuner.devices.detect import DetectedDevice
    from tuner.lookup.snapshot import Snapshot
    from tuner.lookup.tuned import Tuned
    from tuner.store import Store
    from tuner.study.remeasure import Wanted

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

#: Rounds of timing missing configs and choosing again.
ROUNDS = 20


def measuring_options(command: F) -> F:
    """``--measure`` and ``--seconds``."""
    for decorate in (
        click.option("--seconds", type=float, default=None, help="Seconds for timing; default: no limit."),
        click.option(
            "--measure/--no-measure", default=None,
            help="Time missing configs; default: if this machine has the device.",
        ),
    ):  # fmt: skip
        command = decorate(command)
    return command


class ShapesKnown:
    """An operation on a device, with its known times.

    Attributes:
        device: The device, complete.
        subject: What is asked about.
        catalogue: The kernels.
    """

    def __init__(
        self, operation: str, device: str, dtype: str, regime: str | None, store: Store | None, db: str
    ) -> None:
        """Finds the device.

        Args:
            operation: Name of a built-in operation.
            device: As ``--device``.
            dtype: Element type; the operation's first if empty.
            regime: How time was measured; None for the first regime with known times.
            store: Where records are; None without a database.
            db: The database's URL.

        Raises:
            UnknownName: No such operation, dtype, or device.
        """
        from tuner.lookup.asking import parse_device
        from tuner.lookup.device_similarity import known_device
        from tuner.lookup.legality import completed
        from tuner.lookup.stale import builtin_now
        from tuner.lookup.tuned import Subject

        self._store, self._db, self._spec = store, db, device
        self.catalogue = builtin_now()
        declared = self.catalogue.operation(operation)
        known, where = self._snapshot().devices(), parse_device(device)
        self.device = completed(known_device(where, known) if isinstance(where, str) else where, known)
        problem = declared.problem(dict.fromkeys(declared.dims, 1), dtype)
        self.subject = Subject(
            operation, problem.dtype, self.device.kind, regime or REGIMES[0], self.device.name
        )
        for each in REGIMES[1:] if regime is None else ():
            if not self._is_known():
                self.subject = replace(self.subject, regime=each)
        if not self._is_known():
            self.subject = replace(self.subject, regime=regime or REGIMES[0])

    def _is_known(self) -> bool:
        """Whether anything was timed in the regime on the device."""
        return bool(self.tuned())

    def _snapshot(self) -> Snapshot:
        from tuner.lookup.snapshot import Snapshot

        return Snapshot.open(self._store)

    def tuned(self) -> list[Tuned]:
        """What is tuned now."""
        return self._snapshot().tuned(self.subject, self.catalogue)

    def measured(
        self,
        choose: Callable[[], T],
        missing: Callable[[T], list[Wanted]],
        measure: bool | None,
        seconds: float | None,
    ) -> tuple[T, list[Wanted]]:
        """Chooses, times what is missing, and chooses again, until nothing is missing or time is up.

        Args:
            choose: Chooses from the times known now.
            missing: The times that a choice lacks.
            measure: Whether to time; None to time if the device is on this machine.
            seconds: Limit for the timing; None for no limit.

        Returns:
            The last choice, and the times that it still lacks.

        Raises:
            DeviceTrouble: Timing was requested, and the device is not on this machine or is unwell.
        """
        found = choose()
        wanted = missing(found)
        if not wanted or measure is False:
            return found, wanted
        here = self._here()
        if here is not None:
            return self._rounds(here, choose, missing, seconds)
        if measure:
            raise DeviceTrouble(
                f"--measure times on {self.device.name}, which is not on this machine; run the command there"
            )
        return found, wanted

    def _rounds(
        self,
        here: DetectedDevice,
        choose: Callable[[], T],
        missing: Callable[[T], list[Wanted]],
        seconds: float | None,
    ) -> tuple[T, list[Wanted]]:
        from tuner.results.record import ELSEWHERE
        from tuner.store import Store
        from tuner.study.locks import occupied
        from tuner.study.remeasure import Remeasuring

        deadline_s = None if seconds is None else time.monotonic() + seconds
        study = f"{ELSEWHERE} {self.subject.operation}"
        tried: set[tuple[Any, ...]] = set()
        with Store.open(self._db) as store, occupied(self._db, (here,), study):
            before, self._store = self._store, store
            measuring = Remeasuring(store, here, self.subject.regime, study)
            try:
                for _ in range(ROUNDS):
                    found = choose()
                    wanted = missing(found)
                    fresh = [each for each in wanted if _named(each) not in tried]
                    if not fresh or (deadline_s is not None and time.monotonic() > deadline_s):
                        break
                    tried |= {_named(each) for each in fresh}
                    measuring.run(fresh, deadline_s, lambda text: click.echo(text, err=True))
            finally:
                measuring.close()
                self._store = before
        return found, wanted

    def _here(self) -> DetectedDevice | None:
        """The device on this machine; None if it has none of that name."""
        from tuner.devices.detect import find, gpus

        if self._spec.startswith("fake:"):
            return find(self._spec)
        return next((each for each in (*gpus(), find("cpu")) if each.info.name == self.device.name), None)


def _named(wanted: Wanted) -> tuple[Any, ...]:
    return wanted.problem, wanted.kernel.name, wanted.config


@contextmanager
def shapes_known(operation: str, device: str, dtype: str, regime: str | None, db: str) -> Iterator[ShapesKnown]:
    """An operation's known times on a device; the database is open meanwhile."""
    from tuner.lookup.asking import opened

    store = opened(db)
    try:
        yield ShapesKnown(operation, device, dtype, regime, store, db)
    finally:
        if store is not None:
            store.close()

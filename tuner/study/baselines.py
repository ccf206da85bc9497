"""The library's times for a problem: measured before the search, and compared with those of the finals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.machine_load import MachineWatch
from tuner.results.doubts import NOISE, LibraryTime, contradictions
from tuner.results.measurement import Measurement, compare_apart, under
from tuner.results.record import Pair, Record, Role
from tuner.study.budget import TimeBudget
from tuner.study.progress import Request
from tuner.study.recorder import Recorder
from tuner.study.session import Session
from tuner.study.setup import check_energy, key_of
from tuner.workers.device_worker import Crew


class StoredBaselines:
    """The library's records of one problem on one board, from this run and earlier ones.

    They are of the library's current version only, because another version may be twice as fast.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Reads them.

        Args:
            recorder: Recorder of the run that holds the finals.
        """
        self._core_type = recorder.versions.get("blas_core_type", "")
        known = recorder.store.records(
            problem=key_of(recorder.problem), device=recorder.device, role=Role.BASELINE
        )
        self._known = [
            each
            for each in known
            if (each.regime, each.device.uuid) == (recorder.regime, recorder.device.uuid)
            and each.versions.get("library") == recorder.versions.get("library")
            and each.measurement.time_s
        ]

    def mark(self, finals: Sequence[Measurement], libraries: Sequence[Record]) -> list[Measurement]:
        """Adds reasons to doubt them to the circumstances of finals' measurements.

        Args:
            finals: Measurements of kernels.
            libraries: The library's records from the same finals, with its default number of threads first.
        """
        apart: dict[str, float] = {}
        others = [_time_of(each) for each in self._known]
        for record in libraries:
            if record.measurement.time_s:
                for name, ratio in contradictions(_time_of(record), others).items():
                    apart[name] = max(ratio, apart.get(name, 0.0))
        return [
            replace(each, circumstances={**each.circumstances, NOISE: each.noise, **apart})
            if each.samples_s
            else each
            for each in finals
        ]

    def pair(self, name: str, champion: Measurement) -> Pair | None:
        """Pairs the champion with the library's fastest run under another core type; None if there is none.

        The two were timed in different rounds.

        Args:
            name: The champion's, as in other pairs.
            champion: Its measurement in the finals.
        """
        others = [each for each in self._known if _core_type(each) != self._core_type]
        best = min(others, key=lambda each: each.measurement.time_s or 0.0, default=None)
        if best is None or best.measurement.time_s is None:
            return None
        threads = int(best.versions.get("blas_threads") or 0)
        with_threads = f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""
        return Pair(
            name, f"{best.kernel}, {_core_type(best)}{with_threads}, not in the finals",
            best.measurement.time_s, compare_apart(champion.samples_s, best.measurement.samples_s),
        )  # fmt: skip


def measure_baseline(
    session: Session, request: Request, budget: TimeBudget, machine: MachineWatch
) -> Measurement | None:
    """Returns the library's time before the search; measures and stores it unless the request has it.

    Args:
        session: The session.
        request: The study's request.
        budget: Time and progress.
        machine: Watches the machine's load meanwhile.

    Returns:
        None without a library.

    Raises:
        InputError: The device does not report what an objective needs.
        DeviceTrouble: The device failed.
    """
    library = request.library
    if library is None:
        with budget.spent("baseline"):
            library = session.worker.baseline()
    if library is None:
        return None
    recorder = session.recorder
    check_energy(request.objectives, recorder.device, library)
    budget.progress.set_baseline(library.time_s)
    if request.library is None:
        (seen,) = under(machine.load().seen, [library])
        session.store.add(recorder.of_baseline(seen))
        _measure_best_blas(session, request, budget)
    return library


def _measure_best_blas(session: Session, request: Request, budget: TimeBudget) -> None:
    """Measures NumPy with the core type that suits this CPU, in a separate process, if it chose another."""
    recorder = session.recorder
    found = with_best_blas(request.found[0], recorder.versions.get("blas_core_type", ""))
    if found is None:
        return
    with Crew([found]) as crew:
        worker = crew.devices[0]
        worker.prepare({**recorder.problem.to_json(), "origin": recorder.origin}, recorder.regime)
        measurement = worker.baseline()
        versions = worker.versions
    if measurement is not None and measurement.time_s is not None:
        budget.progress.set_best_blas(versions.get("blas_core_type", ""), measurement.time_s)
        session.store.add(replace(recorder, versions=versions).of_baseline(measurement))


def _core_type(record: Record) -> str:
    return record.versions.get("blas_core_type", "")


def _time_of(record: Record) -> LibraryTime:
    return LibraryTime(
        record.kernel, _core_type(record), record.versions.get("blas_threads", ""), record.session,
        record.measurement.time_s or 0.0,
    )  # fmt: skip

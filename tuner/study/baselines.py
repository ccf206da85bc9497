"""The library's times of a problem, stored outside of the finals, to hold those of the finals against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.results.doubts import NOISE, LibraryTime, contradictions
from tuner.results.measurement import Measurement
from tuner.results.record import Pair, Record, Role
from tuner.results.statistics import compare_apart
from tuner.study.recorder import Recorder
from tuner.study.setup import key_of


class StoredBaselines:
    """The library's records of one problem on one board, those of this run and of earlier ones.

    They are of the library's version that takes part now: another may well be twice as fast.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Reads them.

        Args:
            recorder: Of the run whose finals are held.
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
        """Measurements of finals with what speaks against them among their circumstances.

        Args:
            finals: Of kernels.
            libraries: Records of the library from the same finals; with its default of threads first.
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
        """The champion with the fastest run of the library under another core type; None without any.

        The two were not timed in the same rounds.

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


def _core_type(record: Record) -> str:
    return record.versions.get("blas_core_type", "")


def _time_of(record: Record) -> LibraryTime:
    return LibraryTime(
        record.kernel, _core_type(record), record.versions.get("blas_threads", ""), record.session,
        record.measurement.time_s or 0.0,
    )  # fmt: skip

"""Configs for all numbers of rows that give a row the same bits: one for each range, all of one class of rows.

A study searches each power of two of rows. Of each class of bits that it saw, the fastest config's rows are
hashed. The configs of the best classes are timed at the other sizes, and the class is taken whose speeds have
the largest geometric mean. Its configs are proven with more rows, at sizes between, too, and timed beside the
library.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.report.remeasuring import MissingTime, remeasure
from tuner.results.measurement import VARIES, Measurement, Outcome, compare
from tuner.results.record import Champion, ProblemKey, Record, Role, rows_study
from tuner.store import Store
from tuner.study.leaderboard import named
from tuner.study.progress import Progress, Result
from tuner.study.requests import StudyRequest
from tuner.study.session import Session
from tuner.study.study import open_study
from tuner.workers.bench import CompiledConfig, ShapeCase
from tuner.workers.device_worker import Crew

#: Rows that are hashed in the search, and for the proof: primes, so that a row stands at every place of a tile.
FEW_ROWS, ROWS = 37, 1009
#: Classes of bits whose rows are hashed at a size; classes of rows that are timed at all sizes; finalists.
MOST_HASHED, MOST_TIMED, FINALISTS = 12, 4, 3
#: Shares of the time until the searches end, and until the other sizes are timed.
SEARCHED, TIMED = 0.5, 0.75
#: Seconds that a study may take to open and to time a config, at the least; of finals of a size, at the most.
LEAST_S, FINALS_S = 10.0, 5.0
#: Speed that a class is taken to have at a size where it was not timed, of the fastest.
UNTIMED = 0.5


def run_invariant(
    request: StudyRequest, store: Store, report: Callable[[Progress], None] = lambda progress: None
) -> Result:
    """Finds the configs and stores them with their class.

    Args:
        request: Names the dim, `StudyRequest.invariant`; its problem has the largest size. The trials are those
            of each size.
        store: Where records go.
        report: Called a few times a second.

    Returns:
        The configs, the smallest size first; the champion is that of the largest.

    Raises:
        NothingFound: No class has a config at every size.
        TunerError: As `tuner.study.study.run_study`.
    """
    with Crew(request.found) as crew:
        rows = _RowSearch(request, store, crew, report)
        rows.search()
        rows.time_elsewhere()
        for name in rows.ranked():
            ranges = rows.finals(name)
            if ranges:
                return Result(ranges[-1], rows.progress, "every size has its config", ranges=ranges)
    raise NothingFound(
        f"no class of rows has a config for every {request.invariant} up to {rows.sizes[-1]}; give more time, "
        "or a smaller size"
    )


class _RowSearch:
    """The sizes, what was timed there, and the classes of its rows.

    Attributes:
        sizes: Powers of two up to the problem's size, and that.
        progress: Of the last study.
    """

    def __init__(
        self, request: StudyRequest, store: Store, crew: Crew, report: Callable[[Progress], None]
    ) -> None:
        self._request, self._store, self._crew, self._report = request, store, crew, report
        self._dim, self._begun_s = request.invariant, time.monotonic()
        self._kernels = {kernel.name: kernel for kernel in request.kernels}
        top = request.problem.dims[self._dim]
        self.sizes = [*(1 << power for power in range((top - 1).bit_length())), top]
        self.progress = Progress()
        #: Size -> class of rows -> records, the fastest first.
        self._timed: dict[int, dict[str, list[Record]]] = {}
        self._class_of: dict[tuple[int, str], str] = {}
        device = crew.devices[0].info.name
        self._study = rows_study(ProblemKey.of(request.problem), device, request.regime, self._dim)

    def _at(self, size: int) -> Problem:
        problem = self._request.problem
        return problem.at({**problem.dims, self._dim: size})

    def _share_s(self, until: float, parts: int) -> float | None:
        """Seconds for one of equal parts of what is left until a share of the time; None for no limit."""
        seconds = self._request.seconds
        if seconds is None:
            return None
        return max(self._begun_s + until * seconds - time.monotonic(), 0.0) / parts

    def search(self) -> None:
        """Runs a study of each size, the largest first."""
        for number, size in enumerate(self.sizes[::-1]):
            share_s = self._share_s(SEARCHED, len(self.sizes) - number)
            seconds = None if share_s is None else max(share_s, LEAST_S)
            asked = replace(self._request, problem=self._at(size), seconds=seconds, finals_s=0.0, invariant="")
            with open_study(asked, self._store, self._report, self._crew) as study:
                study.search(share_s)
                if not study.leaderboard.times_s:
                    study.search()
                self._classify(study.session)
                self.progress = study.progress

    def time_elsewhere(self) -> None:
        """Times the configs of the best classes at the other sizes."""
        best = self.ranked()[:MOST_TIMED]
        chosen = {
            named(classes[name][0]) for classes in self._timed.values() for name in best if name in classes
        }
        for number, size in enumerate(self.sizes):
            problem, records = self._at(size), [*chain(*self._timed[size].values())]
            best_s = min(map(_time_s, records), default=None)
            missing = [
                MissingTime(problem, self._kernels[kernel], config, best_s)
                for kernel, config in sorted(chosen - set(map(named, records)), key=str)
                if self._kernels[kernel].allows(problem, self._crew.devices[0].info, config)
            ]
            share_s = self._share_s(TIMED, len(self.sizes) - number)
            until_s = None if share_s is None else time.monotonic() + share_s
            remeasure(
                self._store,
                self._crew,
                missing,
                self._request.regime,
                self._study,
                until_s,
                after=self._classify,
            )

    def ranked(self) -> list[str]:
        """Classes by the geometric mean of their times, the fastest first."""
        names = {name for classes in self._timed.values() for name in classes}

        def cost(name: str) -> float:
            fastest_s = [
                _time_s(classes[name][0])
                if name in classes
                else min(_time_s(records[0]) for records in classes.values()) / UNTIMED
                for classes in self._timed.values()
                if classes
            ]
            return sum(map(math.log, fastest_s))

        return sorted(names, key=cost)

    def _classify(self, session: Session) -> None:
        """Sorts what was timed at a size by the class of its rows, which is one for all of a class of bits."""
        size, by_bits = session.problem.dims[self._dim], dict[str, list[Record]]()
        trials = session.records(Role.TRIAL, self._kernels)
        timed = [
            record for record in trials if record.measurement.bits and not record.measurement.outcome.failed
        ]
        for record in sorted((record for record in timed if record.measurement.samples_s), key=_time_s):
            by_bits.setdefault(record.measurement.bits, []).append(record)
        classes: dict[str, list[Record]] = {}
        for bits, records in list(by_bits.items())[:MOST_HASHED]:
            if (size, bits) not in self._class_of:
                self._class_of[size, bits] = self._proven(session, records[0], (size,), FEW_ROWS)[1]
            classes.setdefault(self._class_of[size, bits], []).extend(records)
        self._timed[size] = {
            name: sorted(records, key=_time_s) for name, records in classes.items() if name not in ("", VARIES)
        }

    def _proven(
        self, session: Session, record: Record, sizes: Sequence[int], count: int
    ) -> tuple[CompiledConfig | None, str]:
        """A config's code, and the class of its rows; empty if that is not one at all of these sizes."""
        kernel, config = self._kernels[record.kernel], Config(record.config)
        code = session.compile_all({0: render(kernel, session.problem, config)}).get(0)
        cases = [self._case(session, kernel, config, size, code) for size in sizes]
        known = [case for case in cases if case is not None]
        if code is None or len(known) < len(cases):
            return None, ""
        classes = {session.worker.class_of_rows(code, case, self._dim, count) for case in known}
        is_right = len(classes) == 1 and (len(known) == 1 or not session.worker.verify(code, known))
        return code, classes.pop() if is_right else ""

    def _case(
        self, session: Session, kernel: Kernel, config: Config, size: int, code: CompiledConfig | None
    ) -> ShapeCase | None:
        """The launch at a size; None if the code is another one there, or the config is not legal."""
        problem = self._at(size)
        if code is None or not kernel.allows(problem, session.device, config):
            return None
        rendered = render(kernel, problem, config)
        is_same = rendered.text == code.rendered.text
        return ShapeCase(session.named(problem), rendered.launch) if is_same else None

    def finals(self, name: str) -> tuple[Champion, ...]:
        """Proves and times a class at each size, and stores it; nothing if it cannot be had at one of them."""
        ranges, rows, below = list[Champion](), "", 0
        for number, size in enumerate(self.sizes):
            limits_s = FINALS_S, self._share_s(1.0, len(self.sizes) - number), self._request.finals_s
            budget_s = min(limit_s for limit_s in limits_s if limit_s is not None)
            with self._session(size) as session:
                session.prepare()
                tried = sorted({below + 1, max(size - 1, below + 1), size})
                champion = self._final(session, self._timed[size].get(name, ()), tried, rows, budget_s)
            if champion is None:
                return ()
            rows, below = champion.record.measurement.rows, size
            ranges.append(champion)
        libraries = [champion.baseline for champion in ranges if champion.baseline is not None]
        self._store.add([*libraries, *(champion.record for champion in ranges)])
        return tuple(ranges)

    def _session(self, size: int) -> Session:
        asked = self._request
        return Session(
            self._crew, self._store, self._at(size), asked.regime, self._study, error_limit=asked.error_limit
        )

    def _final(
        self, session: Session, records: Sequence[Record], sizes: Sequence[int], rows: str, budget_s: float
    ) -> Champion | None:
        """Times the fastest configs whose rows are of the class beside the library; the best of them."""
        proven: list[tuple[Record, CompiledConfig]] = []
        for record in {named(record): record for record in records}.values():
            code, own = self._proven(session, record, sizes, ROWS)
            if code is not None and own not in ("", VARIES) and rows in ("", own):
                rows, proven = own, [*proven, (record, code)]
            if len(proven) == FINALISTS:
                break
        measured = session.worker.finals([code for _, code in proven], budget_s) if proven else []
        timed = [
            (record, replace(measurement, rows=rows))
            for (record, _), measurement in zip(proven, measured, strict=False)
            if measurement.outcome is Outcome.MEASURED
        ]
        best = min(timed, key=lambda one: one[1].time_s or math.inf, default=None)
        return self._champion(session, *best, measured[len(proven) :]) if best else None

    def _champion(
        self, session: Session, record: Record, measurement: Measurement, libraries: Sequence[Measurement]
    ) -> Champion:
        kernel = self._kernels[record.kernel]
        own = session.of_kernel(Role.TRIAL, kernel, Config(record.config), measurement)
        library = session.of_baseline(libraries[0]) if libraries and libraries[0].samples_s else None
        speedup = compare(measurement.samples_s, library.measurement.samples_s).ratio if library else 0.0
        return Champion(own, library, speedup, "first", {})


def _time_s(record: Record) -> float:
    return record.measurement.time_s or math.inf

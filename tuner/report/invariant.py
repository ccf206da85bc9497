"""Configs for all numbers of rows that give a row the same bits: one for each range, all of one class of rows.

A study searches each of some sizes, of all if there is time. Of each class of bits that it saw, the fastest
config's rows are hashed. The configs of the best classes are timed at the other sizes, and the class is taken
whose speeds have the largest geometric mean. Its configs are proven with more rows, at sizes between, too, and
timed beside the library.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.errors import NothingFound
from tuner.report.remeasuring import MissingTime, remeasure
from tuner.report.study_view import time_of
from tuner.results.measurement import VARIES, Outcome, compare
from tuner.results.record import Champion, ProblemKey, Role, rows_study
from tuner.store import Store
from tuner.study.leaderboard import Named, named
from tuner.study.progress import Progress, Result
from tuner.study.requests import StudyRequest
from tuner.study.session import Session
from tuner.study.starting import Predictions
from tuner.study.study import open_study
from tuner.workers.bench import CompiledConfig, ShapeCase
from tuner.workers.device_worker import Crew

#: Rows that are hashed in the search, and for the proof: primes, so that a row stands at every place of a tile.
FEW_ROWS, ROWS = 37, 1009
#: Classes of rows that are timed at all sizes, so many configs of others each; finalists of a size.
MOST_TIMED, NEAREST, FINALISTS = 4, 8, 3
#: Shares of the time until the searches end, and until the other sizes are timed. The rest is for proofs: on an
#: H200 0.5 to 1 s each, on two cores of a Xeon 5 to 12 s.
SHARES, HOST_SHARES = (0.6, 0.8), (0.4, 0.5)
#: Seconds of a searched size at the least, and on a host, or fewer are searched; of finals at the most. Below
#: gemm 4096 x 4096 x 4096 an H200 tried 10 to 78 configs of each size in 8.8 s, and 1 to 12 in 4.1 s.
LEAST_S, LEAST_HOST_S, FINALS_S = 7.0, 20.0, 5.0
#: Between powers of two from here on there are three sizes more: of more tiles, not all run at once.
WAVES = 64
#: Speed that a class is taken to have at a size where it was not timed, of the fastest.
UNTIMED = 0.5


def run_invariant(
    request: StudyRequest, store: Store, report: Callable[[Progress], None] = lambda progress: None,
    crew: Crew | None = None,
) -> Result:  # fmt: skip
    """Finds the configs and stores them with their class.

    Args:
        request: Names the dim, `StudyRequest.invariant`; its problem has the largest size. The trials are those
            of each size.
        store: Where records go.
        report: Called a few times a second.
        crew: Open workers of the devices, if there are some.

    Returns:
        The configs, the smallest size first; the champion is that of the largest.

    Raises:
        NothingFound: No class has a config at every size.
        TunerError: As `tuner.study.study.run_study`.
    """
    with nullcontext(crew) if crew else closing(Crew(request.found)) as workers:
        workers.open()
        search = _RowSearch(request, store, workers)
        progress = search.search(report)
        search.time_elsewhere()
        for name in search.ranked():
            if ranges := search.finals(name):
                return Result(ranges[-1], progress, "every size has its config", ranges=tuple(ranges))
    raise NothingFound(
        f"no class of rows has a config for every {request.invariant} up to {search.sizes[-1]}; give more "
        "time, or a smaller size"
    )


class _RowSearch:
    """The sizes, and what was timed there by the class of rows."""

    def __init__(self, request: StudyRequest, store: Store, crew: Crew) -> None:
        # What a library's config is may differ between sizes that are hashed; a fallback is one for all rows.
        own = [kernel for kernel in request.kernels if not kernel.is_library and kernel.scope.fallback is None]
        if not own:
            names = ", ".join(kernel.name for kernel in request.kernels)
            raise NothingFound(f"name a kernel that is no library and never falls back, got {names}")
        self._kernels = {kernel.name: kernel for kernel in own}
        self._request = replace(request, kernels=tuple(self._kernels.values()))
        self._store, self._crew, self._dim = store, crew, request.invariant
        self._device, self._begun_s = crew.devices[0].info, time.monotonic()
        key, top = ProblemKey.of(request.problem), request.problem.dims[self._dim]
        self._study = rows_study(key, self._device.name, request.regime, self._dim)
        self._seconds = math.inf if request.seconds is None else request.seconds
        is_host = kind_of(self._device.kind).is_host
        self._least_s, self._shares = (LEAST_HOST_S, HOST_SHARES) if is_host else (LEAST_S, SHARES)
        self.sizes = _sizes(top)
        #: Size -> time in seconds, class of rows and config; the fastest first.
        self._timed = collections.defaultdict[int, list[tuple[float, str, Named]]](list)
        self._class_of: dict[tuple[int, str], str] = {}

    def _at(self, size: int) -> Problem:
        return self._request.problem.at({**self._request.problem.dims, self._dim: size})

    def _share_s(self, until: float, parts: int) -> float:
        """Seconds for one of equal parts of what is left until a share of the time."""
        return max(self._begun_s + until * self._seconds - time.monotonic(), 0.0) / parts

    def search(self, report: Callable[[Progress], None]) -> Progress:
        """Runs a study of each size that there is time for, the largest first; returns the last's progress."""
        searched = _spread(self.sizes, self._seconds / self._least_s)
        for number, size in enumerate(searched):
            share_s = self._share_s(self._shares[0], len(searched) - number)
            if number and share_s < self._shares[0] * self._least_s / 2:
                break
            seconds = share_s if math.isfinite(share_s) else None
            asked = replace(self._request, problem=self._at(size), seconds=seconds, finals_s=0.0, invariant="")
            with open_study(asked, self._store, report, self._crew) as study:
                study.search()
                self._classify(study.session)
        return study.progress

    def time_elsewhere(self) -> None:
        """Times the configs of the best classes at the other sizes, and what a model predicts there."""
        best, place = self.ranked()[:MOST_TIMED], (self._request.regime, self._study)
        for number, size in enumerate(self.sizes):
            problem, timed = self._at(size), self._timed[size]
            known, best_s = {one for _, _, one in timed}, timed[0][0] if timed else None
            predicted = Predictions(problem, self._request.kernels, self._device, place[0], self._store).starts
            near = ([one for one in self._known(size, name) if one not in known][:NEAREST] for name in best)
            missing = [
                MissingTime(problem, self._kernels[kernel], config, best_s)
                for kernel, config in dict.fromkeys([*predicted, *itertools.chain(*near)])
                if (kernel, config) not in known and self._kernels[kernel].allows(problem, self._device, config)
            ]
            until_s = time.monotonic() + self._share_s(self._shares[1], len(self.sizes) - number)
            remeasure(self._store, self._crew, missing, *place, until_s, after=self._classify)

    def ranked(self) -> list[str]:
        """Classes by the geometric mean of their times, the fastest first."""

        def cost(name: str) -> float:
            at_all = filter(None, self._timed.values())
            times_s = (next((s for s, own, _ in at if own == name), at[0][0] / UNTIMED) for at in at_all)
            return sum(map(math.log, times_s))

        return sorted({own for timed in self._timed.values() for _, own, _ in timed}, key=cost)

    def _classify(self, session: Session) -> None:
        """Sorts what was timed at a size by the class of its rows, which is one for all of a class of bits."""
        session.pool.cancel()  # or what a search left would be taken for what is hashed
        size, trials = session.problem.dims[self._dim], session.records(Role.TRIAL, self._kernels)
        measured = [(one, one.measurement) for one in trials if not one.measurement.outcome.failed]
        timed = self._timed[size] = []
        for record in sorted((one for one, its in measured if its.bits and its.time_s), key=time_of):
            at = size, record.measurement.bits
            if at not in self._class_of:
                self._class_of[at] = self._proven(session, named(record), [size], FEW_ROWS)[1]
            if own := self._class_of[at]:
                timed.append((time_of(record), own, named(record)))

    def _proven(
        self, session: Session, one: Named, sizes: Sequence[int], count: int
    ) -> tuple[CompiledConfig | None, str]:
        """A config's code, and the class of its rows; empty if it is not right and one at all sizes."""
        kernel, config, problems = self._kernels[one[0]], one[1], [*map(self._at, sizes)]
        code = session.pool.compile_all({0: render(kernel, session.problem, config)}).get(0)
        if code is None or not all(kernel.allows(problem, session.device, config) for problem in problems):
            return None, ""
        rendered = [render(kernel, problem, config) for problem in problems]
        if {own.text for own in rendered} != {code.rendered.text}:
            return None, ""
        cases = [ShapeCase(session.named(at), own.launch) for at, own in zip(problems, rendered, strict=True)]
        classes = {session.worker.class_of_rows(code, case, self._dim, count) for case in cases}
        if len(classes) > 1 or classes & {"", VARIES} or (cases[1:] and session.worker.verify(code, cases)):
            return None, ""
        return code, classes.pop()

    def finals(self, name: str) -> list[Champion]:
        """Proves and times a class at each size, and stores it; nothing if it cannot be had at one of them.

        Where sizes take longer than their share, only every second is taken, say: what is left out belongs to
        the range of the next one.
        """
        ranges, rows, below, asked, due = list[Champion](), "", 0, self._request, 0.0
        for number, size in enumerate(self.sizes):
            begun_s, left = time.monotonic(), len(self.sizes) - number
            if left > 1 and number < due:
                continue
            until_s = begun_s + min(self._share_s(1.0, left), asked.finals_s or FINALS_S, FINALS_S)
            place = self._crew, self._store, self._at(size), asked.regime, self._study
            with Session(*place, error_limit=asked.error_limit) as session:
                session.prepare()
                tried = sorted({below + 1, max(size - 1, below + 1), size})
                champion = self._final(session, self._known(size, name), tried, rows, until_s)
            if champion is None:
                return []
            rows, below, ranges = champion.record.measurement.rows, size, [*ranges, champion]
            took_s, share_s = time.monotonic() - begun_s, self._share_s(1.0, left)
            due = number + (took_s / share_s if share_s else math.inf)
        self._store.add([one for own in ranges for one in (own.baseline, own.record) if one is not None])
        return ranges

    def _known(self, size: int, name: str) -> list[Named]:
        """The fastest configs of a class at each size, the nearest size first."""
        near = sorted(self.sizes, key=lambda other: abs(math.log(other / size)))
        fast = ([one for _, own, one in self._timed[other] if own == name][:FINALISTS] for other in near)
        return list(dict.fromkeys(itertools.chain(*fast)))

    def _final(
        self, session: Session, known: Iterable[Named], sizes: Sequence[int], rows: str, until_s: float
    ) -> Champion | None:
        """Times the fastest configs whose rows are of the class beside the library; the best of them."""
        proven: dict[Named, CompiledConfig] = {}
        for one in known:
            code, own = self._proven(session, one, sizes, ROWS)
            if code is not None and rows in ("", own):
                rows, proven[one] = own, code
            if len(proven) == FINALISTS or (proven and time.monotonic() > until_s):
                break
        left_s = max(until_s - time.monotonic(), 0.0)
        measured = session.worker.finals([*proven.values()], left_s) if proven else []
        libraries = (session.of_baseline(one) for one in measured[len(proven) :] if one.samples_s)
        finals = [
            session.of_kernel(Role.TRIAL, self._kernels[kernel], config, replace(its, rows=rows))
            for (kernel, config), its in zip(proven, measured, strict=False)
            if its.outcome is Outcome.MEASURED
        ]
        if not finals:
            return None
        best, library = min(finals, key=time_of), next(libraries, None)
        ours_s, theirs_s = best.measurement.samples_s, library.measurement.samples_s if library else ()
        return Champion(best, library, compare(ours_s, theirs_s).ratio if theirs_s else 0.0, "first", {})


def _sizes(top: int) -> list[int]:
    """Powers of two up to a size, that size, and some between."""
    powers = [1 << power for power in range((top - 1).bit_length())]
    between = {power * parts // 4 for power in powers if power >= WAVES for parts in (5, 6, 7)}
    return sorted({*powers, top, *(size for size in between if size < top)})


def _spread(sizes: Sequence[int], most: float) -> list[int]:
    """So many of some sizes, evenly spaced; the largest first."""
    last = len(sizes) - 1
    steps = int(min(max(most - 1, 0), last))
    return [sizes[last - round(step * last / max(steps, 1))] for step in range(steps + 1)]

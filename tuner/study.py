"""A study: a budgeted search made of trials, then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType

from threadpoolctl import threadpool_limits

from tuner.ask_ahead import AskAhead
from tuner.compiling import CompilePool
from tuner.coronation import Coronation
from tuner.devices.detect import with_best_blas
from tuner.errors import Interrupted
from tuner.execution import Executor
from tuner.finals import Pair
from tuner.preparation import (
    check_fits,
    check_regime,
    key_of,
    legal_spaces,
    past_trials,
    starting_points,
    study_name,
    trials_elsewhere,
)
from tuner.progress import Progress, Request, Result
from tuner.record import Champion, Record
from tuner.scribe import Scribe
from tuner.search import Observation, Search
from tuner.search_loop import SearchLoop, Standings, take_in
from tuner.space import Config
from tuner.stopwatch import Stopwatch
from tuner.store import Store

INTERRUPTED = "interrupted; every finished trial is kept, and the same command continues"


class Study:
    """One run of a study; `run` does it all."""

    def __init__(
        self, request: Request, store: Store, report: Callable[[Progress], None] = lambda progress: None
    ) -> None:
        """Prepares a run.

        Args:
            request: What to do.
            store: Where records go.
            report: Called a few times a second.
        """
        self._request, self._store = request, store
        self._kernels = {kernel.name: kernel for kernel in request.kernels}
        self._watch = Stopwatch(request.seconds, report)
        self._standings = Standings()
        self._executors: list[Executor] = []
        self._loop: SearchLoop | None = None

    @property
    def progress(self) -> Progress:
        """How it stands."""
        return self._watch.progress

    def run(self) -> Result:
        """Searches until the budget is out or nothing is left to try, then plays the finals.

        Raises:
            NothingFound: No config is legal; the message says how many each constraint rejects.
            InputError: The problem does not fit into the device's memory.
            DeviceTrouble: A device cannot be opened or stays unwell; finished trials are kept.
            Interrupted: SIGINT or SIGTERM came; finished trials are kept.
        """
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            # The search's matrices are small: more threads would only fight the compile workers for cores.
            stack.enter_context(threadpool_limits(1, "blas"))
            self._watch.tick("opening")
            with self._watch.spent("opening"):
                loop = self._open(stack)
            self._watch.tick("searching")
            self._loop = loop
            loop.run(self._kernels, self._request.trials)
            self._loop = None
            if loop.stop == INTERRUPTED:
                raise Interrupted(INTERRUPTED)
            champion, pairs = self._finals(loop)
        self._watch.tick("done")
        return Result(champion, self.progress, loop.stop, pairs)

    def _finals(self, loop: SearchLoop) -> tuple[Champion | None, tuple[Pair, ...]]:
        """Plays the finals. Meanwhile the search writes its last trials, but not beside timing on a CPU."""
        self._watch.tick("finals")
        closing = threading.Thread(target=loop.search.close, name="closing")
        if not loop.shares_cores:
            closing.start()
        coronation = Coronation(self._scribe, self._kernels, self._pool, self._executors[0])
        with self._watch.spent("finals"):
            champion = coronation.play(self._standings, self.progress.totals, self._watch.finals_s)
        if loop.shares_cores:
            closing.start()
        closing.join()
        return champion, coronation.pairs

    def _open(self, stack: ExitStack) -> SearchLoop:
        request, problem = self._request, self._request.problem
        check_regime(request.regime, request.found[0].target)
        for found in request.found:
            self._executors.append(Executor(found))
            stack.callback(self._executors[-1].close)
        for executor in self._executors:
            executor.open()
            check_fits(problem, executor.free_bytes, executor.info)
        first = self._executors[0]
        name = study_name(key_of(problem), first.info, request.regime, request.kernels)
        self._scribe = Scribe(self._store, problem, first.info, request.regime, first.versions, name)
        named = {**problem.to_json(), "origin": self._scribe.origin}
        self._pool = CompilePool(request.found[0].opening, first.info.architecture, named)
        stack.callback(self._pool.close)
        spaces = legal_spaces(request.kernels, problem, first.info)
        for executor in self._executors:
            executor.prepare(named, request.regime)
        self._baseline()
        search = AskAhead(self._search(spaces, name), inline=first.info.kind == "cpu")
        stack.callback(search.close)
        scribes = [replace(self._scribe, device=executor.info) for executor in self._executors]
        return SearchLoop(search, self._pool, self._executors, scribes, self._standings, self._watch)

    def _search(self, spaces: dict, name: str) -> Search:  # type: ignore[type-arg]
        request, info = self._request, self._executors[0].info
        key = key_of(request.problem)
        elsewhere = trials_elsewhere(self._store, request.kernels, key, info, request.regime)
        return Search(
            spaces, sampler=request.sampler, seed=request.seed, study_name=name,
            storage_url=request.storage_url, past=self._past(), budget=request.trials,
            starts=starting_points(self._store, request.kernels, key, info),
            elsewhere=[_observed(record) for record in elsewhere],
        )  # fmt: skip

    def _baseline(self) -> None:
        with self._watch.spent("baseline"):
            measurement = self._executors[0].baseline()
        if measurement is not None:
            self.progress.baseline_s = measurement.time_s
            self._store.add(self._scribe.of_baseline(measurement))
            self._best_blas_baseline()

    def _best_blas_baseline(self) -> None:
        """NumPy with the core type that suits this CPU, in a process of its own, where it chose another."""
        scribe = self._scribe
        found = with_best_blas(self._request.found[0], scribe.versions.get("blas_core_type", ""))
        if found is None:
            return
        executor = Executor(found)
        try:
            executor.open()
            executor.prepare({**scribe.problem.to_json(), "origin": scribe.origin}, scribe.regime)
            measurement = executor.baseline()
        finally:
            executor.close()
        if measurement is not None and measurement.time_s is not None:
            core = executor.versions.get("blas_core_type", "")
            self.progress.best_blas = (core, measurement.time_s)
            self._store.add(replace(scribe, versions=executor.versions).of_baseline(measurement))

    def _past(self) -> list[Observation]:
        """Trials of this study from before that still count: of the same sources, compiler and driver."""
        scribe, past = self._scribe, []
        for record in past_trials(
            self._store, key_of(scribe.problem), scribe.device, scribe.regime, scribe.versions
        ):
            kernel, found = self._kernels.get(record.kernel), record.measurement
            if kernel is None or kernel.source_hash != record.source_hash or record.origin != scribe.origin:
                continue
            take_in(kernel.name, Config(record.config), found, self.progress, self._standings)
            past.append(_observed(record))
        return past

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the search in order, the second at once."""

        def interrupted(number: int, frame: FrameType | None) -> None:
            if self._loop is None or self._loop.stop == INTERRUPTED:
                raise Interrupted(INTERRUPTED)
            self._loop.stop = INTERRUPTED

        before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _observed(record: Record) -> Observation:
    found = record.measurement
    return Observation(record.kernel, Config(record.config), found.outcome, found.time_s)

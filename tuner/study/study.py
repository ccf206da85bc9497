"""A study: a budgeted search made of trials, then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType, TracebackType

from threadpoolctl import threadpool_limits

from tuner.declare.space import Config, Space
from tuner.devices.detect import with_best_blas
from tuner.devices.machine_load import MachineWatch
from tuner.errors import Interrupted
from tuner.results.error_limit import ErrorLimit
from tuner.results.measurement import Error, Measurement, under
from tuner.results.objectives import Front
from tuner.results.record import Champion, Record, Role, measured_as_now
from tuner.search import Known, Observation, Search, SearchOptions
from tuner.search.background import AskAhead
from tuner.store import Store
from tuner.study.budget import TimeBudget
from tuner.study.elimination import Elimination
from tuner.study.finals import Finals
from tuner.study.fronts import found_wrong, front_of
from tuner.study.leaderboard import Leaderboard, add_trial
from tuner.study.loop import SearchLoop
from tuner.study.progress import Progress, Request, Result
from tuner.study.recorder import Recorder
from tuner.study.resume import judged_records, observed, rightly_judged, stopped_hastily, that_count
from tuner.study.setup import (
    check_energy,
    check_fits,
    check_power,
    check_regime,
    key_of,
    legal_spaces,
    past_records,
    starting_points,
    study_name,
    trials_elsewhere,
)
from tuner.workers.compile_pool import CompilePool
from tuner.workers.device_worker import DeviceWorker

INTERRUPTED = "interrupted; every finished trial is kept, and the same command continues"


class Study:
    """One run of a study; `run` does it all.

    In parts, as a night does it: ``with Study(...) as study``, inside it `search` any number of times and
    `finals` once.
    """

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
        self._budget = TimeBudget(request.seconds, report, request.finals_s)
        self._leaderboard = Leaderboard(request.objectives)
        self._workers: list[DeviceWorker] = []
        self._stack = ExitStack()
        self._library = request.library
        self._before: dict[tuple[str, Config], Measurement] = {}
        self._searching = False

    @property
    def progress(self) -> Progress:
        """How it stands."""
        return self._budget.progress

    @property
    def library(self) -> Measurement | None:
        """The library before the search; None without one."""
        return self._library

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search gets on; None before anything was measured."""
        return self._leaderboard.objective_value

    def run(self) -> Result:
        """Searches until the budget is out or nothing is left to try, then plays the finals.

        Raises:
            NothingFound: No config is legal; the message says how many each constraint rejects.
            InputError: The problem does not fit into the device's memory, or it cannot tell an objective.
            DeviceTrouble: A device cannot be opened or stays unwell; finished trials are kept.
            Interrupted: SIGINT or SIGTERM came; finished trials are kept.
        """
        with self:
            self.search()
            return self.finals()

    def __enter__(self) -> Study:
        """Opens devices, spaces and the search; raises what `run` does."""
        try:
            self._stack.enter_context(self._signals())
            # The search's matrices are small: more threads would only fight the compile workers for cores.
            self._stack.enter_context(threadpool_limits(1, "blas"))
            self._budget.tick("opening")
            self._machine = MachineWatch(self._request.found)
            with self._budget.spent("opening"):
                self._loop = self._open(self._stack)
            self.progress.busy = self._machine.told()
            self._machine.restart()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all processes; what was measured is stored."""
        self._stack.close()

    def search(self, seconds: float | None = None) -> str:
        """Searches.

        Args:
            seconds: After so many it pauses; None to go on until the search ends.

        Returns:
            Why the search ended; empty where it can go on.

        Raises:
            DeviceTrouble: A device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        self._budget.tick("searching")
        self._searching = True
        try:
            self._loop.run(self._kernels, self._request.trials, seconds)
        finally:
            self._searching = False
        if self._loop.stop == INTERRUPTED:
            raise Interrupted(INTERRUPTED)
        return self._loop.stop

    def finals(self) -> Result:
        """Plays the finals. Meanwhile the search writes its last trials, but not beside timing on a CPU.

        Raises:
            DeviceTrouble: The device does not survive them.
            Interrupted: SIGINT or SIGTERM came.
        """
        self.progress.busy = self._machine.told() or self.progress.busy
        self._budget.tick("finals")
        loop = self._loop
        closing = threading.Thread(target=loop.search.close, name="closing")
        if not loop.shares_cores:
            closing.start()
        finals = Finals(self._recorder, self._kernels, self._pool, self._workers[0], self._machine)
        with self._budget.spent("finals"):
            champion = finals.play(self._leaderboard, self.progress.totals, self._budget.finals_s)
        if loop.shares_cores:
            closing.start()
        closing.join()
        self._budget.tick("done")
        return Result(champion, self.progress, loop.stop, finals.pairs, self._front(champion), finals.unplayed)

    def _front(self, champion: Champion | None) -> Front | None:
        """None with one objective."""
        if len(self._request.objectives) == 1:
            return None
        library = None
        if self._library is not None:
            library = self._recorder.of_baseline(self._library).kernel, self._library
        wrong = found_wrong(self._records(Role.FINAL))
        return front_of(self._leaderboard, wrong, champion, library, self._recorder.work)

    def _open(self, stack: ExitStack) -> SearchLoop:
        request, problem = self._request, self._request.problem
        check_regime(request.regime, request.found[0].target)
        check_power(request.objectives, request.found[0])
        for kernel in request.kernels:
            kernel.check_entry()
        for found in request.found:
            self._workers.append(DeviceWorker(found))
            stack.callback(self._workers[-1].close)
        for worker in self._workers:
            worker.open()
            check_fits(problem, worker.free_bytes, worker.info)
        first = self._workers[0]
        name = study_name(
            key_of(problem), first.info, request.regime, request.kernels, request.objectives,
            request.error_limit,
        )  # fmt: skip
        self._recorder = Recorder(self._store, problem, first.info, request.regime, first.versions, name)
        named = {**problem.to_json(), "origin": self._recorder.origin}
        self._pool = CompilePool(
            request.found[0].opening, first.info.architecture, named, devices=len(request.found)
        )
        stack.callback(self._pool.close)
        spaces = legal_spaces(request.kernels, problem, first.info)
        for worker in self._workers:
            worker.prepare(named, request.regime, "energy" in request.objectives, request.error_limit)
        self._baseline()
        search = AskAhead(self._search(spaces, name), inline=first.info.kind == "cpu")
        stack.callback(search.close)
        recorders = [replace(self._recorder, device=worker.info) for worker in self._workers]
        budget, leaderboard, elimination = self._budget, self._leaderboard, self._elimination(spaces)
        return SearchLoop(search, self._pool, self._workers, recorders, leaderboard, budget, elimination)

    def _elimination(self, spaces: Mapping[str, Space]) -> Elimination | None:
        """None where nothing is to be dropped: all configs are asked for, or slow ones may save energy."""
        request = self._request
        if not request.drop or request.sampler == "bruteforce" or len(request.objectives) > 1:
            return None
        info = self._workers[0].info
        counts = {
            name: sum(config in spaces[name] for config in kernel.first_configs())
            for name, kernel in self._kernels.items()
            if name in spaces
        }
        elimination = Elimination(counts, info.cores if info.kind == "cpu" else 1)
        for (kernel, config), measurement in self._before.items():
            elimination.take(kernel, config, measurement)
        return elimination

    def _search(self, spaces: dict, name: str) -> Search:  # type: ignore[type-arg]
        request, info = self._request, self._workers[0].info
        key = key_of(request.problem)
        elsewhere = trials_elsewhere(self._store, request.kernels, key, info, request.regime)
        past, again = self._past()
        options = SearchOptions(
            request.seed, name, request.sampler, request.trials, request.objectives, request.storage_url
        )
        known = Known(
            starts=[*again, *starting_points(self._store, request.kernels, key, info)],
            past=past,
            elsewhere=[observed(record) for record in judged_records(elsewhere, self._limit(None))],
        )
        return Search(spaces, options, known)

    def _baseline(self) -> None:
        known = self._library
        if known is None:
            with self._budget.spent("baseline"):
                self._library = self._workers[0].baseline()
        if self._library is not None:
            check_energy(self._request.objectives, self._recorder.device, self._library)
            self.progress.baseline_s = self._library.time_s
            if known is None:
                (seen,) = under(self._machine.load().seen, [self._library])
                self._store.add(self._recorder.of_baseline(seen))
                self._best_blas_baseline()

    def _best_blas_baseline(self) -> None:
        """NumPy with the core type that suits this CPU, in a process of its own, where it chose another."""
        recorder = self._recorder
        found = with_best_blas(self._request.found[0], recorder.versions.get("blas_core_type", ""))
        if found is None:
            return
        worker = DeviceWorker(found)
        try:
            worker.open()
            worker.prepare({**recorder.problem.to_json(), "origin": recorder.origin}, recorder.regime)
            measurement = worker.baseline()
        finally:
            worker.close()
        if measurement is not None and measurement.time_s is not None:
            core = worker.versions.get("blas_core_type", "")
            self.progress.best_blas = (core, measurement.time_s)
            self._store.add(replace(recorder, versions=worker.versions).of_baseline(measurement))

    def _past(self) -> tuple[list[Observation], list[tuple[str, Config]]]:
        """Trials of this study from before that still count, and what of them is to be measured anew first.

        They are of the same sources, compiler and driver. Their errors are judged by this study's limit.
        """
        objectives = self._request.objectives
        library = self._library.error if self._library is not None else None
        found = that_count(judged_records(self._records(Role.TRIAL), self._limit(library)), objectives)
        found, again = rightly_judged(found, self._records(Role.FINAL))
        hastily = stopped_hastily(found)
        for each in hastily:
            del found[each]
        for (kernel, config), record in found.items():
            add_trial(kernel, config, record.measurement, self.progress, self._leaderboard)
        self._before = {key: record.measurement for key, record in found.items()}
        return [observed(record, objectives) for record in found.values()], [*again, *hastily]

    def _limit(self, library: Error | None) -> ErrorLimit | None:
        factor = self._request.error_limit
        return None if factor is None else ErrorLimit.beside(factor, library, self._request.problem)

    def _records(self, role: Role) -> list[Record]:
        """What is stored of the problem here and of the competitors as they are now."""
        recorder = self._recorder
        known = past_records(
            self._store, key_of(recorder.problem), recorder.device, recorder.regime, recorder.versions, role
        )
        return [
            record
            for record in known
            if (kernel := self._kernels.get(record.kernel)) is not None
            and record.origin == recorder.origin
            and measured_as_now(record, kernel, recorder.problem)
        ]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the search in order, the second at once.

        In another thread than the main one signals stay the program's own: Python lets no other set them.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupted(number: int, frame: FrameType | None) -> None:
            if not self._searching or self._loop.stop == INTERRUPTED:
                raise Interrupted(INTERRUPTED)
            self._loop.stop = INTERRUPTED

        before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

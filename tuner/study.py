"""A study: ask, compile ahead, measure, tell, record, within a budget; then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

from __future__ import annotations

import collections
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from tuner.compiling import Compiled, CompilePool, ruled_out
from tuner.coronation import Coronation
from tuner.errors import Interrupted
from tuner.execution import Executor
from tuner.kernel import render
from tuner.measure import Contestant
from tuner.measurement import Measurement, Outcome
from tuner.preparation import check_fits, key_of, legal_spaces, past_trials, starting_points, study_name
from tuner.progress import Progress, Request, Result
from tuner.record import Champion, Role
from tuner.scribe import Scribe
from tuner.search import Candidate, Observation, Search
from tuner.space import Config
from tuner.store import Store

#: Share of the budget kept for the finals, and its bounds in seconds.
FINALS_SHARE, FINALS_LEAST_S, FINALS_MOST_S = 0.10, 1.0, 20.0
INTERRUPTED = "interrupted; every finished trial is kept, and the same command continues"
#: Configs asked for in one call.
ASKED_AT_ONCE = 4
#: Compiled configs kept for the finals, at the most.
KEPT = 32
#: Seconds between two reports of progress.
REPORT_EVERY_S = 0.2


@dataclass
class _Trial:
    candidate: Candidate
    crashes: int = 0
    contestant: Contestant | None = None


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
        self._request, self._store, self._report = request, store, report
        self._kernels = {kernel.name: kernel for kernel in request.kernels}
        self._start_s = time.monotonic()
        self._stop = ""
        self._reported_s = 0.0
        self.progress = Progress()
        self._trials: dict[int, _Trial] = {}
        self._compiled: collections.deque[_Trial] = collections.deque()
        self._measuring: _Trial | None = None
        self._seen: dict[tuple[str, Any], Measurement] = {}
        self._standings: dict[tuple[str, Config], float] = {}
        self._contestants: dict[tuple[str, Config], Contestant] = {}

    def run(self) -> Result:
        """Searches until the budget is out or nothing is left to try, then plays the finals.

        Raises:
            NothingFound: No config is legal; the message says how many each constraint rejects.
            InputError: The problem does not fit into the device's memory.
            DeviceTrouble: The device cannot be opened or stays unwell; finished trials are kept.
            Interrupted: SIGINT or SIGTERM came; finished trials are kept.
        """
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            with self._spent("opening"):
                self._open(stack)
            self._search_loop()
            if self._stop == "interrupted":
                raise Interrupted(INTERRUPTED)
            with self._spent("finals"):
                champion = self._finals()
        self.progress.stage = "done"
        self._tick(force=True)
        return Result(champion, self.progress, self._stop)

    # --- opening ---------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> None:
        request = self._request
        self._tick(force=True)
        self._executor = executor = Executor(request.found)
        stack.callback(executor.close)
        info = executor.info
        name = study_name(key_of(request.problem), info, request.regime, request.kernels)
        self._scribe = Scribe(self._store, request.problem, info, request.regime, executor.versions, name)
        problem = {**request.problem.to_json(), "origin": self._scribe.origin}
        self._pool = CompilePool(request.found.opening, info.architecture, problem)
        stack.callback(self._pool.close)
        check_fits(request.problem, executor.free_bytes, info)
        spaces = legal_spaces(request.kernels, request.problem, info)
        executor.prepare(problem, request.regime)
        self._baseline()
        key = key_of(request.problem)
        self._search = Search(
            spaces, sampler=request.sampler, seed=request.seed, study_name=name,
            storage_url=request.storage_url, past=self._past(), budget=request.trials,
            starts=starting_points(self._store, request.kernels, key, info),
        )  # fmt: skip
        stack.callback(self._search.close)

    def _baseline(self) -> None:
        with self._spent("baseline"):
            measurement = self._executor.baseline()
        if measurement is not None:
            self.progress.baseline_s = measurement.time_s
            self._store.add(self._scribe.of_baseline(measurement))

    def _past(self) -> list[Observation]:
        """Trials of this study from before that still count: of the same sources, compiler and driver."""
        scribe, past = self._scribe, []
        for record in past_trials(
            self._store, key_of(scribe.problem), scribe.device, scribe.regime, scribe.versions
        ):
            kernel, config, found = self._kernels.get(record.kernel), Config(record.config), record.measurement
            if kernel is None or kernel.source_hash != record.source_hash or record.origin != scribe.origin:
                continue
            self._note(kernel.name, config, found)
            past.append(Observation(kernel.name, config, found.outcome, found.time_s))
        return past

    # --- searching -------------------------------------------------------------------------------

    def _search_loop(self) -> None:
        self.progress.stage = "searching"
        while True:
            with self._spent("bookkeeping"):
                self._ask()
            if self._measuring is None and not self._compiled and not self._pool.pending:
                self._stop = self._stop or self._search.stopped or "nothing is left to try"
                return
            self._wait()
            for compiled in self._pool.ready():
                self._take_compiled(compiled)
            if self._measuring is not None and self._executor.arrived():
                self._take_measured()
            self._dispatch()
            self._tick()
            if self._out_of_budget() and self._measuring is None:
                return

    def _out_of_budget(self) -> bool:
        if not self._stop:
            left = self._left_s()
            if left is not None and left <= 0:
                self._stop = "time is up"
            elif self._request.trials is not None and self.progress.trials >= self._request.trials:
                self._stop = "all trials are done"
        return bool(self._stop)

    def _left_s(self) -> float | None:
        """Seconds left for the search: what the finals need is kept."""
        seconds = self._request.seconds
        if seconds is None:
            return None
        return seconds - self._finals_s() - (time.monotonic() - self._start_s)

    def _finals_s(self) -> float:
        seconds = self._request.seconds or FINALS_MOST_S / FINALS_SHARE
        return min(max(FINALS_SHARE * seconds, FINALS_LEAST_S), FINALS_MOST_S, seconds / 2)

    def _ask(self) -> None:
        """Keeps the compile workers busy; on a CPU only while nothing is timed, since they share its cores."""
        if self._stop or self._out_of_budget():
            return
        under_way = self._pool.pending + len(self._compiled) + (self._measuring is not None)
        wanted = 2 * self._pool.size - under_way
        if self._executor.info.kind == "cpu":
            wanted = self._pool.size if under_way == 0 else 0
        if self._request.trials is not None:
            wanted = min(wanted, self._request.trials - self.progress.trials - under_way)
        while wanted > 0 and not self._out_of_budget():
            # A few at a time: asking may take longer than the time that is left.
            candidates = self._search.ask(min(wanted, ASKED_AT_ONCE))
            for candidate in candidates:
                self._begin(candidate)
            wanted = wanted - len(candidates) if candidates else 0

    def _begin(self, candidate: Candidate) -> None:
        trial = self._trials[candidate.number] = _Trial(candidate)
        kernel = self._kernels[candidate.kernel]
        try:
            rendered = render(kernel, self._request.problem, candidate.config)
        except Exception as error:
            reason = f"cannot be rendered: {type(error).__name__}: {error}"
            self._finish(trial, Measurement(Outcome.INVALID, reason))
            return
        self._pool.submit(candidate.number, rendered)

    def _wait(self) -> None:
        channels: list[Any] = [*self._pool.channels]
        if self._measuring is not None:
            channels.append(self._executor.channel)
        with self._spent("waiting" if self._measuring is None else "measuring"):
            select.select(channels, [], [], REPORT_EVERY_S)

    def _take_compiled(self, compiled: Compiled) -> None:
        trial = self._trials[compiled.ticket]
        self._add_spent("compile", _compile_s(compiled))
        trial.contestant = compiled.contestant
        rejected = compiled.failure or (
            compiled.contestant and ruled_out(compiled.contestant, self._executor.info)
        )
        if rejected:
            self._finish(trial, rejected)
        else:
            self._compiled.append(trial)

    def _dispatch(self) -> None:
        """Gives the device the next compiled config."""
        shared = self._executor.info.kind == "cpu" and self._pool.pending
        while self._measuring is None and self._compiled and not self._stop and not shared:
            trial = self._compiled.popleft()
            assert trial.contestant is not None
            twin = self._seen.get(_code_key(trial.contestant))
            if twin is not None:
                self._finish(trial, replace(twin, stages_s={"compile": trial.contestant.compile_s}))
                continue
            self._executor.begin(trial.contestant, self.progress.best_s)
            self._measuring = trial

    def _take_measured(self) -> None:
        trial, self._measuring = self._measuring, None
        assert trial is not None and trial.contestant is not None
        measurement = self._executor.finish()
        if measurement.outcome is Outcome.CRASHED and not trial.crashes:
            # It may be innocent: somebody else may have killed the worker. Twice is its own fault.
            trial.crashes += 1
            self._compiled.appendleft(trial)
            return
        if measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED):
            self._seen[_code_key(trial.contestant)] = measurement
        elif measurement.compiled is None:
            measurement = replace(measurement, compiled=trial.contestant.compiled)
        for stage in ("load", "verify", "time"):
            self._add_spent(stage, measurement.stages_s.get(stage, 0.0))
        self._finish(trial, measurement)

    def _finish(self, trial: _Trial, measurement: Measurement) -> None:
        """Stores first, then tells: what is told is never lost."""
        with self._spent("bookkeeping"):
            candidate = trial.candidate
            kernel = self._kernels[candidate.kernel]
            self._store.add(self._scribe.of_kernel(Role.TRIAL, kernel, candidate.config, measurement))
            self._search.tell(candidate, measurement.outcome, measurement.time_s)
            self._note(kernel.name, candidate.config, measurement)
            self._keep(trial, measurement)
            del self._trials[candidate.number]

    def _note(self, kernel: str, config: Config, measurement: Measurement) -> None:
        self.progress.count(measurement)
        time_s = measurement.time_s
        if measurement.outcome is Outcome.MEASURED and time_s is not None:
            self._standings[kernel, config] = time_s
            if self.progress.best_s is None or time_s < self.progress.best_s:
                self.progress.best_s, self.progress.best = time_s, f"{kernel} {config}"

    def _keep(self, trial: _Trial, measurement: Measurement) -> None:
        """Keeps the machine code of what may play the finals."""
        best_s = self.progress.best_s
        if trial.contestant is None or best_s is None or measurement.outcome is not Outcome.MEASURED:
            return
        self._contestants[trial.candidate.kernel, trial.candidate.config] = trial.contestant
        if len(self._contestants) > KEPT:
            ranked = sorted(self._contestants, key=lambda each: self._standings[each])
            self._contestants = {each: self._contestants[each] for each in ranked[: KEPT // 2]}

    def _finals(self) -> Champion | None:
        self.progress.stage = "finals"
        self._tick(force=True)
        coronation = Coronation(self._scribe, self._kernels, self._pool, self._executor)
        return coronation.play(self._standings, self._contestants, self.progress.totals, self._finals_s())

    # --- bookkeeping -----------------------------------------------------------------------------

    def _add_spent(self, stage: str, seconds: float) -> None:
        self.progress.spent_s[stage] = self.progress.spent_s.get(stage, 0.0) + seconds

    @contextmanager
    def _spent(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._add_spent(stage, time.perf_counter() - start)

    def _tick(self, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self.progress.elapsed_s = now - self._start_s
            seconds = self._request.seconds
            self.progress.left_s = None if seconds is None else max(seconds - self.progress.elapsed_s, 0.0)
            self._report(self.progress)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM stops the study in order, the second at once."""

        def interrupted(number: int, frame: FrameType | None) -> None:
            at_once = self._stop == "interrupted" or self.progress.stage != "searching"
            self._stop = "interrupted"
            if at_once:
                raise Interrupted(INTERRUPTED)

        before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _code_key(contestant: Contestant) -> tuple[str, Any]:
    """Equal keys run alike: the same machine code, launched alike."""
    return contestant.compiled.binary_hash, contestant.rendered.launch


def _compile_s(compiled: Compiled) -> float:
    if compiled.contestant is not None:
        return compiled.contestant.compile_s
    return compiled.failure.stages_s.get("compile", 0.0) if compiled.failure else 0.0

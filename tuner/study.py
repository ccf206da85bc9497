"""A study: ask, compile ahead, measure, tell, record, within a budget; then the finals.

The study is the only process that writes the database, and it never touches a device: workers do.
"""

from __future__ import annotations

import collections
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import tuner
from tuner.compiling import Compiled, CompilePool
from tuner.errors import InputError, Interrupted, NothingFound
from tuner.execution import Executor
from tuner.finals import judge, shortlist
from tuner.kernel import render
from tuner.measure import Contestant
from tuner.measurement import Measurement, Outcome
from tuner.progress import Progress, Request, Result
from tuner.record import Champion, ProblemKey, Record, Role, new_id
from tuner.search import Candidate, Observation, Search
from tuner.space import Config, Space
from tuner.statistics import compare
from tuner.store import Store

#: Share of the budget kept for the finals, and its bounds in seconds.
FINALS_SHARE, FINALS_LEAST_S, FINALS_MOST_S = 0.10, 1.0, 20.0
#: A kernel that stores more than this to local memory, per thread, loses to one that does not: on an H200
#: every spilling config of a first GEMM space came last.
MAX_SPILL_BYTES = 512
#: Seconds between two reports of progress.
REPORT_EVERY_S = 0.2
#: Registers are handed out to warps in units of this many per thread (CUDA occupancy rules since 3.0).
REGISTER_UNIT = 8


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
        self.session = new_id()
        self._trials: dict[int, _Trial] = {}
        self._compiled: collections.deque[_Trial] = collections.deque()
        self._measuring: _Trial | None = None
        self._seen: dict[tuple[str, Any], Measurement] = {}
        self._standings: dict[tuple[str, Config], float] = {}

    @property
    def key(self) -> ProblemKey:
        """Names the problem in the store."""
        problem = self._request.problem
        return ProblemKey(problem.operation.name, problem.shape, problem.dtype, problem.layout)

    @property
    def name(self) -> str:
        """Name of the study in the store and in Optuna's tables."""
        return f"{self.key} on {self._executor.info.name}, {self._request.regime}"

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
                raise Interrupted("interrupted; every finished trial is kept, and the same command continues")
            with self._spent("finals"):
                champion = self._finals()
        self.progress.stage = "done"
        self._tick(force=True)
        return Result(champion, self.progress, self._stop)

    # --- opening ---------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> None:
        request = self._request
        self._tick(force=True)
        self._executor = Executor(request.found)
        stack.callback(self._executor.close)
        problem = {**request.problem.to_json(), "origin": self._origin()}
        architecture = self._executor.info.architecture
        self._pool = CompilePool(request.found.opening, architecture, problem)
        stack.callback(self._pool.close)
        self._check_memory()
        spaces = self._spaces()
        self._executor.prepare(problem, request.regime)
        self._baseline()
        past = self._past()
        self._search = Search(
            spaces, sampler=request.sampler, seed=request.seed, study_name=self.name,
            storage_url=request.storage_url, starts=self._starts(), past=past, budget=request.trials,
        )  # fmt: skip
        stack.callback(self._search.close)

    def _origin(self) -> str:
        return str(self._request.problem.operation.origin or "")

    def _check_memory(self) -> None:
        needed, free = self._request.problem.memory_bytes, self._executor.free_bytes
        if needed > free:
            raise InputError(
                f"a problem's arrays and float64 reference must fit into free memory ({free / 2**30:.3g} GiB on "
                f"{self._executor.info.name}), {self._request.problem} needs {needed / 2**30:.3g} GiB; choose "
                "smaller dims"
            )

    def _spaces(self) -> dict[str, Space]:
        problem, device = self._request.problem, self._executor.info
        spaces = {
            kernel.name: Space.build(kernel.parameters, kernel.constraints, problem, device)
            for kernel in self._request.kernels
        }
        legal = {name: space for name, space in spaces.items() if len(space)}
        if not legal:
            lines = [f"no config is legal for {problem} on {device.name}:"]
            for name, space in spaces.items():
                lines.append(f"  {name}: {space.raw_size} configs, of which")
                lines += [f"    {count} break: {sentence}" for sentence, count in space.rejected if count]
            raise NothingFound("\n".join([*lines, "relax a constraint, or choose another problem or kernel"]))
        return legal

    def _baseline(self) -> None:
        with self._spent("baseline"):
            measurement = self._executor.baseline()
        if measurement is not None:
            self.progress.baseline_s = measurement.time_s
            name = self._request.problem.operation.baselines[self._executor.info.kind].name
            self._store.add(self._record(Role.BASELINE, name, {}, "", measurement))

    def _past(self) -> list[Observation]:
        """Trials of this study from before that still count: same sources, compiler and driver."""
        versions = {name: self._executor.versions.get(name) for name in ("compiler", "driver")}
        past = []
        for record in self._store.records(problem=self.key, device=self._executor.info, role=Role.TRIAL):
            kernel = self._kernels.get(record.kernel)
            if kernel is None or record.regime != self._request.regime:
                continue
            if kernel.source_hash != record.source_hash or record.origin != self._origin():
                continue
            if any(record.versions.get(name) != version for name, version in versions.items()):
                continue
            measurement, config = record.measurement, Config(record.config)
            self._note(kernel.name, config, measurement)
            past.append(Observation(kernel.name, config, measurement.outcome, measurement.time_s))
        return past

    def _starts(self) -> list[tuple[str, Config]]:
        """Declared defaults, the reigning champion, and champions of the nearest shapes on this device."""
        starts = [
            (kernel.name, config) for kernel in self._request.kernels if (config := kernel.default_config())
        ]
        ours = self._request.problem.dims

        def distance(champion: Champion) -> float:
            theirs = champion.record.problem.dims
            return sum(abs(value - theirs[name]) / max(value, theirs[name]) for name, value in ours.items())

        known = self._store.champions(operation=self.key.operation, device=self._executor.info)
        for champion in sorted(known, key=distance)[:5]:
            starts.append((champion.record.kernel, Config(champion.record.config)))
        return starts

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
        for candidate in self._search.ask(wanted) if wanted > 0 else ():
            trial = self._trials[candidate.number] = _Trial(candidate)
            kernel = self._kernels[candidate.kernel]
            try:
                rendered = render(kernel, self._request.problem, candidate.config)
            except Exception as error:
                reason = f"cannot be rendered: {type(error).__name__}: {error}"
                self._finish(trial, Measurement(Outcome.INVALID, reason))
                continue
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
        rejected = compiled.failure or (compiled.contestant and self._rejected(compiled.contestant))
        if rejected:
            self._finish(trial, rejected)
        else:
            self._compiled.append(trial)

    def _rejected(self, contestant: Contestant) -> Measurement | None:
        """What the compiler's report rules out, before it costs time on the device."""
        report, device, launch = contestant.compiled, self._executor.info, contestant.rendered.launch
        if launch is None:
            return None
        threads = 1
        for extent in launch.block:
            threads *= extent
        registers = threads * -(-report.registers // REGISTER_UNIT) * REGISTER_UNIT
        outcome, reason = Outcome.LAUNCH_FAILED, ""
        if device.registers_per_block and registers > device.registers_per_block:
            reason = (
                f"a block has at most {device.registers_per_block} registers, {threads} threads of "
                f"{report.registers} need {registers}"
            )
        elif report.spill_bytes > MAX_SPILL_BYTES:
            outcome = Outcome.PRUNED
            reason = f"cannot win: spills {report.spill_bytes} bytes a thread"
        if not reason:
            return None
        return Measurement(outcome, reason, compiled=report, stages_s={"compile": contestant.compile_s})

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
            self._store.add(
                self._record(Role.TRIAL, kernel.name, candidate.config, kernel.source_hash, measurement)
            )
            self._search.tell(candidate, measurement.outcome, measurement.time_s)
            self._note(kernel.name, candidate.config, measurement)
            del self._trials[candidate.number]

    def _note(self, kernel: str, config: Config, measurement: Measurement) -> None:
        self.progress.count(measurement)
        time_s = measurement.time_s
        if measurement.outcome is Outcome.MEASURED and time_s is not None:
            self._standings[kernel, config] = time_s
            if self.progress.best_s is None or time_s < self.progress.best_s:
                self.progress.best_s, self.progress.best = time_s, f"{kernel} {config}"

    # --- finals ----------------------------------------------------------------------------------

    def _finals(self) -> Champion | None:
        """Measures the best and the reigning champion in alternation with the library, and crowns one."""
        self.progress.stage = "finals"
        self._tick(force=True)
        reigning = self._reigning()
        holder = (reigning.record.kernel, Config(reigning.record.config)) if reigning else None
        finalists = shortlist(self._standings, holder)
        rendered = {
            number: render(self._kernels[kernel], self._request.problem, config)
            for number, (kernel, config) in enumerate(finalists)
        }
        self._pool.cancel()
        compiled = self._pool.compile_all(rendered)
        finalists = [each for number, each in enumerate(finalists) if number in compiled]
        if not finalists:
            return None
        contestants = [compiled[number] for number in sorted(compiled)]
        *measured, last = self._executor.finals(contestants, self._finals_s())
        baseline = last if len(measured) == len(finalists) else None
        if baseline is None:
            measured.append(last)
        return self._crown(finalists, measured, baseline, reigning)

    def _crown(
        self,
        finalists: list[tuple[str, Config]],
        measured: list[Measurement],
        baseline: Measurement | None,
        reigning: Champion | None,
    ) -> Champion | None:
        records = [
            self._record(Role.FINAL, kernel, config, self._kernels[kernel].source_hash, measurement)
            for (kernel, config), measurement in zip(finalists, measured, strict=True)
        ]
        library = None
        if baseline is not None:
            name = self._request.problem.operation.baselines[self._executor.info.kind].name
            library = self._record(Role.BASELINE, name, {}, "", baseline)
        self._store.add([*records, *([library] if library else [])])
        judged = judge(measured, first_reigns=reigning is not None)
        if judged is None:
            return None
        speedup = 0.0
        if baseline is not None and baseline.samples_s:
            speedup = compare(measured[judged.winner].samples_s, baseline.samples_s).ratio
        champion = Champion(records[judged.winner], library, speedup, judged.verdict, self.progress.totals)
        self._store.crown(champion)
        return champion

    def _reigning(self) -> Champion | None:
        """The champion before this run, where its kernel competes and is still what it was."""
        champion = self._store.champion(self.key, self._executor.info, self._request.regime)
        if champion is None:
            return None
        kernel = self._kernels.get(champion.record.kernel)
        if kernel is None or kernel.source_hash != champion.record.source_hash:
            return None
        return champion

    # --- bookkeeping -----------------------------------------------------------------------------

    def _record(
        self, role: Role, kernel: str, config: Mapping[str, Any], source_hash: str, measurement: Measurement
    ) -> Record:
        work = self._request.problem.work
        return Record(
            problem=self.key, device=self._executor.info, regime=self._request.regime, role=role, kernel=kernel,
            config=dict(config), source_hash=source_hash, measurement=measurement,
            work={"flops": work.flops, "bytes": work.bytes},
            versions={"tuner": tuner.__version__, **self._executor.versions},
            study=self.name, session=self.session, origin=self._origin(),
        )  # fmt: skip

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
            if self._stop == "interrupted":
                raise Interrupted("interrupted twice; every finished trial is kept")
            self._stop = "interrupted"

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

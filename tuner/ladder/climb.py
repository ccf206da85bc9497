"""Climbs a ladder: each step tuned briefly or taken as declared, then all of them timed in alternation."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from threadpoolctl import threadpool_limits

from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound
from tuner.ladder.limits import further_library, measure_limits
from tuner.ladder.rungs import Ladder, Library, Rung, SweepPoint
from tuner.ladder.spaces import declared_config, first_configs, pinned_space
from tuner.ladder.steps import LadderPlan, Step, Sweep, with_layout
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role, utc_now
from tuner.search import Known, Search, SearchOptions
from tuner.search.background import AskAhead
from tuner.store import Store
from tuner.study.budget import FINALS_LEAST_S, FINALS_MOST_S, FINALS_SHARE, TimeBudget
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.recorder import Recorder
from tuner.study.setup import check_fits
from tuner.workers.compile_pool import CompilePool, ruled_out
from tuner.workers.device_worker import DeviceWorker

#: Seconds for the alternation of a problem's rungs beyond its least number of rounds.
FINALS_S = 15.0
#: Seconds that one config may take, however slow a first step is.
LIMIT_S = 560.0


@dataclass(frozen=True)
class Request:
    """What to climb, and how.

    Attributes:
        plan: The steps.
        found: Where.
        regime: How time is taken.
        seconds: For tuning each step; None takes the declared configs.
        end_to_end: True to time allocation and copies too.
        limits: True to measure the device's limits.
        seed: Of the searches.
    """

    plan: LadderPlan
    found: DetectedDevice
    regime: str = "cold"
    seconds: float | None = 10.0
    end_to_end: bool = False
    limits: bool = True
    seed: int = 0


@dataclass
class _Try:
    """A rung before the finals."""

    step: Step
    config: Config
    measurement: Measurement
    compiled_config: CompiledConfig | None = None
    trials: int = 1


class Climb:
    """One climb; `run` does it all."""

    def __init__(
        self, request: Request, store: Store, report: Callable[[str], None] = lambda text: None
    ) -> None:
        """Prepares a climb.

        Args:
            request: What to do.
            store: Where the trials go; no champion is crowned.
            report: Is told what comes next, in words.
        """
        self._request, self._store, self._report = request, store, report

    def run(self) -> Ladder:
        """Measures every step of every problem, the sweeps and the limits.

        Raises:
            InputError: A problem does not fit into the device's memory, or a layout is unknown.
            NothingFound: No step has a legal config.
            DeviceTrouble: The device cannot be opened or stays unwell.
        """
        request = self._request
        with ExitStack() as stack:
            # The search's matrices are small.
            stack.enter_context(threadpool_limits(1, "blas"))
            self._worker = DeviceWorker(request.found)
            stack.callback(lambda: self._worker.close())
            self._worker.open()
            info = self._worker.info
            ladder = Ladder(request.plan, info, self._worker.versions, request.regime)
            ladder.measured_at = utc_now()
            for problem in request.plan.problems:
                grouped: dict[str, list[Step]] = {}
                for step in request.plan.steps:
                    grouped.setdefault(step.layout or problem.layout, []).append(step)
                for layout, steps in grouped.items():
                    self._climb(ladder, with_layout(problem, layout), steps)
            if request.plan.steps and not ladder.rungs:
                raise NothingFound(
                    f"no step of the ladder has a legal config on {info.name}; choose another shape"
                )
            ladder.rungs = _in_order(ladder.rungs, request.plan)
            for sweep in request.plan.sweeps:
                self._sweep(ladder, sweep)
            if request.limits:
                self._report("the device's limits")
                dtype = request.plan.problems[0].dtype
                ladder.limits = measure_limits(request.found, self._worker, dtype, self._measured)
        return ladder

    def _prepared(self, problem: Problem) -> dict[str, Any]:
        check_fits(problem, self._worker.free_bytes, self._worker.info)
        named = {**problem.to_json(), "origin": str(problem.operation.origin or "")}
        self._worker.prepare(named, self._request.regime)
        return named

    def _pool(self, named: Mapping[str, Any]) -> CompilePool:
        return CompilePool(self._request.found.opening, self._worker.info.architecture, named)

    def _climb(self, ladder: Ladder, problem: Problem, steps: Sequence[Step]) -> None:
        named = self._prepared(problem)
        self._report(f"{problem}: the library")
        baseline = self._worker.baseline()
        recorder = Recorder(
            self._store,
            problem,
            ladder.device,
            self._request.regime,
            self._worker.versions,
            f"ladder {problem}",
        )
        if baseline is not None:
            self._store.add(recorder.of_baseline(baseline))
        pool = self._pool(named)
        try:
            tries = []
            for number, step in enumerate(steps, 1):
                self._report(f"{problem}: step {number} of {len(steps)}, {step.label}")
                tried = self._try(step, problem, recorder, pool)
                tries += [tried] if tried is not None else []
        finally:
            pool.close()
        self._report(f"{problem}: all steps in alternation")
        self._finals(ladder, problem, tries, baseline, recorder)
        if self._request.end_to_end:
            ladder.transfers_s[problem] = self._worker.transfers_s()
        further = further_library(problem, ladder.device.kind)
        if further is not None:
            name, data = further
            self._worker.prepare(data, self._request.regime)
            measured = self._worker.baseline()
            if measured is not None:
                ladder.libraries.append(Library(name, problem, measured, main=False))

    def _try(self, step: Step, problem: Problem, recorder: Recorder, pool: CompilePool) -> _Try | None:
        """The step with its best or declared config; None where none is legal."""
        space = pinned_space(step.kernel, step.pins, problem, recorder.device)
        if not len(space):
            return None
        if self._request.seconds is not None and len(space) > 1:
            tuned = self._tuned(step, space, recorder, pool)
            if tuned is not None:
                return tuned
        config = declared_config(step.kernel, step.pins, space)
        compiled_config, measurement = self._compiled_and_measured(step.kernel, problem, config, pool)
        recorder.store.add(recorder.of_kernel(Role.TRIAL, step.kernel, config, measurement))
        return _Try(step, config, measurement, compiled_config)

    def _tuned(self, step: Step, space: Space, recorder: Recorder, pool: CompilePool) -> _Try | None:
        kernel = step.kernel
        starts = [(kernel.name, config) for config in first_configs(kernel, step.pins, space)]
        search = AskAhead(
            Search(
                {kernel.name: space}, SearchOptions(self._request.seed, recorder.study), Known(starts=starts)
            ),
            inline=recorder.device.kind == "cpu",
        )
        leaderboard, budget = (
            Leaderboard(),
            TimeBudget(_with_finals(self._request.seconds), lambda progress: None),
        )
        try:
            SearchLoop(search, pool, [self._worker], [recorder], leaderboard, budget).run(
                {kernel.name: kernel}, None
            )
        finally:
            search.close()
            pool.cancel()
        known = [each for each in leaderboard.times_s if each in leaderboard.compiled_configs]
        if not known:
            return None
        best = min(known, key=lambda each: leaderboard.times_s[each])
        measured = Measurement(Outcome.MEASURED, samples_s=(leaderboard.times_s[best],))
        return _Try(step, best[1], measured, leaderboard.compiled_configs[best], budget.progress.trials)

    def _compiled_and_measured(
        self, kernel: Kernel, problem: Problem, config: Config, pool: CompilePool
    ) -> tuple[CompiledConfig | None, Measurement]:
        pool.submit(0, render(kernel, problem, config))
        compiled = None
        while compiled is None:
            select.select(pool.channels, [], [], 0.2)
            compiled = next(iter(pool.ready()), None)
        compiled_config = compiled.compiled_config
        if compiled_config is None:
            assert compiled.failure is not None
            return None, compiled.failure
        rejected = ruled_out(compiled_config, self._worker.info)
        if rejected is not None and rejected.outcome is not Outcome.PRUNED:
            return None, rejected
        measurement = self._measured(compiled_config)
        return compiled_config if measurement.outcome is Outcome.MEASURED else None, measurement

    def _measured(self, compiled_config: CompiledConfig) -> Measurement:
        """Measures one config; a step of the ladder may be slow."""
        worker = self._worker
        worker.begin(compiled_config, None, LIMIT_S)
        while not worker.arrived():
            select.select([worker.channel], [], [], 0.2)
        return worker.finish()

    def _finals(
        self,
        ladder: Ladder,
        problem: Problem,
        tries: Sequence[_Try],
        baseline: Measurement | None,
        recorder: Recorder,
    ) -> None:
        """All steps and the library in alternation; what is measured there replaces what was before."""
        players = [each for each in tries if each.compiled_config is not None]
        played = self._worker.finals(
            [each.compiled_config for each in players if each.compiled_config], FINALS_S
        )
        library = played.pop() if len(played) > len(players) else baseline
        for each, measurement in zip(players, played, strict=True):
            each.measurement = measurement
            recorder.store.add(recorder.of_kernel(Role.FINAL, each.step.kernel, each.config, measurement))
        ladder.rungs += [Rung(each.step, problem, each.config, each.measurement, each.trials) for each in tries]
        if library is not None:
            name = problem.operation.baselines[ladder.device.kind].named(problem.dtype)
            ladder.libraries.append(Library(name, problem, library))

    def _sweep(self, ladder: Ladder, sweep: Sweep) -> None:
        for problem in sweep.problems:
            self._report(f"{problem}: {sweep.label} over {sweep.parameter}")
            pool = self._pool(self._prepared(problem))
            try:
                for value in sweep.values:
                    pins = sweep.pinned(value)
                    space = pinned_space(sweep.kernel, pins, problem, ladder.device)
                    if not len(space):
                        continue
                    config = declared_config(sweep.kernel, pins, space)
                    _, measurement = self._compiled_and_measured(sweep.kernel, problem, config, pool)
                    ladder.sweeps.append(SweepPoint(sweep, problem, value, config, measurement))
            finally:
                pool.close()


def _with_finals(seconds: float | None) -> float | None:
    """The budget whose search lasts so long: a share of it is kept for finals, which all steps hold at once."""
    if seconds is None:
        return None
    share = min(seconds * FINALS_SHARE / (1 - FINALS_SHARE), FINALS_MOST_S)
    return seconds + max(share, FINALS_LEAST_S)


def _in_order(rungs: Sequence[Rung], plan: LadderPlan) -> list[Rung]:
    """Rungs in the order of shapes, then of the plan's steps."""
    shapes = [problem.shape for problem in plan.problems]
    place = {id(step): number for number, step in enumerate(plan.steps)}
    return sorted(rungs, key=lambda rung: (shapes.index(rung.problem.shape), place[id(rung.step)]))

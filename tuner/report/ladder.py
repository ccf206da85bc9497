"""Climbs a ladder: each step tuned briefly or taken as declared, then all of them timed in alternation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound
from tuner.report.ladder_attempts import Attempt, attempt, declared_config, measured, pinned_space
from tuner.report.ladder_limits import further_library, measure_limits
from tuner.report.rungs import Ladder, LadderPlan, Library, Rung, Step, Sweep, SweepPoint, with_layout
from tuner.results.measurement import Measurement
from tuner.results.record import Role, utc_now
from tuner.store import Store
from tuner.study.session import Recorder, Session, TimingConditions
from tuner.workers.device_worker import Crew

#: Seconds for the alternation of a problem's rungs beyond the minimum number of rounds.
FINALS_S = 15.0


@dataclass(frozen=True)
class Request:
    """What to climb, and how.

    Attributes:
        plan: The steps.
        found: The device.
        regime: How times are taken.
        seconds: Seconds for tuning each step; None for the declared configs.
        end_to_end: True to time allocation and copies too.
        limits: True to measure the device's limits.
        seed: Seed of the searches.
    """

    plan: LadderPlan
    found: DetectedDevice
    regime: str = "cold"
    seconds: float | None = 10.0
    end_to_end: bool = False
    limits: bool = True
    seed: int = 0


class Climb:
    """One climb; `run` does it all."""

    def __init__(
        self, request: Request, store: Store, report: Callable[[str], None] = lambda text: None
    ) -> None:
        """Prepares a climb.

        Args:
            request: The request.
            store: The store for the trials; no champion is crowned.
            report: Callback that receives the next step, in words.
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
        with Crew([request.found]) as crew:
            self._crew, worker = crew, crew.devices[0]
            ladder = Ladder(request.plan, worker.info, worker.versions, request.regime)
            ladder.measured_at = utc_now()
            for problem in request.plan.problems:
                grouped: dict[str, list[Step]] = {}
                for step in request.plan.steps:
                    grouped.setdefault(step.layout or problem.layout, []).append(step)
                for layout, steps in grouped.items():
                    self._climb(ladder, with_layout(problem, layout), steps)
            if request.plan.steps and not ladder.rungs:
                raise NothingFound(
                    f"no step of the ladder has a legal config on {worker.info.name}; choose another shape"
                )
            ladder.rungs = _in_order(ladder.rungs, request.plan)
            for sweep in request.plan.sweeps:
                self._sweep(ladder, sweep)
            if request.limits:
                self._report("the device's limits")
                ladder.limits = measure_limits(crew, self._store, request.plan.problems[0].dtype)
        return ladder

    @contextmanager
    def _session(self, problem: Problem) -> Iterator[Session]:
        """Opens a session and makes its arrays."""
        worker, regime = self._crew.devices[0], self._request.regime
        recorder = Recorder(self._store, problem, worker.info, regime, worker.versions, f"ladder {problem}")
        with Session(self._crew, problem, recorder, TimingConditions(regime)) as session:
            session.prepare()
            yield session

    def _climb(self, ladder: Ladder, problem: Problem, steps: Sequence[Step]) -> None:
        with self._session(problem) as session:
            self._report(f"{problem}: the library")
            baseline = session.worker.baseline()
            if baseline is not None:
                self._store.add(session.recorder.of_baseline(baseline))
            attempts = []
            for number, step in enumerate(steps, 1):
                self._report(f"{problem}: step {number} of {len(steps)}, {step.label}")
                tried = attempt(step, session, self._request.seconds, self._request.seed)
                attempts += [tried] if tried is not None else []
            self._report(f"{problem}: all steps in alternation")
            self._finals(ladder, session, attempts, baseline)
            if self._request.end_to_end:
                ladder.transfers_s[problem] = session.worker.transfers_s()
        further = further_library(problem, ladder.device.kind)
        if further is not None:
            name, data = further
            worker = self._crew.devices[0]
            worker.prepare(data, self._request.regime)
            measurement = worker.baseline()
            self._crew.rest()
            if measurement is not None:
                ladder.libraries.append(Library(name, problem, measurement, main=False))

    def _finals(
        self, ladder: Ladder, session: Session, attempts: Sequence[Attempt], baseline: Measurement | None
    ) -> None:
        """Times all steps and the library in alternation; these measurements replace the earlier ones."""
        problem = session.problem
        players = [each for each in attempts if each.compiled_config is not None]
        played = session.worker.finals(
            [each.compiled_config for each in players if each.compiled_config], FINALS_S
        )
        library = played.pop() if len(played) > len(players) else baseline
        for each, measurement in zip(players, played, strict=True):
            each.measurement = measurement
            session.add(Role.FINAL, each.step.kernel, each.config, measurement)
        ladder.rungs += [
            Rung(each.step, problem, each.config, each.measurement, each.trials) for each in attempts
        ]
        if library is not None:
            name = problem.operation.baselines[ladder.device.kind].named(problem)
            ladder.libraries.append(Library(name, problem, library))

    def _sweep(self, ladder: Ladder, sweep: Sweep) -> None:
        for problem in sweep.problems:
            self._report(f"{problem}: {sweep.label} over {sweep.parameter}")
            with self._session(problem) as session:
                for value in sweep.values:
                    pins = sweep.pinned(value)
                    space = pinned_space(sweep.kernel, pins, problem, ladder.device)
                    if not len(space):
                        continue
                    config = declared_config(sweep.kernel, pins, space)
                    _, measurement = measured(session, sweep.kernel, config)
                    ladder.sweeps.append(SweepPoint(sweep, problem, value, config, measurement))


def _in_order(rungs: Sequence[Rung], plan: LadderPlan) -> list[Rung]:
    """Sorts rungs by shape, then by the plan's steps."""
    shapes = [problem.shape for problem in plan.problems]
    place = {id(step): number for number, step in enumerate(plan.steps)}
    return sorted(rungs, key=lambda rung: (shapes.index(rung.problem.shape), place[id(rung.step)]))

"""A survey: times configs at many problems, until its time is up, and searches for better ones while it does.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.

What is refused untimed, and how workers are limited and replaced, is as in a session; the loop is its own. As a
policy of `tuner.study.loop` a survey worked, without a branch for it: its problem changed, 40 configs were sent
ahead, times were stored in parts. That took 65 lines from surveys and sentinels and put 52 into the core:
queues of worker and loop, sources shared by the pool, hooks for what is rendered, sent and stored.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.errors import InputError, TunerError
from tuner.lookup.legality import completed
from tuner.model.fit import refit
from tuner.model.survey_design import Design, SurveyRequest, Turn, design
from tuner.results import codec
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.progress import Interruption
from tuner.study.requests import check_regime
from tuner.study.session import Session, check_fits, study_name, timeable, versions_of
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew, DeviceWorker
from tuner.workers.process import WorkerFailed

#: Crashes of a config after which it is left out.
MOST_CRASHES = 2
#: Timings are stored when there are so many, or the oldest is so old in seconds: what a kill may cost.
PART_TIMINGS, PART_S = 400, 5.0
#: Sources that wait or are compiled for each compile worker.
BACKLOG = 4
#: Turns that a device has at a time: the next one, too, for it takes as long to plan a turn as to time it.
AT_A_TIME = 2
#: Seconds between two looks at what has been compiled, if nothing can be timed.
REST_S = 0.02


@dataclass
class SurveyProgress:
    """How far a survey is.

    Attributes:
        timings: Timings of this run, failures among them.
        problems: Problems of this run.
        before: Problems that an earlier run had.
        skipped: Problems that do not fit into memory.
        outcomes: Outcome -> how many.
        reasons: Outcome -> the first reason.
        timing_s: Seconds in which the device had something to do.
        elapsed_s: Seconds since the start.
        compiled: Sources compiled.
        configs: Configs there are by now.
    """

    timings: int = 0
    problems: int = 0
    before: int = 0
    skipped: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    timing_s: float = 0.0
    elapsed_s: float = 0.0
    compiled: int = 0
    configs: int = 0


def survey_name(request: SurveyRequest, device: DeviceInfo) -> str:
    """Names a survey: another seed, device, regime, or other sources of kernels make another."""
    of = study_name(request.operation.name, device, request.regime, request.kernels)
    return f"survey of {of}, seed {request.seed}"


def run_survey(
    request: SurveyRequest, store: Store, report: Callable[[SurveyProgress], None] = lambda progress: None
) -> SurveyProgress:
    """Times configs at problems until the time is up, or a list of one's own is through.

    Args:
        request: What to do.
        store: Where timings go.
        report: Called after each problem.

    Raises:
        InputError: The regime does not suit the device, or the ranges leave no problem.
        DeviceTrouble: The device cannot be opened or stays unwell; what was timed is kept.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """
    begun_s = time.monotonic()
    check_regime(request.regime, request.device.target)
    for kernel in request.kernels:
        kernel.check_entry()
    interruption = Interruption()
    with interruption.handled(), Crew([request.device]) as crew:
        survey = Survey(design(request, store, crew.devices[0].info), store, crew, begun_s)
        with interruption.ends(survey):
            survey.run(report)
        return survey.progress


def refit_if_possible(store: Store, request: SurveyRequest) -> str:
    """Fits a model at the end of a survey; tells people what came of it."""
    device, dtype = completed(request.device.info, store.devices()), request.ranges.dtype
    try:
        refit(store, request.operation, request.kernels, device, request.regime, dtype=dtype)
    except TunerError as error:
        return f"no model was fitted: {error}"
    return "a model was fitted; lookups answer by it"


class Survey:
    """One run of a survey.

    Attributes:
        progress: How far it is.
        stop: Why it is to end; empty while it goes on.
    """

    def __init__(self, chosen: Design, store: Store, crew: Crew, begun_s: float) -> None:
        """Takes what it works with.

        Args:
            chosen: Chooses what is timed.
            store: Where timings go.
            crew: The device's workers.
            begun_s: When its time began, by `time.monotonic`.
        """
        self.progress, self.stop = SurveyProgress(), ""
        self._design, self._request, self._store, self._begun_s = chosen, chosen.request, store, begun_s
        self._worker, self._compilers = crew.devices[0], crew.pool({})
        kind = kind_of(self._worker.info.kind)
        # On a CPU compiling and timing would share cores: nothing is timed while anything is compiled.
        self._is_host, self._ahead = kind.is_host, kind.survey.ahead
        self._timer = Timer(self._worker, self._request.regime)
        # By the hash of a source: its machine code, why there is none, or None while it is compiled.
        self._codes: dict[str, CompiledConfig | Measurement | None] = {}
        self._hashes: list[str] = []
        self._registers: dict[int, int] = {}
        self._crashes = Counter[int]()
        self._planned: list[Turn] = []
        self._left = self._problems()
        self._name, self._session = survey_name(self._request, self._worker.info), new_id()
        self._unstored: list[tuple[ProblemKey, Timing]] = []
        self._stored_s = time.monotonic()

    def run(self, report: Callable[[SurveyProgress], None]) -> None:
        """Times until the time is up; however it ends, what was timed is stored."""
        try:
            while self._goes_on():
                begun_s, has_planned = time.monotonic(), self._plan()
                self._begin()
                if self._timer.turns:
                    self._finish(self._timed())
                    self.progress.timing_s += time.monotonic() - begun_s
                    report(self.progress)
                elif not self._planned:
                    return
                elif not has_planned:
                    time.sleep(REST_S)
        finally:
            self._keep()

    def _goes_on(self) -> bool:
        self.progress.elapsed_s = time.monotonic() - self._begun_s
        self.progress.configs = len(self._design.pool.configs)
        return not self.stop and self.progress.elapsed_s < self._request.seconds

    def _problems(self) -> Iterator[tuple[int, Problem]]:
        """Number and problem: those that no earlier run timed, and that fit."""
        of = self._request.operation.name, self._worker.info, self._request.regime, self._name
        done = {key for part in self._store.survey_parts(*of) for key in part.problems}
        self.progress.before = len(done)
        for number, problem in self._design.problems():
            key = ProblemKey.of(problem)
            if key in done:
                continue
            done.add(key)
            try:
                check_fits(problem, self._worker.free_bytes, self._worker.info)
            except InputError:
                self.progress.skipped += 1
                continue
            yield number, problem

    def _plan(self) -> bool:
        """Plans a turn, on a CPU as many as are compiled ahead, unless there are enough; whether it did."""
        self._collect()
        have = len(self._planned)
        wanted = (0 if have else self._ahead) if self._is_host else int(have < self._ahead)
        for number, problem in islice(self._left, wanted):
            # Configs that may be new: one at least, however many wait for compile workers.
            fresh = max(BACKLOG * self._compilers.size - self._compilers.pending, 1)
            self._compile(self._design.turn(number, problem, fresh))
        return len(self._planned) > have

    def _compile(self, turn: Turn) -> None:
        """Has compiled what a turn needs: a source once for all problems that share it."""
        pool = self._design.pool
        for number in turn.configs:
            name, config = pool.configs[number]
            rendered = turn.rendered[number] = render(pool.kernels[name], turn.problem, config)
            if rendered.hash not in self._codes:
                self._codes[rendered.hash] = None
                self._compilers.submit(len(self._hashes), rendered, Session.named(turn.problem))
                self._hashes.append(rendered.hash)
        self._planned.append(turn)

    def _collect(self) -> None:
        """Takes what has been compiled. What spills is timed: a model learns that it is slow.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for ticket, code in self._compilers.ready().items():
            self.progress.compiled += 1
            self._codes[self._hashes[ticket]] = timeable(code, self._worker)

    def _begin(self) -> None:
        """Gives the device turns whose configs have been compiled, up to `AT_A_TIME`, on a CPU one."""
        most = int(not self._compilers.pending) if self._is_host else AT_A_TIME
        for turn in list(self._planned):
            if len(self._timer.turns) >= most:
                return
            codes = {number: self._codes[rendered.hash] for number, rendered in turn.rendered.items()}
            if None not in codes.values():
                self._planned.remove(turn)
                self._timer.begin(turn, dict(self._ready(turn, codes)))

    def _ready(
        self, turn: Turn, codes: Mapping[int, CompiledConfig | Measurement | None]
    ) -> Iterator[tuple[int, CompiledConfig]]:
        """The configs of a turn that can be timed; of others it has the reason."""
        for number, code in codes.items():
            if isinstance(code, Measurement):
                turn.timings.append(Timing(0, number, code.outcome, reason=code.reason))
            elif code is not None and self._crashes[number] < MOST_CRASHES:
                self._registers[number] = code.compiled.registers
                yield number, replace(code, rendered=turn.rendered[number])

    def _timed(self) -> Turn:
        """Waits for the end of a turn, and on a GPU plans others meanwhile; a CPU's cores are what is timed."""
        while (turn := self._timer.take()) is None:
            if not self._is_host:
                self._plan()
        return turn

    def _finish(self, turn: Turn) -> None:
        """Learns from a turn, and keeps its timings."""
        self.progress.skipped += not turn.prepared
        self.progress.problems += turn.prepared
        self.progress.timings += len(turn.timings)
        key = ProblemKey.of(turn.problem)
        for timing in turn.timings:
            name, outcomes = timing.outcome.value, self.progress.outcomes
            outcomes[name] = outcomes.get(name, 0) + 1
            if timing.reason:
                self.progress.reasons.setdefault(name, timing.reason)
            self._unstored.append((key, timing))
            self._crashes[timing.config] += timing.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT)
        self._design.learn(turn)
        if len(self._unstored) >= PART_TIMINGS or time.monotonic() - self._stored_s > PART_S:
            self._keep()

    def _keep(self) -> None:
        """Stores what is not stored yet."""
        problems = list(dict.fromkeys(key for key, _ in self._unstored))
        configs = list(dict.fromkeys(timing.config for _, timing in self._unstored if timing.config != LIBRARY))
        of_problem, of_config = ({value: at for at, value in enumerate(of)} for of in (problems, configs))
        timings = tuple(
            timing._replace(problem=of_problem[key], config=of_config.get(timing.config, LIBRARY))
            for key, timing in self._unstored
        )
        if timings:
            self._store.add(SurveyPart(
                self._worker.info, self._request.operation.name, self._request.regime, tuple(problems),
                tuple(map(self._config, configs)), timings, versions_of(self._worker), self._name,
                self._session,
            ))  # fmt: skip
        self._unstored, self._stored_s = [], time.monotonic()

    def _config(self, number: int) -> SurveyConfig:
        name, config = self._design.pool.configs[number]
        origin, registers = str(self._request.operation.origin or ""), self._registers.get(number, 0)
        return SurveyConfig(name, self._design.pool.kernels[name].source_hash, origin, registers, config)


#: Seconds that one answer may take: arrays and a reference of a large problem are made in that time, too.
ANSWER_LIMIT_S = 60.0
#: Digits of a time and of its noise that are kept, far below the noise: they are stored as short texts.
DIGITS = 5


class Timer:
    """Times turns one after the other through one device worker.

    A config that crashes costs itself: a fresh worker goes on with the next one.

    Attributes:
        turns: Those that were begun and have not ended.
    """

    def __init__(self, worker: DeviceWorker, regime: str) -> None:
        """Takes the device.

        Args:
            worker: The device.
            regime: How time is taken.
        """
        self._worker, self._regime = worker, regime
        self.turns = deque[Turn]()
        # Hashes of the sources whose machine code the worker has.
        self._sent = set[str]()

    def begin(self, turn: Turn, codes: Mapping[int, CompiledConfig]) -> None:
        """Asks for the times of the library and of configs, behind what was asked for before.

        Args:
            turn: Takes the timings.
            codes: Config's number -> its code.
        """
        turn.steps.extend([(None, None), (LIBRARY, None), *codes.items()])
        self.turns.append(turn)
        self._send(turn)

    def take(self) -> Turn | None:
        """Waits for the next answer; returns its turn if that has ended with it.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        turn, restarts = self.turns[0], self._worker.restarts
        config, _ = turn.steps.popleft()
        try:
            measurement = self._worker.answer(ANSWER_LIMIT_S).get("measurement")
            turn.prepared = True
            if config is not None and measurement is not None:
                turn.timings.append(_timing(config, Measurement.from_json(measurement)))
        except WorkerFailed as failure:
            if config is None:
                turn.steps.clear()
            else:
                turn.timings.append(Timing(0, config, failure.outcome, reason=str(failure)))
        if not turn.steps:
            self.turns.popleft()
        if self._worker.restarts > restarts:
            self._sent.clear()
            if turn.steps:
                turn.steps.appendleft((None, None))
            for lost in self.turns:
                self._send(lost)
        return None if turn.steps else turn

    def _send(self, turn: Turn) -> None:
        """Sends what a turn has left to be asked."""
        for config, code in turn.steps:
            if config is None:
                self._worker.send({
                    "do": "prepare", "problem": Session.named(turn.problem), "regime": self._regime,
                    "references": int(bool(turn.configs)),
                })  # fmt: skip
                continue
            message: dict[str, Any] = {"do": "survey", "key": ""}
            if code is not None:
                launch, key = code.rendered.launch, code.rendered.hash
                message |= {"key": key, "launch": launch and codec.to_json(launch)}
                message |= {"config": codec.to_json(code)} if key not in self._sent else {}
                self._sent.add(key)
            self._worker.send(message)


def _timing(config: int, measurement: Measurement) -> Timing:
    time_s, outcome = measurement.time_s or 0.0, measurement.outcome
    if outcome.failed:
        return Timing(0, config, outcome, reason=measurement.reason)
    if time_s <= 0:
        return Timing(0, config, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    digits = f".{DIGITS}g"
    return Timing(0, config, outcome, float(format(time_s, digits)), float(format(measurement.noise, digits)))

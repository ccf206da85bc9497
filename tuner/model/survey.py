"""A survey: times configs at many problems, until its time is up, and searches for better ones while it does.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.

It is a policy of the loop that studies have. Its session takes up one problem after the other, sends many
configs ahead, and keeps times alone, many at once.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import InputError, TunerError
from tuner.lookup.legality import completed
from tuner.model.fit import refit
from tuner.model.survey_design import Design, SurveyRequest, Turn, design
from tuner.results import codec
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.search import Candidate
from tuner.store import Store
from tuner.study.loop import Loop, TrialPolicy
from tuner.study.progress import Interruption, Progress, TimeBudget
from tuner.study.requests import check_regime
from tuner.study.session import Session, study_name
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew, DeviceWorker

#: Crashes of a config after which it is left out.
MOST_CRASHES = 2
#: Timings are stored when there are so many, or the oldest is so old in seconds: what a kill may cost.
PART_TIMINGS, PART_S = 400, 5.0
#: Sources that wait or are compiled for each compile worker.
BACKLOG = 4
#: Timings that a GPU is sent at a time: it takes as long to plan those of a problem as to make them.
AT_A_TIME = 40
#: Seconds that an answer may take: arrays and a reference of a large problem are made in that time, too.
ANSWER_LIMIT_S = 60.0
#: Digits of a time and of its noise that are kept, far below the noise: they are stored as short texts.
DIGITS = 5
#: Stands for the library among sources, of which it has none.
NO_SOURCE = Rendered("", "", "")


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
        timing_s: Seconds without those in which it opened the device, or waited for compile workers alone.
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
        report: Called a few times a second.

    Raises:
        InputError: The regime does not suit the device, or the ranges leave no problem.
        DeviceTrouble: The device cannot be opened or stays unwell; what was timed is kept.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """
    check_regime(request.regime, request.device.target)
    for kernel in request.kernels:
        kernel.check_entry()
    interruption, crew = Interruption(), Crew([request.device])
    budget = TimeBudget(request.seconds, lambda progress: report(policy.progress(progress)), finals_s=0.0)
    with interruption.handled(), closing(crew):
        with budget.spent("opening"):
            crew.open()
        info, smallest = crew.devices[0].info, dict.fromkeys(request.operation.dims, 1)
        first, name = request.operation.problem(smallest), survey_name(request, info)
        session = Session(crew, store, first, request.regime, name)
        policy = SurveyPolicy(session, design(request, store, info))
        loop = Loop(session, policy, budget)
        try:
            with interruption.ends(loop):
                loop.run()
        finally:
            policy.keep()
        budget.tick("done")
        return policy.progress(budget.progress)


def refit_if_possible(store: Store, request: SurveyRequest) -> str:
    """Fits a model at the end of a survey; tells people what came of it."""
    device, own = completed(request.device.info, store.devices()), request.arithmetic
    try:
        refit(store, request.operation, request.kernels, device, request.regime, arithmetic=own)
    except TunerError as error:
        return f"no model was fitted: {error}"
    return "a model was fitted; lookups answer by it"


@dataclass(frozen=True)
class SurveyCandidate(Candidate):
    """A config, or the library, at a problem.

    Attributes:
        at: Number of the config, or `LIBRARY`.
        turn: Where.
    """

    at: int
    turn: Turn


class SurveyPolicy(TrialPolicy):
    """Proposes a problem's configs, the library first, and stores timings by whole turns.

    Attributes:
        reached: How far the survey is.
    """

    in_order, recorded = True, False

    def __init__(self, session: Session, chosen: Design) -> None:
        """Begins with the first problem that no earlier run timed.

        Args:
            session: Takes up the problems.
            chosen: Chooses what is timed.
        """
        super().__init__(chosen.request.kernels)
        self.at_a_time = 1 if session.shares_cores else AT_A_TIME
        self._session, self._design, self.reached = session, chosen, SurveyProgress()
        session.pool.most_kept = math.inf  # problems share sources
        self._ahead = kind_of(session.device.kind).survey.ahead
        self._numbers, self._crashes, self._registers = count(), Counter[int](), dict[int, int]()
        # What the worker has, of which none is left after a restart.
        self._restarts, self._prepared, self._sent = 0, None, set[str]()
        self._of = chosen.request.operation.name, session.device, session.regime
        self._name, self._id = survey_name(chosen.request, session.device), new_id()
        self._unstored, self._stored_s = list[tuple[ProblemKey, Timing]](), time.monotonic()
        self._left, self._under_way, self._is_through = self._problems(), 0, False

    def _problems(self) -> Iterator[tuple[int, Problem]]:
        """Number and problem: those that no earlier run timed, and that fit."""
        done = {
            key for part in self._session.store.survey_parts(*self._of, self._name) for key in part.problems
        }
        self.reached.before = len(done)
        for number, problem in self._design.problems():
            if (key := ProblemKey.of(problem)) in done:
                continue
            done.add(key)
            try:
                self._session.take_up(problem)
                yield number, problem
            except InputError:
                self.reached.skipped += 1

    def propose(self, room: int, under_way: int) -> Sequence[Candidate]:
        """The next problem's; on a CPU, whose cores are what is timed, once nothing is."""
        pool = self._session.pool
        if self._under_way >= self._ahead or (self._session.shares_cores and self._session.worker.channel.busy):
            return ()
        for number, problem in self._left:
            # Configs that may be new: one at least, however many wait for compile workers.
            turn = self._design.turn(number, problem, max(BACKLOG * pool.size - pool.pending, 1))
            named = {LIBRARY: ("", Config({}))} | {at: self._design.pool.configs[at] for at in turn.configs}
            turn.left.update(named)
            self._under_way += 1
            return [SurveyCandidate(*one, next(self._numbers), at, turn) for at, one in named.items()]
        self._is_through = True
        return ()

    def exhausted(self) -> str:
        """A list of one's own is through."""
        return "all problems are through" if self._is_through else ""

    def wants(self, candidate: Any) -> bool:
        """False for what crashes, and at a problem that the device could not make; its turn goes on without."""
        is_wanted = not candidate.turn.lost and self._crashes[candidate.at] < MOST_CRASHES
        if not is_wanted:
            self._take_in(candidate.turn, candidate.at)
        return is_wanted

    def rendered(self, candidate: Any, problem: Problem) -> Rendered:
        """See `TrialPolicy`."""
        return NO_SOURCE if candidate.at == LIBRARY else super().rendered(candidate, problem)

    def begin(self, worker: DeviceWorker, candidate: Any, code: CompiledConfig) -> None:
        """Sends a config, with a problem that is new the problem, and with a source that is new its code."""
        turn, key, launch = candidate.turn, code.rendered.hash, code.rendered.launch
        if worker.restarts != self._restarts:
            self._restarts, self._prepared, self._sent = worker.restarts, None, set()
        message: dict[str, Any] = {"do": "survey", "key": key, "launch": launch and codec.to_json(launch)}
        if turn is not self._prepared:
            message |= {"problem": Session.named(turn.problem), "regime": self._session.regime}
            message["references"] = int(bool(turn.configs))
        if key not in self._sent:
            message["config"] = codec.to_json(code)
        self._prepared = turn
        self._sent.add(key)
        worker.send(message, ANSWER_LIMIT_S)

    def learn(self, candidate: Any, measurement: Measurement) -> None:
        """Takes a timing; a problem whose arrays or library the device does not survive is lost."""
        turn, at, outcome = candidate.turn, candidate.at, measurement.outcome
        is_lost = outcome in (Outcome.CRASHED, Outcome.TIMED_OUT)
        if at != LIBRARY:
            self._crashes[at] += is_lost
            if measurement.compiled:
                self._registers[at] = measurement.compiled.registers
            turn.timings.append(_timing(at, measurement))
        elif is_lost:
            turn.lost = True
            self.reached.skipped += 1
            self._under_way -= 1
        elif outcome is not Outcome.INVALID:  # there is one
            turn.timings.append(_timing(at, measurement))
        self._take_in(turn, at)

    def _take_in(self, turn: Turn, at: int) -> None:
        """Learns from a turn of which nothing is left, and keeps its timings."""
        turn.left.discard(at)
        if turn.left or turn.lost:
            return
        self._under_way -= 1
        self.reached.problems += 1
        self.reached.timings += len(turn.timings)
        key = ProblemKey.of(turn.problem)
        for timing in turn.timings:
            name, outcomes = timing.outcome.value, self.reached.outcomes
            outcomes[name] = outcomes.get(name, 0) + 1
            if timing.reason:
                self.reached.reasons.setdefault(name, timing.reason)
            self._unstored.append((key, timing))
        self._design.learn(turn)
        if len(self._unstored) >= PART_TIMINGS or time.monotonic() - self._stored_s > PART_S:
            self.keep()

    def keep(self) -> None:
        """Stores what is not stored yet."""
        problems = list(dict.fromkeys(key for key, _ in self._unstored))
        configs = list(dict.fromkeys(timing.config for _, timing in self._unstored if timing.config != LIBRARY))
        of_problem, of_config = ({value: at for at, value in enumerate(of)} for of in (problems, configs))
        timings = tuple(
            timing._replace(problem=of_problem[key], config=of_config.get(timing.config, LIBRARY))
            for key, timing in self._unstored
        )
        if timings:
            name, device, regime = self._of
            self._session.store.add(SurveyPart(
                device, name, regime, tuple(problems), tuple(map(self._config, configs)), timings,
                self._session.versions, self._name, self._id,
            ))  # fmt: skip
        self._unstored, self._stored_s = [], time.monotonic()

    def _config(self, number: int) -> SurveyConfig:
        name, config = self._design.pool.configs[number]
        registers, source = self._registers.get(number, 0), self.kernels[name].source_hash
        return SurveyConfig(name, source, self._session.origin, registers, config)

    def progress(self, counts: Progress) -> SurveyProgress:
        """How far the survey is, by the times of its loop."""
        idle_s = sum(counts.spent_s.get(stage, 0.0) for stage in ("opening", "compiling", "searching"))
        return replace(
            self.reached, timing_s=counts.elapsed_s - idle_s, elapsed_s=counts.elapsed_s,
            compiled=self._session.pool.compiled, configs=len(self._design.pool.configs),
        )  # fmt: skip


def _timing(config: int, measurement: Measurement) -> Timing:
    time_s, outcome = measurement.time_s or 0.0, measurement.outcome
    if outcome.failed:
        return Timing(0, config, outcome, reason=measurement.reason)
    if time_s <= 0:
        return Timing(0, config, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    digits = f".{DIGITS}g"
    return Timing(0, config, outcome, float(format(time_s, digits)), float(format(measurement.noise, digits)))

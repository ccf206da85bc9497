"""Measures a problem at its first use: few promising configs, then finals; in a process that serves."""

import contextlib
import itertools
import json
import math
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, TextIO

from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.devices.detect import find, kind_of
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, LockedByAnother, TunerError
from tuner.lookup import answer
from tuner.lookup.legality import legal
from tuner.lookup.stale import builtin_now
from tuner.results.measurement import Measurement
from tuner.results.objectives import limit_for
from tuner.results.record import Champion, ProblemKey
from tuner.search import Candidate
from tuner.store import Store
from tuner.study.finals import Finals
from tuner.study.leaderboard import Leaderboard, Named
from tuner.study.locks import occupied
from tuner.study.loop import Loop, TrialPolicy
from tuner.study.progress import TimeBudget
from tuner.study.requests import StudyRequest
from tuner.study.starting import Predictions, declared_starts, held_class, near_champions
from tuner.study.study import session_of
from tuner.workers.device_worker import Crew

#: Configs that are tried at first.
CONFIGS = 8
#: Seconds of timing at the most, unless given; on a host of all that is done at a problem.
SECONDS = 2.0
#: Champions of other shapes to choose from.
NEIGHBOURS = 12
#: Rounds after the first one, at the most; none begins later than so many seconds after the first.
ROUNDS, FURTHER_S = 3, 8.0
#: A round that gains less, as a share of the time, is the last.
LEAST_GAIN = 0.002
#: Share of the seconds that may be spent before the finals.
BEFORE_FINALS = 0.5


def candidates(request: StudyRequest, store: Store, device: DeviceInfo, model: Predictions) -> list[Named]:
    """The configs to try first, the most promising first; all obey every rule of their kernel.

    Args:
        request: What is asked.
        store: Where champions of other shapes are.
        device: Where, in full.
        model: What a model predicts.
    """
    kernels, key = {kernel.name: kernel for kernel in request.kernels}, ProblemKey.of(request.problem)
    near = near_champions(store, request.kernels, key, device, NEIGHBOURS, elsewhere=True)
    chosen: dict[Named, None] = {}
    for name, config in (*model.starts, *near, *declared_starts(request.kernels)):
        kernel = kernels.get(name)
        if kernel is not None and legal(kernel, request.problem, device, [config])[1][0]:
            chosen[name, Config({one.name: config[one.name] for one in kernel.parameters})] = None
        if len(chosen) == CONFIGS:
            break
    return list(chosen)


class FirstUsePolicy(TrialPolicy):
    """The configs that were chosen, then some rounds of others beside the fastest, while that helps.

    A model keeps a few of the legal configs, and was fitted on fewer at the problems near this one. It predicts
    well what differs from these in a parameter or two. Each round is compiled side by side, then verified and
    timed one after the other, the most promising first. On a host, whose cores compile and run, a round is as
    long as there are compile workers, and compiling is a part of the time.

    Attributes:
        leaderboard: The configs that were measured, with the counts of the trials.
        spent_s: Seconds of timing.
    """

    in_order = True

    def __init__(
        self, request: StudyRequest, chosen: Sequence[Named], model: Predictions, budget: TimeBudget,
        compilers: int = 0,
    ) -> None:  # fmt: skip
        """Begins with the first round.

        Args:
            request: What is asked.
            chosen: What to try first, the most promising first.
            model: What a model predicts.
            budget: The time by the clock, of a host; without limit for another device.
            compilers: Compile workers of a host; 0 for another device.
        """
        super().__init__(request.kernels)
        self._seconds, self._model, self._compilers = request.seconds or SECONDS, model, compilers
        self._budget, self._round_s = budget, time.monotonic()
        self._rest: Sequence[Named] = ()
        self.leaderboard, self.spent_s = Leaderboard(), 0.0
        self._round: Sequence[Named] = ()
        self._rounds = self._promising(chosen)
        self._numbers, self._tried = itertools.count(), set[Named]()

    def _promising(self, chosen: Sequence[Named]) -> Iterator[Sequence[Named]]:
        """The rounds; none after one without gain, or if it is late."""
        yield chosen
        begun_s, before_s = time.monotonic(), math.inf
        for _ in range(ROUNDS):
            best_s = self.leaderboard.best_s or math.inf
            if best_s >= before_s * (1 - LEAST_GAIN) or time.monotonic() - begun_s > FURTHER_S:
                return
            before_s = best_s
            yield self._model.beside(dict.fromkeys(self._tried, math.inf) | self.leaderboard.times_s)

    def propose(self, room: int, under_way: int) -> Sequence[Candidate]:
        """A round, once the one before is done."""
        if under_way:
            return ()
        before_s, self._round_s = self._round_s, time.monotonic()
        left_s = self._budget.search_left_s
        if left_s is not None and self.leaderboard.times_s and left_s < self._round_s - before_s:
            self._round = ()  # another one, as long as the last, would take the time of the finals
            return ()
        rest = self._rest or next(self._rounds, ())
        count = self._compilers or CONFIGS
        self._round, self._rest = rest[:count], rest[count:]
        return [Candidate(*place, next(self._numbers)) for place in self._round]

    @property
    def left_s(self) -> float:
        """Seconds that are left for the finals."""
        left_s = self._budget.search_left_s
        return max(self._seconds - self.spent_s if left_s is None else left_s + self._budget.finals_s, 0.0)

    def ended(self) -> str:
        """The time before the finals is spent; the loop looks at the clock."""
        spent = self.leaderboard.times_s and self.spent_s > BEFORE_FINALS * self._seconds
        return "its time is spent" if spent and not self._compilers else ""

    def exhausted(self) -> str:
        """The last round was the last, or there was nothing for another."""
        return "" if self._round else "all rounds are over"

    def to_beat_s(self, candidate: Candidate) -> float | None:
        """The best time so far."""
        return self.leaderboard.best_s

    def learn(self, candidate: Candidate, measurement: Measurement) -> None:
        """Ranks it."""
        self.spent_s += max(measurement.stages_s.get("time", 0.0), sum(measurement.samples_s))
        self._tried.add((candidate.kernel, candidate.config))
        self.leaderboard.add_trial(self.kernels[candidate.kernel], candidate.config, measurement)


def measure(request: StudyRequest, store: Store, crew: Crew, known: Store | None = None) -> Champion | None:
    """Tries a problem's most promising configs, and crowns the best of them in finals against the library.

    Args:
        request: The problem, its kernels and the regime. Its seconds are those of timing at the most, on a host
            of compiling, too: the first config is timed, and finals have a few rounds, in any case. Its bits
            are kept to.
        store: Where records go.
        crew: The device's workers, open.
        known: Has the model and the champions to begin with; `store` has when None.

    Returns:
        The champion, which may be slower than the library; None if no config could be measured.

    Raises:
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
        StoreTrouble: The database cannot be written.
        NothingFound: The class of bits cannot be known.
    """
    info = crew.devices[0].info
    kind = kind_of(info.kind)
    budget = TimeBudget((request.seconds or SECONDS) if kind.is_host else None)
    budget.states_s = kind.states_s
    request = replace(request, error_limit=limit_for(request.problem.precision, None))
    with session_of(request, store, crew) as session:
        model = Predictions(request.problem, request.kernels, info, request.regime, known or store)
        chosen = candidates(request, known or store, info, model)
        policy = FirstUsePolicy(request, chosen, model, budget, session.pool.size if kind.is_host else 0)
        loop = Loop(session, policy, budget)
        loop.prepare()
        if request.bits:
            held = held_class(session, request, session.worker.baseline())
            policy.leaderboard = Leaderboard(bits=held)
        loop.run()
        if not policy.leaderboard.times_s:
            return None
        finals = Finals(session, request.kernels, MachineWatch(crew.found))
        return finals.play(policy.leaderboard, policy.left_s)


# --- the process that serves ---

#: Seconds without a question after which the process ends.
IDLE_S = 10.0
#: Seconds to wait for another process that uses the device, and between two attempts.
LOCK_S, AGAIN_S = 30.0, 0.2
#: Seconds beside those of waiting and timing after which a question ends the process, whatever hangs.
HANGS_S = 120.0
#: How a question may end.
MEASURED, KNOWN, NOTHING, BUSY, FAILED = "measured", "known", "nothing", "busy", "failed"


def close_all(crews: dict[str, Crew]) -> None:
    """Ends the workers of all devices."""
    while crews:
        crews.popitem()[1].close()


def answered(question: Mapping[str, Any], crews: dict[str, Crew]) -> tuple[str, str]:
    """Measures what is asked, unless it is known by now.

    Args:
        question: ``problem``, ``device``, ``db``, ``seconds``; and ``bits``, where a class is kept to.
        crews: Workers of devices that stay open from one question to the next.

    Returns:
        How it ended, and the reason for people where nothing was measured.
    """
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            return _measured(question, crews)
        except LockedByAnother as error:
            if time.monotonic() > until_s:
                return BUSY, str(error)
            time.sleep(AGAIN_S)
        except Exception as error:  # the program goes on without, and hears why
            expected = isinstance(error, TunerError)
            if not expected or isinstance(error, DeviceTrouble):
                close_all(crews)
            return FAILED, str(error) if expected else f"{type(error).__name__}: {error}"


def _measured(question: Mapping[str, Any], crews: dict[str, Crew]) -> tuple[str, str]:
    """As `answered`, with the device held."""
    words, catalogue = question["problem"], builtin_now()
    how = (words.get(name, "") for name in ("dtype", "layout", "precision", "epilogue"))
    problem = catalogue.operation(words["operation"]).problem(words["shape"], *how)
    device, db = find(question["device"]), question["db"]
    with Store.open(db) as store, occupied(db, (device,), f"first use of {problem}"):
        crew = crews.setdefault(device.spec, Crew([device], CONFIGS))
        crew.open()
        # Another process may have measured it while this one waited.
        if answer(store, ProblemKey.of(problem), crew.devices[0].info).match == "exact":
            return KNOWN, ""
        kernels = catalogue.serving(problem, device.target)
        held = question.get("bits", "")
        asked = StudyRequest(problem, kernels, crew.found, seconds=question["seconds"], bits=held)
        if measure(asked, store, crew) is None:
            return NOTHING, "none of its most promising configs could be measured"
        return MEASURED, ""


def serve(lines: BinaryIO, replies: TextIO) -> None:
    """Answers the questions of an input, one after the other, until it ends or nothing comes for a while.

    Args:
        lines: The input, unbuffered.
        replies: Where to say how each ended.
    """
    crews: dict[str, Crew] = {}
    try:
        while select.select([lines], [], [], IDLE_S)[0] and (line := lines.readline()):
            question = json.loads(line)
            signal.alarm(int(LOCK_S + HANGS_S + 2 * question["seconds"]))
            outcome, why = answered(question, crews)
            signal.alarm(0)
            with contextlib.suppress(BrokenPipeError):
                reply = {"id": question["id"], "outcome": outcome, "why": why}
                print(json.dumps(reply), file=replies, flush=True)
    finally:
        close_all(crews)


def main() -> None:
    """Serves standard input; what anything prints goes nowhere."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(os.fdopen(0, "rb", buffering=0), replies)
    with contextlib.suppress(BrokenPipeError):
        replies.close()


if __name__ == "__main__":
    main()

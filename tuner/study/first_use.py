"""Compiles the configs of a first use side by side, then verifies and times one after the other; in rounds."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice, find
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, LockedByAnother, TunerError
from tuner.lookup import Answer, answer
from tuner.lookup.legality import legal
from tuner.lookup.stale import builtin_now
from tuner.results.measurement import Measurement
from tuner.results.objectives import limit_for
from tuner.results.record import Champion, ProblemKey
from tuner.search import Candidate
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.study.finals import Finals
from tuner.study.leaderboard import Leaderboard
from tuner.study.locks import occupied
from tuner.study.loop import FixedList, Loop, TimeLimits
from tuner.study.session import Recorder, Session, TimingConditions, study_name
from tuner.study.starting import Named, Predictions, declared_starts, near_champions, nearness
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew

#: Configs that are tried at first.
CONFIGS = 8
#: Seconds of timing at the most, unless given.
SECONDS = 2.0
#: Published champions of other shapes to choose from.
NEIGHBOURS = 12


@dataclass(frozen=True)
class FirstUse:
    """A problem to be measured.

    Attributes:
        problem: What is computed.
        kernels: The kernels that may compute it.
        seconds: Seconds of timing at the most: the first config is timed, and finals have three rounds, in any
            case.
        regime: How times are taken.
    """

    problem: Problem
    kernels: Sequence[Kernel]
    seconds: float = SECONDS
    regime: str = "cold"


def candidates(
    asked: FirstUse, store: Store, device: DeviceInfo, said: Predictions
) -> list[tuple[str, Config]]:
    """The configs to try first, the most promising first; all obey every rule of their kernel.

    Args:
        asked: The problem.
        store: Where champions of other shapes are.
        device: Where, in full.
        said: A model's word.
    """
    key, kernels = ProblemKey.of(asked.problem), {each.name: each for each in asked.kernels}

    def known() -> Iterator[tuple[str, Config]]:
        yield from said.starts
        yield from near_champions(store, asked.kernels, key, device)
        others = [each for each in published(key.operation) if each.record.device.kind == device.kind]
        for each in sorted(others, key=lambda each: nearness(key, device, each))[:NEIGHBOURS]:
            yield each.record.kernel, Config(each.record.config)
        yield from declared_starts(asked.kernels)

    found: dict[tuple[str, Config], None] = {}
    for name, config in known():
        kernel = kernels.get(name)
        if kernel is None or (name, config) in found:
            continue
        if legal(kernel, asked.problem, device, [config])[1][0]:
            found[name, Config({each.name: config[each.name] for each in kernel.parameters})] = None
            if len(found) == CONFIGS:
                break
    return list(found)


#: Rounds after the first one, at the most; none begins later than so many seconds after the first.
ROUNDS, FURTHER_S = 3, 8.0
#: A round that gains less, as a share of the time, is the last.
LEAST_GAIN = 0.002
#: Share of the seconds that may be spent before the finals.
BEFORE_FINALS = 0.5
#: Seconds after which what has not been compiled is left out, if anything has.
COMPILE_S = 5.0


class FirstUsePolicy(FixedList):
    """The configs that were chosen, then some rounds of others beside the fastest, while that helps.

    A model keeps a few of the configs that are legal, and has seen fewer at the problems near this one. What
    differs from these in a parameter or two it tells well. Each round is compiled side by side, then
    verified and timed one after the other.

    Attributes:
        leaderboard: The configs that were measured, with the counts of the trials.
        spent_s: Seconds of timing.
    """

    together_s: float | None = COMPILE_S

    def __init__(self, asked: FirstUse, chosen: Sequence[Named], predictions: Predictions) -> None:
        """Begins with the first round.

        Args:
            asked: The problem.
            chosen: What to try first, the most promising first.
            predictions: A model's word.
        """
        super().__init__({kernel.name: kernel for kernel in asked.kernels})
        self._asked, self._predictions = asked, predictions
        self.leaderboard, self.spent_s = Leaderboard(), 0.0
        self._round: Sequence[Named] = chosen
        self._rounds, self._begun_s = 0, time.monotonic()
        self._number, self._before_s = 0, math.inf
        self._tried: set[Named] = set()

    def propose(self, room: int, under_way: int) -> Sequence[Candidate]:
        """A round, once the one before is done."""
        if under_way or self._rounds > ROUNDS:
            return ()
        if self._rounds:
            self._round = self._beside()
        self._rounds += 1
        self._before_s = self.leaderboard.best_s or math.inf
        self._number += len(self._round)
        return [Candidate(kernel, config, self._number + at) for at, (kernel, config) in enumerate(self._round)]

    def _beside(self) -> Sequence[Named]:
        """What differs a little from the fastest; nothing after a round without gain, or if it is late."""
        gained = (self.leaderboard.best_s or math.inf) < self._before_s * (1 - LEAST_GAIN)
        if not gained or time.monotonic() - self._begun_s > FURTHER_S:
            self._rounds = ROUNDS
            return ()
        return self._predictions.beside(dict.fromkeys(self._tried, math.inf) | self.leaderboard.times_s)

    def ended(self) -> str:
        """The time before the finals is spent."""
        spent = self.leaderboard.times_s and self.spent_s > BEFORE_FINALS * self._asked.seconds
        return "its time is spent" if spent else ""

    def exhausted(self) -> str:
        """The last round was the last, or there was nothing for another."""
        return "" if self._round and self._rounds <= ROUNDS else "all rounds are over"

    def limits(self, candidate: Candidate) -> TimeLimits:
        """The best time so far."""
        return TimeLimits(self.leaderboard.best_s, spilling=self.leaderboard.best_s is None)

    def learn(self, candidate: Candidate, measurement: Measurement, code: CompiledConfig | None) -> None:
        """Ranks it."""
        self.spent_s += max(measurement.stages_s.get("time", 0.0), sum(measurement.samples_s))
        self._tried.add((candidate.kernel, candidate.config))
        self.leaderboard.add_trial(candidate.kernel, candidate.config, measurement, code)


def measure(
    asked: FirstUse, store: Store, crew: Crew, machine: MachineWatch, known: Store | None = None
) -> Champion | None:
    """Tries a problem's most promising configs, and crowns the best of them in finals against the library.

    Args:
        asked: The problem.
        store: Where records go.
        crew: The device's workers, open.
        machine: Sees what else goes on meanwhile.
        known: Has the model and the champions to begin with; `store` has when None.

    Returns:
        The champion, which may be slower than the library; None if no config could be measured.

    Raises:
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
        StoreTrouble: The database cannot be written.
    """
    worker, problem = crew.devices[0], asked.problem
    info, limit = worker.info, limit_for(problem.precision, None)
    said = Predictions(problem, asked.kernels, info, asked.regime, known or store)
    chosen = candidates(asked, known or store, info, said)
    if not chosen:
        return None
    name = study_name(ProblemKey.of(problem), info, asked.regime, asked.kernels, error_limit=limit)
    recorder = Recorder(store, problem, info, asked.regime, worker.versions, name)
    conditions = TimingConditions(asked.regime, error_limit=limit)
    with Session(crew, problem, recorder, conditions) as session:
        policy = FirstUsePolicy(asked, chosen, said)
        loop = Loop(session, policy)
        loop.prepare()
        loop.run()
        leaderboard = policy.leaderboard
        if not leaderboard.times_s:
            return None
        finals = Finals(session, asked.kernels, machine)
        left_s = max(asked.seconds - policy.spent_s, 0.0)
        return finals.play(leaderboard, leaderboard.progress.totals, left_s)


def answer_at_first_use(
    problem: Problem, crew: Crew, catalogue: Catalogue, regime: str = "cold", known: Store | None = None
) -> Answer:
    """What a lookup answers once a problem was measured as at its first use; the records are thrown away.

    Args:
        problem: The problem.
        crew: Workers of the device, which no other process uses; open or not.
        catalogue: Kernels.
        regime: How time is taken.
        known: Has the model and the champions to begin with, beside published ones.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
    """
    kernels = catalogue.serving(problem, crew.found[0].target)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/first.db") as store:
        crew.open()
        measure(FirstUse(problem, kernels, regime=regime), store, crew, MachineWatch(crew.found), known)
        info = crew.devices[0].info
        found = answer(store, ProblemKey.of(problem), info, regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(found, reasons=(*found.reasons, took))


#: Seconds without a question after which the process ends.
IDLE_S = 10.0
#: Seconds to wait for another process that uses the device, and between two attempts.
LOCK_S, AGAIN_S = 30.0, 0.2
#: Seconds beside those of waiting and timing after which a question ends the process, whatever hangs.
HANGS_S = 120.0
#: How a question may end.
MEASURED, KNOWN, NOTHING, BUSY, FAILED = "measured", "known", "nothing", "busy", "failed"


class Devices:
    """Devices that stay open from one question to the next."""

    def __init__(self) -> None:
        self._open: dict[str, Crew] = {}

    def crew(self, found: DetectedDevice) -> Crew:
        """The workers of a device.

        Raises:
            DeviceTrouble: The device cannot be opened.
        """
        if found.spec not in self._open:
            self._open[found.spec] = Crew([found], CONFIGS)
        self._open[found.spec].open()
        return self._open[found.spec]

    def close(self) -> None:
        """Ends the workers."""
        while self._open:
            self._open.popitem()[1].close()


def answered(asked: Mapping[str, Any], devices: Devices) -> tuple[str, str]:
    """Measures what is asked, unless it is known by now.

    Args:
        asked: ``problem``, ``device``, ``db`` and ``seconds``.
        devices: Devices that are open.

    Returns:
        How it ended, and the reason for people where nothing was measured.
    """
    told = asked["problem"]
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            operation = builtin_now().operation(told["operation"])
            words = told["dtype"], told["layout"], told["precision"], told.get("epilogue", "")
            problem = operation.problem(told["shape"], *words)
            found = find(asked["device"])
            with Store.open(asked["db"]) as store, occupied(asked["db"], (found,), f"first use of {problem}"):
                return _measured(problem, found, store, asked["seconds"], devices)
        except LockedByAnother as error:
            if time.monotonic() > until_s:
                return BUSY, str(error)
            time.sleep(AGAIN_S)
        except DeviceTrouble as error:
            devices.close()
            return FAILED, str(error)
        except TunerError as error:
            return FAILED, str(error)
        except Exception as error:  # the program goes on without, and is told why
            devices.close()
            return FAILED, f"{type(error).__name__}: {error}"


def _measured(
    problem: Problem, found: DetectedDevice, store: Store, seconds: float, devices: Devices
) -> tuple[str, str]:
    """As `answered`, with the locks held."""
    crew = devices.crew(found)
    # Another process may have measured it while this one waited.
    if answer(store, ProblemKey.of(problem), crew.devices[0].info).match == "exact":
        return KNOWN, ""
    kernels = builtin_now().serving(problem, found.target)
    champion = measure(FirstUse(problem, kernels, seconds), store, crew, MachineWatch((found,)))
    if champion is None:
        return NOTHING, "none of its most promising configs could be measured"
    return MEASURED, ""


def questions(descriptor: int) -> Iterator[dict[str, Any]]:
    """The lines of an input, until it ends or nothing comes for a while."""
    rest = b""
    while select.select([descriptor], [], [], IDLE_S)[0]:
        read = os.read(descriptor, 1 << 16)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            yield json.loads(line)
            if _ended(descriptor):
                return


def _ended(descriptor: int) -> bool:
    """Whether whoever writes has gone: what was asked beyond this is not measured."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def serve(descriptor: int, replies: TextIO) -> None:
    """Answers the questions of an input, one after the other.

    Args:
        descriptor: The input.
        replies: Where to say how each ended.
    """
    with contextlib.closing(Devices()) as devices:
        for asked in questions(descriptor):
            signal.alarm(int(LOCK_S + HANGS_S + 2 * asked["seconds"]))
            outcome, why = answered(asked, devices)
            signal.alarm(0)
            with contextlib.suppress(BrokenPipeError):
                replies.write(json.dumps({"id": asked["id"], "outcome": outcome, "why": why}) + "\n")
                replies.flush()


def main() -> None:
    """Serves standard input; what anything prints goes nowhere."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(0, replies)
    with contextlib.suppress(BrokenPipeError):
        replies.close()


if __name__ == "__main__":
    main()

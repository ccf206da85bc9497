"""Compiles the configs of a first use side by side, then verifies and times one after the other; in rounds."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.machine_load import MachineWatch
from tuner.lookup import Answer, answer
from tuner.lookup.legality import legal
from tuner.results.measurement import Measurement
from tuner.results.objectives import limit_for
from tuner.results.record import Champion
from tuner.search import Candidate
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.study.finals import Finals
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import Choices, Limits, Loop
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, study_name
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
    key, kernels = key_of(asked.problem), {each.name: each for each in asked.kernels}

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


class FirstUsePolicy(Choices):
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

    def limits(self, candidate: Candidate) -> Limits:
        """The best time so far."""
        return Limits(self.leaderboard.best_s, spilling=self.leaderboard.best_s is None)

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
    name = study_name(key_of(problem), info, asked.regime, asked.kernels, error_limit=limit)
    recorder = Recorder(store, problem, info, asked.regime, worker.versions, name)
    conditions = Conditions(asked.regime, error_limit=limit)
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
        found = answer(store, key_of(problem), info, regime, catalogue=catalogue)
    took = f"measured at first use, which took {time.monotonic() - begun_s:.1f} s with opening the device"
    return replace(found, reasons=(*found.reasons, took))

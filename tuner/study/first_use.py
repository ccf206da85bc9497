"""Compiles the configs of a first use side by side, then verifies and times one after the other; in rounds."""

from __future__ import annotations

import math
import select
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.machine_load import MachineWatch
from tuner.lookup import Answer, answer
from tuner.lookup.legality import legal
from tuner.results.measurement import Measurement
from tuner.results.objectives import limit_for
from tuner.results.record import Champion, Role
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.study.finals import Finals
from tuner.study.leaderboard import Leaderboard
from tuner.study.progress import Progress
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, study_name
from tuner.study.starting import Predictions, declared_starts, near_champions, nearness
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


def compile_side_by_side(
    session: Session, kernels: Sequence[Kernel], chosen: Sequence[tuple[str, Config]], prepare: bool = True
) -> dict[tuple[str, Config], CompiledConfig | Measurement]:
    """Compiles all at once, while the device makes the arrays if it has none; what takes too long is left out.

    Args:
        session: Compiles, and prepares the device.
        kernels: The kernels by which configs are named.
        chosen: The configs, the most promising first; the result has their order.
        prepare: Whether the device has no arrays of the problem yet.

    Returns:
        Machine code, or how compiling failed.

    Raises:
        DeviceTrouble: The device or the compiler fails.
    """
    named, pool, begun_s = {each.name: each for each in kernels}, session.pool, time.monotonic()
    for number, (kernel, config) in enumerate(chosen):
        pool.submit(number, render(named[kernel], session.problem, config))
    if prepare:
        session.prepare()
    found: dict[int, CompiledConfig | Measurement] = {}
    while len(found) < len(chosen):
        for each in pool.ready():
            result = each.compiled_config or each.failure
            assert result is not None, "code or a failure"
            found[each.ticket] = result
        compiled = any(isinstance(each, CompiledConfig) for each in found.values())
        if compiled and time.monotonic() - begun_s > COMPILE_S:
            break
        if pool.pending:
            select.select(pool.channels, [], [], 0.2)
    pool.cancel()
    return {chosen[number]: found[number] for number in sorted(found)}


@dataclass
class Timed:
    """What was timed.

    Attributes:
        progress: Counts of the trials.
        board: The configs that were measured.
        tried: All that were tried, these and those that failed.
        spent_s: Seconds of timing.
    """

    progress: Progress = field(default_factory=Progress)
    board: Leaderboard = field(init=False)
    tried: set[tuple[str, Config]] = field(default_factory=set)
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        self.board = Leaderboard(progress=self.progress)

    def enough(self, asked: FirstUse) -> bool:
        """Whether the time before the finals is spent."""
        return bool(self.board.times_s) and self.spent_s > BEFORE_FINALS * asked.seconds


def time_in_order(
    session: Session,
    asked: FirstUse,
    compiled: Mapping[tuple[str, Config], CompiledConfig | Measurement],
    timed: Timed,
) -> None:
    """Verifies and times configs until a share of the time is spent, and stores each.

    Args:
        session: Measures and stores.
        asked: The problem.
        compiled: The configs, the most promising first; those that did not compile are stored, too.
        timed: What was timed before; these are added.

    Raises:
        DeviceTrouble: The device stays unwell.
    """
    kernels = {each.name: each for each in asked.kernels}
    for (name, config), code in compiled.items():
        if timed.enough(asked):
            break
        done = code if isinstance(code, Measurement) else session.measure(code, timed.board.best_s)
        timed.spent_s += max(done.stages_s.get("time", 0.0), sum(done.samples_s))
        timed.tried.add((name, config))
        session.add(Role.TRIAL, kernels[name], config, done)
        timed.board.add_trial(name, config, done, None if isinstance(code, Measurement) else code)


def time_in_rounds(
    session: Session, asked: FirstUse, chosen: Sequence[tuple[str, Config]], said: Predictions
) -> Timed:
    """Times the configs that were chosen, then some rounds of others beside the fastest, while that helps.

    A model keeps a few of the configs that are legal, and has seen fewer at the problems near this one. What
    differs from these in a parameter or two it tells well.

    Args:
        session: Compiles, measures and stores.
        asked: The problem.
        chosen: What to try first, the most promising first.
        said: A model's word.

    Raises:
        DeviceTrouble: The device stays unwell, or the compiler fails.
    """
    timed, begun_s = Timed(), time.monotonic()
    for number in range(1 + ROUNDS):
        before_s = timed.board.best_s or math.inf
        compiled = compile_side_by_side(session, asked.kernels, chosen, prepare=not number)
        time_in_order(session, asked, compiled, timed)
        best_s = timed.board.best_s or math.inf
        late = timed.enough(asked) or time.monotonic() - begun_s > FURTHER_S
        if late or not best_s < before_s * (1 - LEAST_GAIN):
            break
        left = dict.fromkeys(timed.tried, math.inf) | timed.board.times_s
        chosen = said.beside(left)
        if not chosen:
            break
    return timed


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
        timed = time_in_rounds(session, asked, chosen, said)
        if not timed.board.times_s:
            return None
        finals = Finals(session, asked.kernels, machine)
        return finals.play(timed.board, timed.progress.totals, max(asked.seconds - timed.spent_s, 0.0))


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

"""A problem at its first use: few configs are compiled, verified and timed, and finals crown the best.

What a search would begin with is all that is tried here: a model's best predictions, or what is known of the
nearest shapes. Records and champion are as any study's, so that later studies go on from them.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.machine_load import MachineWatch
from tuner.lookup.legality import legal
from tuner.measuring.bench import CompiledConfig
from tuner.published import champions as published
from tuner.results.error_limit import limit_for
from tuner.results.record import Champion, Role
from tuner.store import Store
from tuner.study.finals import Finals
from tuner.study.leaderboard import Leaderboard
from tuner.study.predictions import Predictions
from tuner.study.progress import Progress
from tuner.study.recorder import Recorder
from tuner.study.session import Conditions, Session
from tuner.study.setup import key_of, nearness, starting_points, study_name
from tuner.workers.compile_pool import workers_for
from tuner.workers.device_worker import DeviceWorker

#: Configs that are tried.
CONFIGS = 8
#: Seconds of timing at the most, unless given.
SECONDS = 2.0
#: Share of these that may be spent before the finals.
BEFORE_FINALS = 0.5
#: Seconds after which what has not been compiled is left out, if anything has.
COMPILE_S = 5.0
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


def candidates(asked: FirstUse, store: Store, device: DeviceInfo) -> list[tuple[str, Config]]:
    """The configs to try, the most promising first; all obey every rule of their kernel.

    Args:
        asked: The problem.
        store: Where champions of other shapes are.
        device: Where, in full.
    """
    key, kernels = key_of(asked.problem), {each.name: each for each in asked.kernels}

    def known() -> Iterator[tuple[str, Config]]:
        yield from Predictions(asked.problem, asked.kernels, device, asked.regime).starts
        yield from starting_points(store, (), key, device)
        others = [each for each in published(key.operation) if each.record.device.kind == device.kind]
        for each in sorted(others, key=lambda each: nearness(key, device, each))[:NEIGHBOURS]:
            yield each.record.kernel, Config(each.record.config)
        yield from starting_points(store, asked.kernels, key, device)

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


def measure(
    asked: FirstUse, store: Store, workers: Sequence[DeviceWorker], machine: MachineWatch
) -> Champion | None:
    """Tries a problem's most promising configs, and crowns the best of them in finals against the library.

    Args:
        asked: The problem.
        store: Where records go.
        workers: The device, open.
        machine: Sees what else goes on meanwhile.

    Returns:
        The champion, which may be slower than the library; None if no config could be measured.

    Raises:
        InputError: The problem does not fit into memory.
        DeviceTrouble: The device stays unwell.
        StoreTrouble: The database cannot be written.
    """
    problem, info, limit = asked.problem, workers[0].info, limit_for(asked.problem.precision, None)
    chosen = candidates(asked, store, info)
    if not chosen:
        return None
    name = study_name(key_of(problem), info, asked.regime, asked.kernels, error_limit=limit)
    recorder = Recorder(store, problem, info, asked.regime, workers[0].versions, name)
    conditions = Conditions(asked.regime, error_limit=limit)
    pool_size = min(len(chosen), workers_for(len(os.sched_getaffinity(0)), 1))
    with Session(workers, problem, recorder, conditions, pool_size) as session:
        compiled = _compiled(session, asked.kernels, chosen)
        progress = Progress()
        board, spent_s = _timed(session, asked, compiled, progress)
        if not board.times_s:
            return None
        finals = Finals(session, asked.kernels, machine)
        return finals.play(board, progress.totals, max(asked.seconds - spent_s, 0.0))


def _compiled(
    session: Session, kernels: Sequence[Kernel], chosen: Sequence[tuple[str, Config]]
) -> dict[tuple[str, Config], CompiledConfig]:
    """Compiles all at once while the device makes the arrays; what takes too long is left out."""
    named, pool, begun_s = {each.name: each for each in kernels}, session.pool, time.monotonic()
    for number, (kernel, config) in enumerate(chosen):
        pool.submit(number, render(named[kernel], session.problem, config))
    session.prepare()
    found: dict[int, CompiledConfig] = {}
    while pool.pending and not (found and time.monotonic() - begun_s > COMPILE_S):
        select.select(pool.channels, [], [], 0.2)
        ready = pool.ready()
        found |= {each.ticket: each.compiled_config for each in ready if each.compiled_config is not None}
    found |= {each.ticket: each.compiled_config for each in pool.ready() if each.compiled_config is not None}
    pool.cancel()
    return {chosen[number]: found[number] for number in sorted(found)}


def _timed(
    session: Session,
    asked: FirstUse,
    compiled: dict[tuple[str, Config], CompiledConfig],
    progress: Progress,
) -> tuple[Leaderboard, float]:
    """Verifies and times the configs until a share of the time is spent; also returns the seconds of timing."""
    kernels, board, spent_s = {each.name: each for each in asked.kernels}, Leaderboard(progress=progress), 0.0
    for (name, config), code in compiled.items():
        if board.times_s and spent_s > BEFORE_FINALS * asked.seconds:
            break
        measurement = session.measure(code, board.best_s)
        spent_s += measurement.stages_s.get("time", 0.0)
        session.add(Role.TRIAL, kernels[name], config, measurement)
        board.add_trial(name, config, measurement, code)
    return board, spent_s

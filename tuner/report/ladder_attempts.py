"""A step of a ladder before the finals: tuned briefly, or its declared config measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Parameter, Space, Value
from tuner.report.rungs import Step
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.search import BackgroundSearch, Known, Search, SearchOptions
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import Loop
from tuner.study.progress import FINALS_LEAST_S, FINALS_MOST_S, FINALS_SHARE, TimeBudget
from tuner.study.session import Session
from tuner.study.study import SearchPolicy
from tuner.workers.bench import CompiledConfig

#: Seconds that one config may take, however slow the first steps are.
LIMIT_S = 560.0


@dataclass
class Attempt:
    """A rung before the finals.

    Attributes:
        step: The step of the ladder.
        config: Its best or declared config.
        measurement: Measurement of that config.
        compiled_config: Its machine code; None if it cannot play the finals.
        trials: Number of configs tried.
    """

    step: Step
    config: Config
    measurement: Measurement
    compiled_config: CompiledConfig | None = None
    trials: int = 1


def attempt(step: Step, session: Session, seconds: float | None, seed: int) -> Attempt | None:
    """Tunes a step, or measures its declared config.

    Args:
        step: The step.
        session: Prepared for the problem.
        seconds: Seconds for tuning; None for the declared config.
        seed: Seed of the search.

    Returns:
        None if no config of the step is legal.
    """
    space = pinned_space(step.kernel, step.pins, session.problem, session.worker.info)
    if not len(space):
        return None
    if seconds is not None and len(space) > 1:
        starts = first_configs(step.kernel, step.pins, space)
        best = tuned(step.kernel, space, starts, session, seconds, seed)
        if best is not None:
            found = Measurement(Outcome.MEASURED, samples_s=(best.time_s,))
            return Attempt(step, best.config, found, best.compiled_config, best.trials)
    config = declared_config(step.kernel, step.pins, space)
    compiled_config, measurement = measured(session, step.kernel, config)
    session.add(Role.TRIAL, step.kernel, config, measurement)
    return Attempt(step, config, measurement, compiled_config)


def measured(session: Session, kernel: Kernel, config: Config) -> tuple[CompiledConfig | None, Measurement]:
    """Compiles and measures one config to the end; a step of a ladder may be slow.

    Returns:
        The machine code, None if it was not measured; and the measurement.
    """
    compiled = session.compile(kernel, config)
    if isinstance(compiled, Measurement):
        return None, compiled
    measurement = session.measure(compiled, limit_s=LIMIT_S)
    return compiled if measurement.outcome is Outcome.MEASURED else None, measurement


def pinned_space(kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo) -> Space:
    """Returns the legal configs in which the pinned parameters have their values.

    A rule that is for speed alone is dropped if it excludes all of the pinned values, so that a step is shown
    as published. Without pins, a kernel meant for other shapes has no configs left.
    """
    parameters = [
        Parameter(each.name, (pins[each.name],), each.scale) if each.name in pins else each
        for each in kernel.parameters
    ]
    found = Space.build(parameters, kernel.constraints, problem, device)
    if len(found) or not pins:
        return found
    return Space.build(parameters, [each for each in kernel.constraints if not each.for_speed], problem, device)


def first_configs(kernel: Kernel, pins: Mapping[str, Value], space: Space) -> list[Config]:
    """Returns the legal ones of the kernel's declared first configs, with pins applied."""
    wanted = [Config({**each, **pins}) for each in kernel.first_configs()]
    ordered = [Config({each.name: config[each.name] for each in space.parameters}) for config in wanted]
    return [config for config in ordered if config in space]


def declared_config(kernel: Kernel, pins: Mapping[str, Value], space: Space) -> Config:
    """Returns the first declared config that is legal; else the most similar legal config."""
    known = first_configs(kernel, pins, space)
    if known:
        return known[0]
    wanted = kernel.default_config()
    if wanted is None:
        found: Config = space[0]
        return found
    codes = [
        each.values.index(value) if (value := pins.get(each.name, wanted[each.name])) in each.values else 0
        for each in space.parameters
    ]
    differing = numpy.abs(space.codes.astype(int) - numpy.array(codes))
    # Fewest different parameters first, then the nearest values.
    order = numpy.lexsort((differing.sum(axis=1), (differing > 0).sum(axis=1)))
    nearest: Config = space[int(order[0])]
    return nearest


@dataclass(frozen=True)
class TunedStep:
    """The best config of a step's search.

    Attributes:
        config: The config.
        time_s: Its median in seconds.
        compiled_config: Its machine code.
        trials: Number of configs tried.
    """

    config: Config
    time_s: float
    compiled_config: CompiledConfig
    trials: int


def tuned(
    kernel: Kernel, space: Space, starts: Sequence[Config], session: Session, seconds: float, seed: int
) -> TunedStep | None:
    """Searches the space of one kernel.

    Args:
        kernel: The kernel.
        space: Its legal configs.
        starts: Configs to try first.
        session: Prepared for the problem.
        seconds: Seconds for the search.
        seed: Seed of the search.

    Returns:
        None if no config could be measured.
    """
    known = Known(starts=[(kernel.name, config) for config in starts])
    options = SearchOptions(seed, session.recorder.study)
    search = BackgroundSearch(Search({kernel.name: space}, options, known), inline=session.shares_cores)
    budget = TimeBudget(_with_finals(seconds), lambda progress: None)
    leaderboard = Leaderboard(progress=budget.progress)
    try:
        Loop(session, SearchPolicy([kernel], search, leaderboard), budget).run()
    finally:
        search.close()
        session.pool.cancel()
    timed = [each for each in leaderboard.times_s if each in leaderboard.compiled_configs]
    if not timed:
        return None
    best = min(timed, key=lambda each: leaderboard.times_s[each])
    compiled_config = leaderboard.compiled_configs[best]
    return TunedStep(best[1], leaderboard.times_s[best], compiled_config, budget.progress.trials)


def _with_finals(seconds: float) -> float:
    """Returns the budget whose search takes this time, as a share is kept for the finals of all steps."""
    share = min(seconds * FINALS_SHARE / (1 - FINALS_SHARE), FINALS_MOST_S)
    return seconds + max(share, FINALS_LEAST_S)

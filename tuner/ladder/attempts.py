"""A step of a ladder before the finals: tuned briefly, or its declared config measured."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, Space
from tuner.ladder.spaces import declared_config, first_configs, pinned_space
from tuner.ladder.steps import Step
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.search import Known, Search, SearchOptions
from tuner.search.background import AskAhead
from tuner.study.budget import FINALS_LEAST_S, FINALS_MOST_S, FINALS_SHARE, TimeBudget
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.session import Session

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
        tuned = _tuned(step, space, session, seconds, seed)
        if tuned is not None:
            return tuned
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


def _tuned(step: Step, space: Space, session: Session, seconds: float, seed: int) -> Attempt | None:
    kernel, study = step.kernel, session.recorder.study
    starts = [(kernel.name, config) for config in first_configs(kernel, step.pins, space)]
    search = AskAhead(
        Search({kernel.name: space}, SearchOptions(seed, study), Known(starts=starts)),
        inline=session.shares_cores,
    )
    budget = TimeBudget(_with_finals(seconds), lambda progress: None)
    leaderboard = Leaderboard(progress=budget.progress)
    try:
        SearchLoop(search, session, leaderboard, budget).run({kernel.name: kernel}, None)
    finally:
        search.close()
        session.pool.cancel()
    known = [each for each in leaderboard.times_s if each in leaderboard.compiled_configs]
    if not known:
        return None
    best = min(known, key=lambda each: leaderboard.times_s[each])
    found = Measurement(Outcome.MEASURED, samples_s=(leaderboard.times_s[best],))
    return Attempt(step, best[1], found, leaderboard.compiled_configs[best], budget.progress.trials)


def _with_finals(seconds: float) -> float:
    """Returns the budget whose search takes this time, as a share is kept for the finals of all steps."""
    share = min(seconds * FINALS_SHARE / (1 - FINALS_SHARE), FINALS_MOST_S)
    return seconds + max(share, FINALS_LEAST_S)

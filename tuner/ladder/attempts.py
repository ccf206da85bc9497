"""A step of a ladder before the finals: tuned briefly, or its declared config measured."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.ladder.spaces import declared_config, first_configs, pinned_space
from tuner.ladder.tuning import tuned
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.results.steps import Step
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

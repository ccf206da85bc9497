"""Compiles the configs of a first use side by side, then verifies and times one after the other; in rounds."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel, render
from tuner.declare.space import Config
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement
from tuner.results.record import Role
from tuner.study.first_use_configs import FirstUse
from tuner.study.leaderboard import Leaderboard
from tuner.study.predictions import Predictions
from tuner.study.progress import Progress
from tuner.study.session import Session

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

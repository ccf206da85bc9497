"""The brief search of a ladder step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, Space
from tuner.search import Known, Search, SearchOptions
from tuner.search.background import BackgroundSearch
from tuner.study.budget import FINALS_LEAST_S, FINALS_MOST_S, FINALS_SHARE, TimeBudget
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import SearchLoop
from tuner.study.session import Session
from tuner.workers.bench import CompiledConfig


@dataclass(frozen=True)
class Tuned:
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
) -> Tuned | None:
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
        SearchLoop(search, session, leaderboard, budget).run({kernel.name: kernel}, None)
    finally:
        search.close()
        session.pool.cancel()
    timed = [each for each in leaderboard.times_s if each in leaderboard.compiled_configs]
    if not timed:
        return None
    best = min(timed, key=lambda each: leaderboard.times_s[each])
    compiled_config = leaderboard.compiled_configs[best]
    return Tuned(best[1], leaderboard.times_s[best], compiled_config, budget.progress.trials)


def _with_finals(seconds: float) -> float:
    """Returns the budget whose search takes this time, as a share is kept for the finals of all steps."""
    share = min(seconds * FINALS_SHARE / (1 - FINALS_SHARE), FINALS_MOST_S)
    return seconds + max(share, FINALS_LEAST_S)

"""When to take how many samples: screening, the stopping rule, and interleaved finals.

Flush and held launches are the device's (`Device.samples_s`), inputs and checks `tuner.measuring.sampling`'s;
the rules here follow NVBench where they can (its documentation and ``measure_cold``): at least ten samples,
stop when the noise is below 0.5 % or does not fall any more, and a limit on the time.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.results.statistics import noise

#: NVBench's default least number of samples of a cold measurement.
MIN_SAMPLES = 10
#: NVBench's default target of stdev/mean.
MAX_NOISE = 0.005
#: Most samples of one config while screening: the finals take more.
MAX_SAMPLES = 40
#: Device time spent on one config while screening, at the most.
SCREEN_LIMIT_S = 0.5
#: A first sample this much slower than the best so far cannot be noise: one more and the config is pruned.
HOPELESS = 1.5
#: So much slower than the best so far, and so many seconds on top for what happens once (threads that start,
#: memory that is touched first), the first run of all tells enough: the config is pruned by its time alone.
HOPELESS_FIRST, ONCE_S = 5.0, 0.25
#: A config whose fastest sample is this much slower than the best median so far cannot win.
CANNOT_WIN = 1.08
#: Samples before that is judged.
JUDGED_AFTER = 3
#: Rounds of the finals; the least of all only where ten would take twice the budget.
LEAST_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 3, 10, 60
#: Samples of each compiled config in a round, taken back to back; the round's time is their median.
SAMPLES_PER_ROUND = 3


@dataclass(frozen=True)
class Screened:
    """Samples of a config, and whether it was stopped early.

    Attributes:
        samples_s: In the order taken.
        pruned: Why it was stopped; empty when it was measured to the end.
    """

    samples_s: tuple[float, ...]
    pruned: str = ""


def screen_by(take_s: Callable[[int], list[float]], incumbent_s: float | None) -> Screened:
    """Times a config until it is known well enough, or known to lose.

    Args:
        take_s: Takes so many more samples, from a device or a recording; seconds. Whoever is timed has run
            before, so that nothing loads or compiles now.
        incumbent_s: Best median so far, seconds; None when there is none.
    """
    samples = take_s(1)
    best = incumbent_s if incumbent_s is not None else float("inf")
    if samples[0] > HOPELESS * best:
        samples += take_s(1)
        if min(samples) > HOPELESS * best:
            return Screened(tuple(samples), _bound(min(samples), best))
    samples += take_s(JUDGED_AFTER - 1)
    if min(samples) > CANNOT_WIN * best:
        return Screened(tuple(samples), _bound(min(samples), best))
    while not _settled(samples):
        samples += take_s(min(5, MAX_SAMPLES - len(samples)))
    return Screened(tuple(samples))


def lost_at_first(first_s: float, incumbent_s: float | None) -> Screened | None:
    """What there is to say of a config whose first run took so long; None where it is to be timed.

    Args:
        first_s: Seconds of the run that was verified, waiting for the device included.
        incumbent_s: Best median so far, seconds; None when there is none.
    """
    if incumbent_s is None or first_s <= HOPELESS_FIRST * incumbent_s + ONCE_S:
        return None
    return Screened(
        (first_s,), f"cannot win: its first run takes {first_s / incumbent_s:.3g} times the best median"
    )


def _bound(fastest_s: float, best_s: float) -> str:
    return f"cannot win: its fastest sample takes {fastest_s / best_s:.3g} times the best config's median"


def _settled(samples: Sequence[float]) -> bool:
    if len(samples) >= MAX_SAMPLES or sum(samples) > SCREEN_LIMIT_S:
        return True
    return len(samples) >= MIN_SAMPLES and noise(samples) < MAX_NOISE


def interleave(players: Sequence[Callable[[int], list[float]]], budget_s: float) -> list[tuple[float, ...]]:
    """Times several things in alternation, so that drift of clocks and temperature meets all alike.

    Each round takes every compiled config once, beginning one further each time.

    Args:
        players: For each compiled config what takes so many more samples of it; seconds.
        budget_s: Wall time after which no round beyond the least number begins; seconds.

    Returns:
        For each compiled config one time per round, seconds.

    Raises:
        LaunchFailed: A run failed.
    """
    rounds: list[list[float]] = [[] for _ in players]
    start_s = time.monotonic()
    least, samples = MIN_ROUNDS, 1
    for number in itertools.count():
        spent_s = time.monotonic() - start_s
        if number == 1:
            # The first round, of one sample each, tells what a round costs.
            samples = SAMPLES_PER_ROUND if SAMPLES_PER_ROUND * MIN_ROUNDS * spent_s <= budget_s else 1
            least = MIN_ROUNDS if MIN_ROUNDS * spent_s <= 2 * budget_s else LEAST_ROUNDS
        if number >= MAX_ROUNDS or (number >= least and spent_s > budget_s):
            break
        for offset in range(len(players)):
            index = (number + offset) % len(players)
            rounds[index].append(statistics.median(players[index](samples)))
    return [tuple(times) for times in rounds]

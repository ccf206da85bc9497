"""Selects the finalists and decides who wins the finals. Data in, decisions out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome, compare
from tuner.results.record import Pair

#: Challengers beside the reigning champion.
FINALISTS = 4
#: A config slower than the best of the search by this factor is not a finalist.
FINALIST_WITHIN = 1.10


@dataclass(frozen=True)
class Judged:
    """How the finals ended.

    Attributes:
        winner: Index of the winner.
        verdict: ``first`` if there was no reigning champion. Else how the best challenger compares with it:
            ``faster`` (the challenger wins), ``same``, ``slower`` or ``ambiguous`` (the champion stays).
    """

    winner: int
    verdict: str


def shortlist(
    leaderboard: Mapping[tuple[str, Config], float], reigning: tuple[str, Config] | None
) -> list[tuple[str, Config]]:
    """Returns the finalists: the reigning champion first, then the best configs of the search.

    Args:
        leaderboard: (kernel, config) -> median in seconds.
        reigning: Kernel and config of the reigning champion, if there is one.
    """
    ranked = sorted(leaderboard, key=lambda each: leaderboard[each])
    close = [each for each in ranked if leaderboard[each] <= FINALIST_WITHIN * leaderboard[ranked[0]]]
    challengers = [each for each in close if each != reigning][:FINALISTS]
    return [*([reigning] if reigning else []), *challengers]


def threads_of(
    finalists: Iterable[tuple[str, Mapping[str, Any]]], kernels: Mapping[str, Kernel]
) -> tuple[int, ...]:
    """Returns the numbers of CPU threads that finalists use, in ascending order.

    Args:
        finalists: Names of kernels, each with a config.
        kernels: Declarations by name; a kernel without `Kernel.threads` adds none.
    """
    declared = ((kernels[kernel].threads, config) for kernel, config in finalists)
    return tuple(sorted({int(config[threads]) for threads, config in declared if threads}))


def judge(measured: Sequence[Measurement], first_reigns: bool, burdens: Sequence[float]) -> Judged | None:
    """Decides which finalist becomes champion.

    If there is no reigning champion, the lowest median wins, or the simplest finalist whose time counts as the
    same. If there is one, a challenger must be clearly faster: ``same`` or ``ambiguous`` keeps the champion.

    Args:
        measured: Times by round for each finalist; none for those that failed.
        first_reigns: True if the first finalist is the reigning champion.
        burdens: Complexity of each finalist, for device and reader; lower is simpler.

    Returns:
        None if no finalist could be measured.
    """
    timed = [
        number for number, each in enumerate(measured) if each.outcome is Outcome.MEASURED and each.samples_s
    ]
    if not timed:
        return None
    reigns = first_reigns and 0 in timed
    challengers = [number for number in timed if number != 0 or not reigns]
    if not challengers:
        return Judged(0, "same")
    best = _simplest_of_the_best(measured, challengers, burdens)
    if not reigns:
        return Judged(best, "faster" if first_reigns else "first")
    verdict = compare(measured[best].samples_s, measured[0].samples_s).verdict
    return Judged(best if verdict == "faster" else 0, verdict)


def _simplest_of_the_best(
    measured: Sequence[Measurement], among: Sequence[int], burdens: Sequence[float]
) -> int:
    fastest = min(among, key=lambda number: measured[number].time_s or 0.0)
    same = [
        number
        for number in among
        if number == fastest
        or compare(measured[fastest].samples_s, measured[number].samples_s).verdict == "same"
    ]
    return min(same, key=lambda number: (burdens[number], number != fastest))


def pairs_of(played: Sequence[tuple[str, Measurement]]) -> tuple[Pair, ...]:
    """Returns all pairs measured in the same rounds, those with the first finalist first.

    Args:
        played: Names and times by round.
    """
    timed = [(name, each) for name, each in played if each.samples_s]
    return tuple(
        Pair(one, other, theirs.time_s or 0.0, compare(ours.samples_s, theirs.samples_s))
        for (one, ours), (other, theirs) in itertools.combinations(timed, 2)
    )

"""Who plays the finals, and who wins them. Data in, decisions out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Pair
from tuner.results.statistics import compare

#: Challengers beside the reigning champion.
FINALISTS = 4
#: A config this much slower than the best in the search is no finalist.
FINALIST_WITHIN = 1.10


@dataclass(frozen=True)
class Judged:
    """How the finals ended.

    Attributes:
        winner: Index of the winner.
        verdict: ``first`` where nobody reigned; else the best challenger against the reigning champion:
            ``faster`` (it took the crown), ``same``, ``slower`` or ``ambiguous`` (the champion keeps it).
    """

    winner: int
    verdict: str


def shortlist(
    leaderboard: Mapping[tuple[str, Config], float], reigning: tuple[str, Config] | None
) -> list[tuple[str, Config]]:
    """The finalists: the reigning champion first, then the best of the search.

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
    """The numbers of CPU threads that finalists use, in order.

    Args:
        finalists: Names of kernels, each with a config.
        kernels: Declarations by name; a kernel that declares no `Kernel.threads` has no number.
    """
    declared = ((kernels[kernel].threads, config) for kernel, config in finalists)
    return tuple(sorted({int(config[threads]) for threads, config in declared if threads}))


def judge(measured: Sequence[Measurement], first_reigns: bool, burdens: Sequence[float]) -> Judged | None:
    """Decides who holds the crown.

    Without a reigning champion the lowest median wins, or the simplest of those that are the same as it.
    With one, a challenger must be faster beyond doubt: what is the same or ambiguous leaves the crown where
    it is.

    Args:
        measured: Times by round for each finalist; those that failed have none.
        first_reigns: True where the first is the reigning champion.
        burdens: How much each finalist asks of device and reader; the lesser is simpler.

    Returns:
        None where nobody could be measured.
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
    """Every two that were measured in the same rounds, those with the first of all first.

    Args:
        played: Names and times by round.
    """
    timed = [(name, each) for name, each in played if each.samples_s]
    return tuple(
        Pair(one, other, theirs.time_s or 0.0, compare(ours.samples_s, theirs.samples_s))
        for (one, ours), (other, theirs) in itertools.combinations(timed, 2)
    )

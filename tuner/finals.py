"""Who plays the finals, and who wins them. Data in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.measurement import Measurement, Outcome
from tuner.space import Config
from tuner.statistics import compare

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
    standings: Mapping[tuple[str, Config], float], reigning: tuple[str, Config] | None
) -> list[tuple[str, Config]]:
    """The finalists: the reigning champion first, then the best of the search.

    Args:
        standings: (kernel, config) -> median in seconds.
        reigning: Kernel and config of the reigning champion, if there is one.
    """
    ranked = sorted(standings, key=lambda each: standings[each])
    close = [each for each in ranked if standings[each] <= FINALIST_WITHIN * standings[ranked[0]]]
    challengers = [each for each in close if each != reigning][:FINALISTS]
    return [*([reigning] if reigning else []), *challengers]


def judge(measured: Sequence[Measurement], first_reigns: bool) -> Judged | None:
    """Decides who holds the crown.

    Without a reigning champion the lowest median wins. With one, the challenger of lowest median must be
    faster beyond doubt: what is the same or ambiguous leaves the crown where it is.

    Args:
        measured: Times by round for each finalist; those that failed have none.
        first_reigns: True where the first is the reigning champion.

    Returns:
        None where nobody could be measured.
    """
    timed = [
        number for number, each in enumerate(measured) if each.outcome is Outcome.MEASURED and each.samples_s
    ]
    if not timed:
        return None
    best = min(timed, key=lambda number: measured[number].time_s or 0.0)
    if not first_reigns or 0 not in timed:
        return Judged(best, "first" if not first_reigns else "faster")
    challengers = [number for number in timed if number != 0]
    if not challengers:
        return Judged(0, "same")
    challenger = min(challengers, key=lambda number: measured[number].time_s or 0.0)
    verdict = compare(measured[challenger].samples_s, measured[0].samples_s).verdict
    return Judged(challenger if verdict == "faster" else 0, verdict)

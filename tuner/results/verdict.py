"""Who plays the finals, who wins them, and which champion answers then. Data in, decisions out."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.results.measurement import CORE_TYPE, EARLIER, SEARCH, Measurement, Outcome, compare
from tuner.results.record import Id, Pair, ProblemKey, Record, new_id, rank_in_time, utc_now

if TYPE_CHECKING:
    from tuner.declare.kernel import Kernel
    from tuner.declare.space import Config

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
    ranked = sorted(leaderboard, key=lambda config: leaderboard[config])
    close = [config for config in ranked if leaderboard[config] <= FINALIST_WITHIN * leaderboard[ranked[0]]]
    challengers = [config for config in close if config != reigning][:FINALISTS]
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


def judge(measured: Sequence[Measurement], first_reigns: bool, burdens: Sequence[Any]) -> Judged | None:
    """Decides which finalist becomes champion.

    If there is no reigning champion, the lowest median wins; among finalists whose time counts as the same the
    simplest, so that results do not flicker. If there is one, a challenger must be clearly faster: ``same`` or
    ``ambiguous`` keeps the champion.

    Args:
        measured: Times by round for each finalist; none for those that failed.
        first_reigns: True if the first finalist is the reigning champion.
        burdens: Complexity of each finalist, for device and reader, no two the same; lower is simpler.

    Returns:
        None if no finalist could be measured.
    """
    timed = [
        number
        for number, measurement in enumerate(measured)
        if measurement.outcome is Outcome.MEASURED and measurement.samples_s
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


def _simplest_of_the_best(measured: Sequence[Measurement], among: Sequence[int], burdens: Sequence[Any]) -> int:
    fastest = min(among, key=lambda number: measured[number].time_s or 0.0)
    same = [
        number
        for number in among
        if number == fastest
        or compare(measured[fastest].samples_s, measured[number].samples_s).verdict == "same"
    ]
    return min(same, key=burdens.__getitem__)


def pairs_of(played: Sequence[tuple[str, Measurement]]) -> tuple[Pair, ...]:
    """Returns all pairs measured in the same rounds, those with the first finalist first.

    Args:
        played: Names and times by round.
    """
    timed = [(name, measurement) for name, measurement in played if measurement.samples_s]
    return tuple(
        Pair(one, other, theirs.time_s or 0.0, compare(ours.samples_s, theirs.samples_s))
        for (one, ours), (other, theirs) in itertools.combinations(timed, 2)
    )


def contradictions(final: Record, others: Iterable[Record]) -> dict[str, float]:
    """Compares the library's other times with that of the finals, as circumstances; 1 means equal.

    A busy machine makes times longer, never shorter. So a slower earlier run proves nothing.

    Args:
        final: The library's record of the finals.
        others: Other records of the same version of the library, for the same problem on the same device.
    """

    def setting(record: Record, name: str) -> str:
        return record.versions.get(f"blas_{name}", "")

    time_s, of_other_cores = final.measurement.time_s or 0.0, list[float]()
    own = final.kernel, setting(final, "threads")
    circumstances: dict[str, float] = {}
    for other in others:
        other_s = other.measurement.time_s
        if not other_s or (other.kernel, setting(other, "threads")) != own:
            continue
        if setting(other, "core_type") != setting(final, "core_type"):
            of_other_cores.append(other_s)
        elif other.session == final.session:
            circumstances[SEARCH] = max(_apart(time_s, other_s), circumstances.get(SEARCH, 0.0))
        else:
            circumstances[EARLIER] = max(time_s / other_s, circumstances.get(EARLIER, 0.0))
    return circumstances | ({CORE_TYPE: _apart(time_s, min(of_other_cores))} if of_other_cores else {})


def _apart(one_s: float, other_s: float) -> float:
    return math.exp(abs(math.log(one_s / other_s)))


# --- the crown log -------------------------------------
#
# What operators and confirmations said about champions. Entries are only ever added. The latest champion
# answers, unless an entry says otherwise.


class Act(enum.StrEnum):
    """What an entry does."""

    #: This champion answers until it is unpinned, whoever is crowned meanwhile.
    PIN = "pin"
    #: The latest champion answers again.
    UNPIN = "unpin"
    #: This champion answers again; those crowned between it and now do not.
    ROLLBACK = "rollback"
    #: Champions crowned from now on do not answer.
    FREEZE = "freeze"
    #: They do again.
    UNFREEZE = "unfreeze"
    #: The champion won again in a fresh process.
    CONFIRM = "confirm"
    #: It did not.
    DOUBT = "doubt"
    #: The library was seen to be faster than the champion; it answers until the next champion.
    BEHIND = "behind"


@dataclass(frozen=True)
class Crown:
    """An entry of the crown log.

    Attributes:
        act: What it does.
        problem: The problem; None for every problem, which only a freeze and its end may have.
        kind: Of the devices: ``cuda`` or ``cpu``; empty for all.
        device: Name of the devices; empty for all.
        regime: How time was taken; empty for all.
        champion: UUID of the champion that is pinned, confirmed, doubted or gone back to; else empty.
        who: Who said so.
        why: Why; may be empty.
        id: UUID.
        made_at: ISO 8601, UTC.
    """

    act: Act
    problem: ProblemKey | None
    kind: str
    device: str
    regime: str
    champion: str
    who: str
    why: str = ""
    id: Id = field(default_factory=new_id)
    made_at: str = field(default_factory=utc_now)

    def holds_for(self, problem: ProblemKey, kind: str, device: str, regime: str) -> bool:
        """True if it is about this problem on such a device."""
        return self.problem in (None, problem) and all(
            ours in ("", theirs)
            for ours, theirs in ((self.kind, kind), (self.device, device), (self.regime, regime))
        )


@dataclass
class CrownRules:
    """What the log says of one problem on one model of device in one regime.

    Attributes:
        pinned: UUID of the champion that is pinned; empty if none is.
        frozen_at: Since when no new champion answers; empty if they do.
        out: Champions that were gone back from.
        confirmed: Champions that won again in a fresh process.
        doubted: Champions that did not.
        behind: Champions than which the library was seen to be faster.
    """

    pinned: str = ""
    frozen_at: str = ""
    out: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    doubted: set[str] = field(default_factory=set)
    behind: set[str] = field(default_factory=set)

    def allowed(self, history: Sequence[tuple[str, str]]) -> set[str]:
        """The champions that may answer; the latest of them does.

        Args:
            history: UUID and time of every champion.
        """
        known = {name for name, _ in history}
        if self.pinned in known:
            return {self.pinned}
        last = rank_in_time(self.frozen_at)
        late = {name for name, when in history if self.frozen_at and rank_in_time(when) > last}
        return known - self.out - late


def rules_of(log: Iterable[Crown], history: Sequence[tuple[str, str]]) -> CrownRules:
    """Reads the entries about one problem, device and regime in order of time.

    Args:
        log: The entries.
        history: UUID and time of every champion.
    """
    rules, times = CrownRules(), dict(history)
    for entry in sorted(log, key=lambda entry: (rank_in_time(entry.made_at), entry.id)):
        _follow(rules, entry, times)
    return rules


def _follow(rules: CrownRules, entry: Crown, times: dict[str, str]) -> None:
    match entry.act:
        case Act.PIN:
            rules.pinned = entry.champion
            rules.out.discard(entry.champion)
        case Act.UNPIN:
            rules.pinned = ""
        case Act.ROLLBACK:
            since = rank_in_time(times.get(entry.champion, ""))
            until = rank_in_time(entry.made_at)
            rules.out |= {name for name, when in times.items() if since < rank_in_time(when) <= until}
            rules.out.discard(entry.champion)
            rules.pinned = ""
        case Act.FREEZE:
            rules.frozen_at = rules.frozen_at or entry.made_at
        case Act.UNFREEZE:
            rules.frozen_at = ""
        case Act.CONFIRM:
            rules.confirmed.add(entry.champion)
            rules.doubted.discard(entry.champion)
        case Act.DOUBT:
            rules.doubted.add(entry.champion)
            rules.confirmed.discard(entry.champion)
        case Act.BEHIND:
            rules.behind.add(entry.champion)

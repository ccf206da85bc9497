"""Which problems a night watches, and who takes part in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.results.record import Champion, ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION
from tuner.store import Store
from tuner.watch.code import Contender, Watched
from tuner.watch.crowns import Reign, reigns

#: Problems that a night watches unless a plan says otherwise.
MOST_PROBLEMS = 60


@dataclass(frozen=True)
class Candidate:
    """A problem that may be watched.

    Attributes:
        problem: The problem.
        catalogue: Where its kernels are found.
        regime: How time is taken.
    """

    problem: Problem
    catalogue: Catalogue
    regime: str = "cold"


def choose(
    store: Store, device: DeviceInfo, candidates: Iterable[Candidate], uses: Mapping[ProblemKey, float],
    most: int = MOST_PROBLEMS,
) -> tuple[list[Watched], list[str]]:  # fmt: skip
    """Chooses what is used most, by share of time, then in the order given.

    Args:
        store: Where champions are.
        device: The board.
        candidates: Problems, of a plan for instance.
        uses: Problem -> how often it was asked for; those without an entry come last.
        most: At most so many.

    Returns:
        What to time, and why others cannot be.
    """
    known = {
        (each.place.problem, each.place.regime): each
        for each in reigns(store, device=device.name)
        if each.place.kind == device.kind
    }
    found: list[tuple[float, Watched]] = []
    left: list[str] = []
    for candidate in candidates:
        reign = known.get((ProblemKey.of(candidate.problem), candidate.regime))
        watched = None if reign is None else watched_of(candidate, reign, device.kind)
        if reign is None or reign.champion is None:
            left.append(f"{candidate.problem}: it has no champion yet")
        elif watched is None:
            left.append(f"{candidate.problem}: its champion's kernel is not declared like that any more")
        else:
            time_s = reign.champion.record.measurement.time_s or 0.0
            found.append((-uses.get(ProblemKey.of(candidate.problem), 0.0) * time_s, watched))
    found.sort(key=lambda each: each[0])
    left += [f"{each.problem}: {most} others are used more" for _, each in found[most:]]
    return [each for _, each in found[:most]], left


def watched_of(candidate: Candidate, reign: Reign, target: str) -> Watched | None:
    """Champion and the one before it; None if the champion cannot be rendered as the kernels are now."""
    if reign.champion is None:
        return None
    champion = _contender(candidate, CHAMPION, reign.champion, target)
    before = _contender(candidate, BEFORE, reign.beaten, target) if reign.beaten else None
    if champion is None:
        return None
    return Watched(candidate.problem, candidate.regime, (champion, *([before] if before else [])))


def _contender(candidate: Candidate, name: str, champion: Champion, target: str) -> Contender | None:
    record = champion.record
    kernels: dict[str, Kernel] = {
        each.name: each for each in candidate.catalogue.of(candidate.problem.operation.name, target)
    }
    kernel = kernels.get(record.kernel)
    if kernel is None:
        return None
    names = [parameter.name for parameter in kernel.parameters]
    if sorted(names) != sorted(record.config):
        return None
    return Contender(name, kernel, Config({each: record.config[each] for each in names}))

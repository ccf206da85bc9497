"""Which problems a night watches, and who takes part in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble
from tuner.night.code import Code, Contender, Watched
from tuner.night.timing import Pass
from tuner.results.record import Champion, ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION, Sentinel
from tuner.store import Store
from tuner.study.crowns import Reign, reigns

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


#: For each pass the sentinels of a board, or why it could not time them.
Timed = list[list[Sentinel]] | DeviceTrouble


class Boards(Protocol):
    """Boards of one model that time sentinels."""

    @property
    def info(self) -> DeviceInfo:
        """Their model: the first of them."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """How messages and `timed` name them."""
        ...

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """Times problems on boards, and returns what came of it for each board.

        Args:
            wanted: Board -> its problems.
            passes: Each takes fresh processes.
        """
        ...


class Here:
    """Boards of this machine."""

    def __init__(self, found: Sequence[DetectedDevice]) -> None:
        """Opens nothing yet.

        Args:
            found: The boards, of one model.
        """
        self._found = {each.spec: each for each in found}
        self._code = {each.spec: Code(each.opening) for each in found}

    @property
    def info(self) -> DeviceInfo:
        """See the protocol."""
        return next(iter(self._found.values())).info

    @property
    def names(self) -> Sequence[str]:
        """See the protocol."""
        return list(self._found)

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """See the protocol; one board after the other, so that none disturbs another."""
        found: dict[str, Timed] = {}
        for name, problems in wanted.items():
            try:
                found[name] = [each.over(self._found[name], self._code[name], problems) for each in passes]
            except DeviceTrouble as error:
                found[name] = error
        return found

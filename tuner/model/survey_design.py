"""What a survey times: problems in an order that a later run repeats, and at each what may be fast there.

It searches while it surveys. At a problem it times configs that were fast near by, new ones made from these,
what a model proposes, and some at random of every kernel: a model has to know the best configs well, and that
others are slow. The library has one time a problem and jumps where its own rules change: it is timed at more
problems than configs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.model.design import Ranges, draw
from tuner.model.survey_pool import Named, Pool, Seen, Strangers
from tuner.results.survey import LIBRARY, Timing

#: Configs that a survey times, and those of them timed at one problem, at the most.
CONFIGS, PER_PROBLEM = 10_000, 40
#: Seconds that a timing takes beside its runs, and runs of a timing.
TIMING_S, RUNS = 0.002, 5
#: Shares of a problem's configs that are good ones fitted to it, if there are any, children, and at random.
FITTED, CHILDREN, AT_RANDOM = 0.15, 0.3, 0.15
#: Good configs that children are made of, and children made for each that is timed: most break a constraint.
PARENTS, MADE = 12, 6
#: Configs proposed by a model that come before those that were fast near by.
PROPOSED = 4
#: Share of the problems with configs at which the search goes on, and further turns of these.
DEEP, ROUNDS = 0.05, 6
#: Tell the random numbers of turns, and of what is searched deeper, from those of problems.
OF_TURNS, OF_DEPTH = 1, 1 << 20
#: Share of drawn problems at which the library alone is timed.
LIBRARY_ALONE = 0.4
#: Problems drawn at a time.
DRAWN_AT_ONCE = 256


@dataclass(frozen=True)
class SurveyRequest:
    """What a survey is asked.

    Attributes:
        operation: What is computed.
        kernels: What competes.
        found: The device.
        seconds: Wall time of this run.
        regime: How time is taken.
        seed: Of problems and configs; the same one goes on where an earlier run ended.
        ranges: What problems are drawn from; what suits the device when None.
        problems: Problems of one's own, which come first.
        drawn: False to time only those.
        configs: Configs at the most.
        per_problem: Configs at a problem in one turn, at the most.
        deep: Share of the problems with configs at which the search goes on for some turns.
    """

    operation: Operation
    kernels: tuple[Kernel, ...]
    found: DetectedDevice
    seconds: float
    regime: str = "cold"
    seed: int = 0
    ranges: Ranges | None = None
    problems: tuple[Problem, ...] = ()
    drawn: bool = True
    configs: int = CONFIGS
    per_problem: int = PER_PROBLEM
    deep: float = DEEP

    @property
    def limits(self) -> Ranges:
        """What problems are drawn from."""
        usual = kind_of(self.found.target).survey
        return self.ranges or Ranges(most_bytes=usual.most_bytes, most_flops=usual.most_flops)


def draw_for(operation: Operation, dtype: str, kind: str, count: int, seed: int) -> list[Problem]:
    """Draws problems as surveys on such a device do; empty dtype: the operation's first."""
    usual = kind_of(kind).survey
    ranges = Ranges(dtype=dtype, most_bytes=usual.most_bytes, most_flops=usual.most_flops)
    return draw(operation, ranges, count, seed)


@dataclass(frozen=True)
class Turn:
    """A problem's turn in a survey: the library is always timed.

    Attributes:
        problem: The problem.
        configs: By their numbers in the pool.
        number: Of the problem in its order.
        depth: 0, or which further turn of the problem this is.
    """

    problem: Problem
    configs: tuple[int, ...]
    number: int = 0
    depth: int = 0


#: Number of a problem in its order, and the problem.
Numbered = tuple[int, Problem]
#: Problem, count -> configs that something else proposes, the best first.
Proposals = Callable[[Problem, int], list[Named]]


class Design:
    """Chooses what a survey times.

    Attributes:
        request: What is asked.
        device: Where.
        pool: The configs by number.
        seen: What was timed so far.
    """

    def __init__(self, request: SurveyRequest, device: DeviceInfo, proposals: Proposals) -> None:
        """Begins with nothing seen.

        Args:
            request: What is asked.
            device: Where.
            proposals: What knows good configs without the survey.

        Raises:
            InputError: The ranges leave no problem.
        """
        self.request, self.device = request, device
        self.pool, self.seen = Pool(request.kernels, request.configs), Seen()
        self._timings: Counter[str] = Counter()
        self._proposals = proposals
        drawn = draw(request.operation, request.limits, DRAWN_AT_ONCE, request.seed) if request.drawn else []
        self._strangers = Strangers(request.kernels, [*request.problems, *drawn], device, request.seed)
        self._starts = [
            (kernel.name, config) for kernel in request.kernels for config in kernel.first_configs()
        ]

    def problems(self) -> Iterator[Numbered]:
        """Number and problem, in order: the request's own, then drawn ones without end."""
        asked, known = self.request, 0
        yield from enumerate(asked.problems)
        while asked.drawn:
            drawn = draw(asked.operation, asked.limits, max(2 * known, DRAWN_AT_ONCE), asked.seed)
            for number in range(known, len(drawn)):
                yield len(asked.problems) + number, drawn[number]
            known = len(drawn)

    def turn(self, number: int, problem: Problem, fresh: int, depth: int = 0) -> Turn:
        """What is timed at a problem, by what was seen so far.

        Args:
            number: Of the problem in its order.
            problem: The problem.
            depth: Which further turn of the problem this is; nothing is timed there twice.
            fresh: Configs that were not asked for in this layout yet, and have to be compiled, at the most; any
                number for the request's own problems.
        """
        own = number < len(self.request.problems)
        fresh = self.request.per_problem if own else fresh
        rng = np.random.default_rng((self.request.seed, number, OF_TURNS + depth))
        if not own and not depth and rng.random() < LIBRARY_ALONE:
            return Turn(problem, (), number)
        count = self._count(problem)
        known, fitted, new, random = self._candidates(problem, count, rng)
        picked = _Picking(self.pool, problem, fresh, self.seen.at(problem))
        standing_in = FITTED if fitted else 0.0
        shares = [
            (known, 1.0 - standing_in - CHILDREN - AT_RANDOM), (fitted, standing_in), (new, CHILDREN),
            (random, AT_RANDOM),
        ]  # fmt: skip
        # Good ones first: what is slow is then cut off early.
        for named, share in shares:
            picked.take(named, round(share * count), max(int(share * fresh), 1))
        for named in (new, known, random):
            picked.take(named, count - len(picked.numbers), fresh)
        return Turn(problem, tuple(picked.numbers), number, depth)

    def again(self, turn: Turn, fresh: int) -> Turn | None:
        """A further turn of a problem: at some the search goes on for as long as a short study's.

        They tell what is left to be found where it does not.
        """
        deep = np.random.default_rng((self.request.seed, turn.number, OF_DEPTH)).random() < self.request.deep
        if not turn.configs or not deep or turn.depth >= ROUNDS:
            return None
        found = self.turn(turn.number, turn.problem, fresh, turn.depth + 1)
        return found if found.configs else None

    def _candidates(
        self, problem: Problem, count: int, rng: np.random.Generator
    ) -> tuple[list[Named], list[Named], list[Named], list[Named]]:
        """Configs worth trying, the most promising first.

        Returns:
            Known ones; what stands in for those of kernels that have no known one here; children of both; some
            at random.
        """
        near = [self.pool.named(at) for at in self.seen.promising(problem)[: 3 * count]]
        proposed = self._proposals(problem, PARENTS)
        mixed = [*proposed[:PROPOSED], *near, *proposed, *self._starts]
        known = self.pool.worth_trying(mixed, problem, self.device)
        at_hand = {name for name, _ in known}
        lost = [each for each in dict.fromkeys(mixed) if each[0] not in at_hand]
        fitted = self._strangers.fitted(lost[:PARENTS], problem)
        children = self.pool.children([*known[:PARENTS], *fitted], MADE * round(CHILDREN * count), rng)
        new = self.pool.worth_trying(children, problem, self.device)
        # A kernel that is legal at few problems is known by few timings; where it is, it comes first.
        fitted.sort(key=lambda each: self._timings[each[0]])
        return known, fitted, new, self._strangers.some(problem, 2 * count, rng, self._timings)

    def _count(self, problem: Problem) -> int:
        """Configs to time at a problem: as many as its time allows."""
        each_s = TIMING_S + RUNS * self.seen.expected_s(problem)
        usual = kind_of(self.device.kind).survey
        count = max(round(usual.turn_s / each_s), usual.least)
        return min(count, self.request.per_problem)

    def learn(self, problem: Problem, timings: list[Timing]) -> None:
        """Takes in what a turn told."""
        sound = [each for each in timings if each.config != LIBRARY and not each.outcome.failed]
        self.seen.add(problem, {each.config: each.time_s for each in sound})
        self._timings.update(self.pool.named(each.config)[0] for each in sound)


class _Picking:
    """Picks configs for a problem.

    Attributes:
        numbers: Theirs, each once.
    """

    def __init__(self, pool: Pool, problem: Problem, fresh: int, timed: Mapping[int, float]) -> None:
        """Begins with none.

        Args:
            pool: Numbers them.
            problem: Where.
            fresh: Configs that may be compiled for it.
            timed: Numbers of configs that were timed there.
        """
        self._timed = timed
        self.numbers: dict[int, None] = {}
        self._pool, self._problem, self._fresh = pool, problem, fresh

    def take(self, named: Sequence[Named], count: int, fresh: int) -> None:
        """Picks the first that can be had.

        Args:
            named: The best first.
            count: So many at the most.
            fresh: Those of them that have to be compiled, at the most.
        """
        most, fresh = len(self.numbers) + count, min(fresh, self._fresh)
        for each in named:
            if len(self.numbers) >= most:
                return
            at = self._pool.number(each, fresh > 0)
            if at is None or at in self.numbers or at in self._timed:
                continue
            key = at, self._problem.dtype, self._problem.layout
            if key not in self._pool.asked:
                if fresh <= 0:
                    continue
                fresh, self._fresh = fresh - 1, self._fresh - 1
                self._pool.asked.add(key)
            self.numbers[at] = None

"""What a survey times: problems in an order that a later run repeats, and at each what may be fast there.

It searches while it surveys. At a problem it times configs that were fast near by, new ones made from these,
what a model proposes, and some at random of every kernel: a model has to know the best configs well, and that
others are slow. The library has one time a problem and jumps where its own rules change: it is timed at more
problems than configs are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import InputError
from tuner.lookup.snapshot import Subject, gather
from tuner.model.fitting import joined
from tuner.model.physics import incidence
from tuner.model.predict import predictor_for
from tuner.model.stored import models
from tuner.model.survey_pool import KnownTimes, Named, Pool, RandomConfigs
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, Timing
from tuner.store import Store

#: A round size is a multiple of the largest of these that is at most an eighth of it, if it is 16 at least.
ROUND, ROUND_LEAST = (8, 16, 32, 64, 128, 256, 512), 16
#: Longest dim unless a survey says otherwise, and that of dims that are summed over.
LONGEST, LONGEST_SUM = 16_384, 65_536
#: Times that a problem is drawn anew when it is too large.
DRAWS = 2_000


@dataclass(frozen=True)
class Ranges:
    """What problems are drawn from.

    Attributes:
        most: Dim -> its longest; for those not named 16,384, or 65,536 if it is summed over. The shortest is 1.
        layouts: Layouts; all of the operation's when empty.
        dtype: The operation's first when empty.
        most_bytes: A problem's tensors take no more.
        most_flops: Its arithmetic is no more.
    """

    most: Mapping[str, int] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    dtype: str = ""
    most_bytes: float = 4e9
    most_flops: float = 1e12

    @classmethod
    def on(cls, kind: str, **of: Mapping[str, int] | tuple[str, ...] | str) -> Ranges:
        """Those that suit a kind of device."""
        usual = kind_of(kind).survey
        return cls(most_bytes=usual.most_bytes, most_flops=usual.most_flops, **of)  # type: ignore[arg-type]


def draw(operation: Operation, ranges: Ranges, count: int, seed: int) -> list[Problem]:
    """Draws problems: every dim log-uniform, half of them round, layouts in turn.

    The same seed draws the same problems, and a larger count the same first ones, so that a survey can go on.

    Raises:
        InputError: The ranges leave no problem.
    """
    layouts = ranges.layouts or operation.layouts
    like = operation.problem(dict.fromkeys(operation.dims, 1), ranges.dtype, layouts[0])
    longest = np.where(incidence(like)[1] > 0, LONGEST_SUM, LONGEST).tolist()
    most = dict(zip(operation.dims, longest, strict=True)) | dict(ranges.most)
    return [
        _drawn(operation, ranges, most, layouts[number % len(layouts)], np.random.default_rng((seed, number)))
        for number in range(count)
    ]


def _drawn(
    operation: Operation, ranges: Ranges, most: Mapping[str, int], layout: str, rng: np.random.Generator
) -> Problem:
    for _ in range(DRAWS):
        sizes = {dim: math.exp(rng.uniform(0, math.log(most[dim]))) for dim in operation.dims}
        is_round = rng.random() < 0.5
        shape = {dim: min(_rounded(size, is_round), most[dim]) for dim, size in sizes.items()}
        problem = operation.problem(shape, ranges.dtype, layout)
        taken = sum(tensor.bytes for tensor in problem.tensors)
        if problem.work.flops <= ranges.most_flops and taken <= ranges.most_bytes:
            return problem
    raise InputError(
        f"a survey's ranges leave problems of {operation.name} to draw, got none in {DRAWS} draws; raise "
        "most_bytes or most_flops, or shorten dims"
    )


def _rounded(size: float, is_round: bool) -> int:
    if not is_round or size < ROUND_LEAST:
        return max(round(size), 1)
    unit = max([unit for unit in ROUND if 8 * unit <= size], default=ROUND[0])
    return max(unit, round(size / unit) * unit)


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
        ranges: What problems are drawn from.
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
    ranges: Ranges = field(default_factory=Ranges)
    problems: tuple[Problem, ...] = ()
    drawn: bool = True
    configs: int = CONFIGS
    per_problem: int = PER_PROBLEM
    deep: float = DEEP


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
        times: What was timed so far.
    """

    def __init__(self, request: SurveyRequest, device: DeviceInfo, proposals: Proposals) -> None:
        """Begins with nothing timed.

        Args:
            request: What is asked.
            device: Where.
            proposals: What knows good configs without the survey.

        Raises:
            InputError: The ranges leave no problem.
        """
        self.request, self.device = request, device
        self.pool, self.times = Pool(request.kernels, request.configs), KnownTimes()
        self._timings: Counter[str] = Counter()
        self._proposals = proposals
        drawn = draw(request.operation, request.ranges, DRAWN_AT_ONCE, request.seed) if request.drawn else []
        self._random = RandomConfigs(request.kernels, [*request.problems, *drawn], device, request.seed)
        self._starts = [
            (kernel.name, config) for kernel in request.kernels for config in kernel.first_configs()
        ]

    def problems(self) -> Iterator[Numbered]:
        """Number and problem, in order: the request's own, then drawn ones without end."""
        request, known = self.request, 0
        yield from enumerate(request.problems)
        while request.drawn:
            drawn = draw(request.operation, request.ranges, max(2 * known, DRAWN_AT_ONCE), request.seed)
            for number in range(known, len(drawn)):
                yield len(request.problems) + number, drawn[number]
            known = len(drawn)

    def turn(self, number: int, problem: Problem, fresh: int, depth: int = 0) -> Turn:
        """What is timed at a problem, by what was timed so far.

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
        lead = 1.0 - CHILDREN - AT_RANDOM - (FITTED if fitted else 0.0)
        # Good ones first: what is slow is then cut off early.
        groups = [(known, lead), (fitted, FITTED), (new, CHILDREN), (random, AT_RANDOM)]
        turns = sorted(
            (at / share, place, named)
            for place, (group, share) in enumerate(groups)
            for at, named in enumerate(group)
        )
        timed, picked = self.times.at(ProblemKey.of(problem)), dict[int, int]()
        for _, place, named in turns:
            if len(picked) == count:
                break
            at = self.pool.number(named, fresh > 0)
            if at is None or at in picked or at in timed:
                continue
            key = at, problem.dtype, problem.layout
            if key not in self.pool.asked:
                if fresh <= 0:
                    continue
                fresh -= 1
                self.pool.asked.add(key)
            picked[at] = place
        return Turn(problem, tuple(sorted(picked, key=picked.__getitem__)), number, depth)

    def again(self, turn: Turn, fresh: int) -> Turn | None:
        """A further turn of a problem: at some the search goes on for as long as a short study's.

        They tell what is left to be found where it does not.
        """
        deep = np.random.default_rng((self.request.seed, turn.number, OF_DEPTH)).random() < self.request.deep
        if not turn.configs or not deep or turn.depth >= ROUNDS:
            return None
        further = self.turn(turn.number, turn.problem, fresh, turn.depth + 1)
        return further if further.configs else None

    def _candidates(
        self, problem: Problem, count: int, rng: np.random.Generator
    ) -> tuple[list[Named], list[Named], list[Named], list[Named]]:
        """Configs worth trying, the most promising first.

        Returns:
            Known ones; what stands in for those of kernels that have no known one here; children of both; some
            at random.
        """
        near = [self.pool.named(at) for at in self.times.promising(ProblemKey.of(problem))[: 3 * count]]
        proposed = self._proposals(problem, PARENTS)
        mixed = [*proposed[:PROPOSED], *near, *proposed, *self._starts]
        known = self.pool.worth_trying(mixed, problem, self.device)
        at_hand = {name for name, _ in known}
        lost = [named for named in dict.fromkeys(mixed) if named[0] not in at_hand]
        fitted = self._random.fitted(lost[:PARENTS], problem)
        children = self.pool.children([*known[:PARENTS], *fitted], MADE * round(CHILDREN * count), rng)
        new = self.pool.worth_trying(children, problem, self.device)
        # A kernel that is legal at few problems is known by few timings; where it is, it comes first.
        fitted.sort(key=lambda named: self._timings[named[0]])
        return known, fitted, new, self._random.draw(problem, 2 * count, rng, self._timings)

    def _count(self, problem: Problem) -> int:
        """Configs to time at a problem: as many as its time allows."""
        config_s = TIMING_S + RUNS * self.times.expected_s(ProblemKey.of(problem))
        usual = kind_of(self.device.kind).survey
        return min(max(round(usual.turn_s / config_s), usual.least), self.request.per_problem)

    def learn(self, problem: Problem, timings: list[Timing]) -> None:
        """Takes in what a turn told."""
        sound = [timing for timing in timings if timing.config != LIBRARY and not timing.outcome.failed]
        self.times.add(ProblemKey.of(problem), {timing.config: timing.time_s for timing in sound})
        self._timings.update(self.pool.named(timing.config)[0] for timing in sound)


def design(request: SurveyRequest, store: Store, device: DeviceInfo) -> Design:
    """The design of a survey that goes on from all that is known of the operation on such a device.

    Raises:
        InputError: The ranges leave no problem.
    """
    made = Design(request, device, proposals(request, device, store))
    dtype = request.ranges.dtype or request.operation.dtypes[0]
    subject = Subject(request.operation.name, dtype, device.kind, request.regime, device.name)
    declared = Catalogue({request.operation.name: request.operation}, request.kernels)
    known = [
        (ProblemKey.of(tuned.problem), {named: timed.time_s for named, timed in tuned.times.items()})
        for tuned in gather(store, subject, declared)
    ]
    parts = store.survey_parts(request.operation.name, device, request.regime)
    surveyed = joined(parts, request.operation, request.kernels)
    if surveyed is not None:  # earlier, also by this survey
        for problem, times in zip(surveyed.problems, surveyed.by_problem(), strict=True):
            times.pop(LIBRARY, None)
            known.append(
                (ProblemKey.of(problem), {surveyed.configs[at]: time_s for at, time_s in times.items()})
            )
    for key, times_s in known:
        numbered = {made.pool.number(named): time_s for named, time_s in times_s.items()}
        made.times.add(key, {at: time_s for at, time_s in numbered.items() if at is not None})
    return made


def proposals(request: SurveyRequest, device: DeviceInfo, store: Store) -> Proposals:
    """What the device's model takes for the fastest; nothing where there is none."""
    every = models(request.operation.name, request.regime, store=store, dtype=request.ranges.dtype)
    model = next((model for model in every if model.device.name == device.name), None)
    predictor = predictor_for(model, request.kernels, device) if model else None

    def proposed(problem: Problem, count: int) -> list[Named]:
        if predictor is None or not predictor.model.knows(problem):
            return []
        return [(candidate.kernel, candidate.config) for candidate in predictor.candidates(problem, count)]

    return proposed

"""What a survey times: problems in an order that a later run repeats, and at each what may be fast there.

It searches while it surveys. At a problem it times configs that were fast near by, new ones made from these,
what a model proposes, and some at random of every kernel: a model has to know the best configs well, and that
others are slow. The library has one time a problem and jumps where its own rules change: it is timed at more
problems than configs are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import DTYPE_BYTES, Operation, Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import InputError
from tuner.lookup.legality import Points
from tuner.model.fit import joined
from tuner.model.physics import incidence
from tuner.model.predict import Named, predictor_for
from tuner.model.stored import arithmetic_of, model_of
from tuner.model.table import Choices
from tuner.results.distance import OTHER_ARITHMETIC, OTHER_LAYOUT, Floats, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, Timing
from tuner.store import Store

#: Configs that others are made of for a problem, parameters that differ, and combinations that are looked at.
ORIGINS, RADIUS, TRIES = 4, 2, 24
#: Spaces that random configs of a kernel are from at the least, and configs of each.
SPACES, OF_SPACE = 4, 64
#: Combinations of a space that are looked at for configs at random.
SAMPLED = 300_000
#: A kernel of which fewer known configs are legal at a problem gets some of its own there; it keeps so many.
ENOUGH, KEPT = 8, 4096
#: A round size is a multiple of the largest of these that is at most an eighth of it, if it is 16 at least.
ROUND, ROUND_LEAST = (8, 16, 32, 64, 128, 256, 512), 16
#: Longest dim unless a survey says otherwise, and that of dims that are summed over.
LONGEST, LONGEST_SUM = 16_384, 65_536
#: A dim up to this is small. Rows that begin at multiples of so many bytes, the widest loads, are aligned.
SMALL, ALIGNED_BYTES = 64, 16
#: Times that a problem is drawn anew when it is too large, and of those such until it is of the kind wanted.
DRAWS, OF_A_KIND = 2_000, 500


class Pool:
    """Configs of a survey.

    Attributes:
        configs: Kernels and configs, by number.
        kernels: By name.
    """

    def __init__(self, kernels: Sequence[Kernel], device: DeviceInfo, most: int) -> None:
        """Begins empty.

        Args:
            kernels: What competes.
            device: Where.
            most: Configs that get numbers, at the most.
        """
        self.configs: list[Named] = []
        self.kernels, self._device, self._most = {kernel.name: kernel for kernel in kernels}, device, most
        self._numbers = dict[Named, int]()
        # By kernel, configs at random, the same ready to be checked, and of how many spaces they are.
        self._random: dict[str, tuple[list[Config], Points, int]] = {
            kernel.name: ([], Points(kernel, []), 0) for kernel in kernels
        }

    def number(self, named: Named, take_in: bool = True) -> int | None:
        """Number of a config. One without is taken in if that is wanted and there is room; else it has None."""
        is_new = named not in self._numbers and named[0] in self.kernels
        if is_new and take_in and len(self.configs) < self._most:
            self._numbers[named] = len(self.configs)
            self.configs.append(named)
        return self._numbers.get(named)

    def legal(self, named: Iterable[Named], problem: Problem) -> list[Named]:
        """Those worth trying at a problem, in their order and once each; if none is, those that are legal."""
        every = list(dict.fromkeys(named))
        numbers = Choices(every, self.kernels.values()).legal(problem, self._device)
        return [every[at] for at in numbers.tolist()]

    def children(self, parents: Sequence[Named], problem: Problem, rng: np.random.Generator) -> list[Named]:
        """Legal configs that differ from others in two parameters.

        Args:
            parents: The best first, which are taken more often; legal or not.
            problem: Where they are to be legal.
            rng: Draws them.
        """
        ranks = 1 / (1 + np.arange(len(parents)))
        count = min(ORIGINS, len(parents))
        made: list[Named] = []
        for at in rng.choice(len(parents), count, False, ranks / ranks.sum()) if count else ():
            name, config = parents[at]
            kernel = self.kernels[name]
            space = Space.at(kernel.parameters, kernel.constraints, problem, self._device, config)
            made += [(name, space[number]) for number in space.around(0, RADIUS, TRIES, rng)]
        return [made[at] for at in rng.permutation(len(made))]

    def draw(
        self, problem: Problem, count: int, rng: np.random.Generator, timed: Mapping[str, int]
    ) -> list[Named]:
        """Legal configs at random, of seldom timed kernels rather than others: a model must know what is slow.

        Args:
            problem: Where.
            count: How many.
            rng: Draws them.
            timed: Timings by kernel.
        """
        waits: list[tuple[float, Named]] = []
        for name in self.kernels:
            legal = self._legal_at_random(name, problem, rng)
            # Each kernel's first comes after a time that is exponential, so that rates are as wanted.
            times = rng.exponential(1 + timed.get(name, 0), len(legal)) * len(legal)
            waits += zip(times.tolist(), ((name, config) for config in legal), strict=True)
        return [named for _, named in sorted(waits, key=lambda wait: wait[0])[:count]]

    def _legal_at_random(self, name: str, problem: Problem, rng: np.random.Generator) -> list[Config]:
        """Random configs of a kernel that are legal at a problem.

        To build a space takes longer than a survey has for a problem, so they come from a few spaces.
        Constraints may tie a config to the shape: its tile covers a side, its copies are as wide as rows allow.
        What is legal at some problems is then illegal at most others, and nothing made of it helps. So a kernel
        of which few known configs are legal at a problem gets some from its own space there.
        """
        drawn, points, spaces = self._random[name]
        legal = np.flatnonzero(points.flags(problem, self._device)[1])
        if (len(legal) < ENOUGH or spaces < SPACES) and len(space := self._space(name, problem)):
            some = (space[int(at)] for at in rng.permutation(len(space))[:OF_SPACE])
            drawn = list(dict.fromkeys([*drawn, *some]))[-KEPT:]
            points = Points(self.kernels[name], drawn)
            self._random[name] = drawn, points, spaces + 1
            legal = np.flatnonzero(points.flags(problem, self._device)[1])
        return [drawn[at] for at in legal.tolist()]

    def _space(self, name: str, problem: Problem) -> Space:
        kernel = self.kernels[name]
        return Space.build(kernel.parameters, kernel.constraints, problem, self._device, limit=SAMPLED)


#: Problems that speak for a config.
NEAREST = 16


class KnownTimes:
    """Times of configs, by their numbers, at problems."""

    def __init__(self) -> None:
        """Begins empty."""
        self._times_s: dict[ProblemKey, dict[int, float]] = {}
        self._places: list[Floats] = []

    def add(self, problem: ProblemKey, times_s: Mapping[int, float]) -> None:
        """Takes in the times of configs at a problem, beside those that it has."""
        if times_s and problem not in self._times_s:
            self._places.append(log_dims(problem.shape))
        if times_s:
            self._times_s.setdefault(problem, {}).update(times_s)

    def promising(self, problem: ProblemKey) -> tuple[list[int], float]:
        """Configs that were timed near a problem, the most promising first.

        Returns:
            Their numbers, and the seconds that the best is expected to take by the nearest problem; 0 if
            nothing was timed.
        """
        if not self._places:
            return [], 0.0
        known, scores, here = list(self._times_s), dict[int, float](), log_dims(problem.shape)
        unlike = [
            OTHER_ARITHMETIC * (key.arithmetic != problem.arithmetic)
            + OTHER_LAYOUT * (key.layout != problem.layout)
            for key in known
        ]
        apart = distances(np.array(self._places), here, np.array(unlike))
        nearest = np.argsort(apart, kind="stable")[:NEAREST].tolist()
        for at in nearest:
            times_s = self._times_s[known[at]]
            best_s = min(times_s.values())
            for number, time_s in times_s.items():
                score = math.log(time_s / best_s) + FALLS_BEHIND * float(apart[at])
                scores[number] = min(score, scores.get(number, math.inf))
        doublings = max(float((here - self._places[nearest[0]]).sum()), 0.0)
        expected_s = min(self._times_s[known[nearest[0]]].values()) * 2.0**doublings
        return sorted(scores, key=lambda number: (scores[number], number)), expected_s


@dataclass(frozen=True)
class Ranges:
    """What problems are drawn from.

    Attributes:
        most: Dim -> its longest; for those not named 16,384, or 65,536 if it is summed over. The shortest is 1.
        layouts: Layouts; all of the operation's when empty.
        dtype: The operation's first when empty.
        precision: Full precision when empty.
        epilogue: What is done to results; nothing when empty.
        most_bytes: A problem's tensors take no more.
        most_flops: Its arithmetic is no more.
    """

    most: Mapping[str, int] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    dtype: str = ""
    precision: str = ""
    epilogue: str = ""
    most_bytes: float = 4e9
    most_flops: float = 1e12

    @classmethod
    def on(cls, kind: str, **of: Mapping[str, int] | tuple[str, ...] | str) -> Ranges:
        """Those that suit a kind of device."""
        usual = kind_of(kind).survey
        return cls(most_bytes=usual.most_bytes, most_flops=usual.most_flops, **of)  # type: ignore[arg-type]


def draw(operation: Operation, ranges: Ranges, number: int, seed: int) -> Problem:
    """Draws a problem: dims log-uniform, layouts in turn.

    Half of them have round sizes and tensors whose rows are all aligned; half have a dim of 64 or less. Where
    ranges leave none of the kind whose turn it is, one of another kind is drawn. The same number and seed draw
    the same problem, so that a survey can go on.

    Raises:
        InputError: The ranges leave no problem.
    """
    layouts = ranges.layouts or operation.layouts_of.get(ranges.dtype, operation.layouts)
    layout, rng = layouts[number % len(layouts)], np.random.default_rng((seed, number))
    like = operation.problem(dict.fromkeys(operation.dims, 1), ranges.dtype, layout)
    longest = np.where(incidence(like)[1] > 0, LONGEST_SUM, LONGEST).tolist()
    most = dict(zip(operation.dims, longest, strict=True)) | dict(ranges.most)
    wanted = is_aligned, _ = (rng.random(2) < 0.5).tolist()
    for at in range(DRAWS):
        sizes = {dim: math.exp(rng.uniform(0, math.log(most[dim]))) for dim in operation.dims}
        shape = {dim: min(_rounded(size, is_aligned), most[dim]) for dim, size in sizes.items()}
        problem = operation.problem(shape, ranges.dtype, layout, ranges.precision)
        taken = sum(tensor.bytes for tensor in problem.tensors)
        rows_bytes = [tensor.shape[-1] * DTYPE_BYTES[tensor.dtype] for tensor in problem.tensors]
        kind = not any(row % ALIGNED_BYTES for row in rows_bytes), min(shape.values()) <= SMALL
        is_possible = problem.work.flops <= ranges.most_flops and taken <= ranges.most_bytes
        if is_possible and (list(kind) == wanted or at >= OF_A_KIND):
            return replace(problem, epilogue=operation.check_epilogue(ranges.epilogue, problem.dtype))
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
#: Shares of a problem's configs that are known ones, children of good ones, and at random.
KNOWN, CHILDREN, AT_RANDOM = 0.45, 0.3, 0.25
#: Good configs that new ones are made of.
PARENTS = 12
#: Configs proposed by a model that come before those that were fast near by.
PROPOSED = 4
#: Tells the random numbers of turns from those of problems.
OF_TURNS = 1
#: Share of drawn problems at which the library alone is timed.
LIBRARY_ALONE = 0.4


@dataclass(frozen=True)
class SurveyRequest:
    """What a survey is asked.

    Attributes:
        operation: What is computed.
        kernels: What competes.
        device: The device.
        seconds: Wall time of this run.
        regime: How time is taken.
        seed: Of problems and configs; the same one goes on where an earlier run ended.
        ranges: What problems are drawn from.
        problems: Problems of one's own, which come first.
        drawn: False to time only those.
        configs: Configs at the most.
        per_problem: Configs at a problem in one turn, at the most.
    """

    operation: Operation
    kernels: tuple[Kernel, ...]
    device: DetectedDevice
    seconds: float
    regime: str = "cold"
    seed: int = 0
    ranges: Ranges = field(default_factory=Ranges)
    problems: tuple[Problem, ...] = ()
    drawn: bool = True
    configs: int = CONFIGS
    per_problem: int = PER_PROBLEM

    @property
    def arithmetic(self) -> str:
        """Of the problems that are drawn (`ProblemKey.arithmetic`)."""
        ranges = self.ranges
        return arithmetic_of(self.operation, ranges.dtype, ranges.precision, ranges.epilogue)


@dataclass
class Turn:
    """A problem's turn in a survey: the library is always timed.

    Attributes:
        problem: The problem.
        configs: By their numbers in the pool.
        left: The configs, and `LIBRARY`, of which nothing has come yet.
        timings: What came of it so far; configs have their numbers in the pool.
        lost: Whether the device could not make the problem's arrays.
    """

    problem: Problem
    configs: tuple[int, ...]
    left: set[int] = field(default_factory=set)
    timings: list[Timing] = field(default_factory=list)
    lost: bool = False


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
        """
        self.request, self.device = request, device
        self.pool, self.times = Pool(request.kernels, device, request.configs), KnownTimes()
        self._timings = Counter[str]()
        self._proposals = proposals
        # Number, dtype and constants of what is compiled, or will be: layouts may have sources in common.
        self._compiled = set[tuple[int, str, str]]()
        self._starts = [
            (kernel.name, config) for kernel in request.kernels for config in kernel.first_configs()
        ]

    def problems(self) -> Iterator[tuple[int, Problem]]:
        """Number and problem, in order: the request's own, then drawn ones without end.

        Raises:
            InputError: The ranges leave no problem.
        """
        request, own = self.request, len(self.request.problems)
        yield from enumerate(request.problems)
        for number in count() if request.drawn else ():
            yield own + number, draw(request.operation, request.ranges, number, request.seed)

    def turn(self, number: int, problem: Problem, fresh: int) -> Turn:
        """What is timed at a problem, by what was timed so far.

        Args:
            number: Of the problem in its order.
            problem: The problem.
            fresh: Configs that have to be compiled, being new in this dtype and layout, at the most; any number
                for the request's own problems.
        """
        own = number < len(self.request.problems)
        fresh = self.request.per_problem if own else fresh
        rng = np.random.default_rng((self.request.seed, number, OF_TURNS))
        if not own and rng.random() < LIBRARY_ALONE:
            return Turn(problem, ())
        near, expected_s = self.times.promising(ProblemKey.of(problem))
        most, picked = self._count(expected_s), list[int]()
        for named in self._candidates(problem, near, most, rng):
            at = self.pool.number(named, fresh > 0)
            if at is None or at in picked:
                continue
            source = at, problem.dtype, str(problem.operation.constants(problem, self.request.device.target))
            if source in self._compiled or fresh > 0:
                fresh -= source not in self._compiled
                self._compiled.add(source)
                picked.append(at)
            if len(picked) == most:
                break
        return Turn(problem, tuple(picked))

    def _candidates(
        self, problem: Problem, near: list[int], most: int, rng: np.random.Generator
    ) -> list[Named]:
        """Configs worth trying, the most promising first: what is slow is then cut off early.

        By turns they are known ones, children of the most promising, and some at random.
        """
        proposed = self._proposals(problem, PARENTS)
        fast = [self.pool.configs[at] for at in near[: 3 * most]]
        every = list(dict.fromkeys([*proposed[:PROPOSED], *fast, *proposed, *self._starts]))
        known = self.pool.legal(every, problem)
        groups = {
            KNOWN: known,
            CHILDREN: self.pool.children(known[:PARENTS], problem, rng),
            AT_RANDOM: self.pool.draw(problem, 2 * most, rng, self._timings),
        }
        turns = [(at / share, named) for share, group in groups.items() for at, named in enumerate(group)]
        return [named for _, named in sorted(turns, key=lambda turn: turn[0])]

    def _count(self, expected_s: float) -> int:
        """Configs to time at a problem: as many as its time allows."""
        usual = kind_of(self.device.kind).survey
        count = round(usual.turn_s / (TIMING_S + RUNS * expected_s))
        return min(max(count, usual.least), self.request.per_problem)

    def learn(self, turn: Turn) -> None:
        """Takes in what a turn told."""
        sound = {
            timing.config: timing.time_s
            for timing in turn.timings
            if timing.config != LIBRARY and not timing.outcome.failed
        }
        self.times.add(ProblemKey.of(turn.problem), sound)
        self._timings.update(self.pool.configs[at][0] for at in sound)


def design(request: SurveyRequest, store: Store, device: DeviceInfo) -> Design:
    """The design of a survey that goes on from all surveys of the operation on such a device."""
    made, operation = Design(request, device, proposals(request, device, store)), request.operation
    parts = store.survey_parts(operation.name, device, request.regime)
    if (surveyed := joined(parts, operation, request.kernels)) is None:
        return made
    numbers = [made.pool.number(config) for config in surveyed.configs]
    for problem, times_s in zip(surveyed.problems, surveyed.times_s, strict=True):
        known = {numbers[at]: time_s for at, time_s in times_s.items() if at != LIBRARY}
        made.times.add(ProblemKey.of(problem), {at: s for at, s in known.items() if at is not None})
    return made


def proposals(request: SurveyRequest, device: DeviceInfo, store: Store) -> Proposals:
    """What the device's model takes for the fastest.

    The first survey of a dtype or precision asks the model of another one about the same shapes: the first that
    knows configs of such kernels, and of dtypes as wide rather than others.
    """
    own, width = request.arithmetic, DTYPE_BYTES[request.ranges.dtype or request.operation.dtypes[0]]
    of = request.operation.name, request.regime, store, device.name
    asked = (model_of(*of, like) for like in (own, *request.operation.dtypes))
    models = sorted(
        dict.fromkeys(model for model in asked if model is not None),
        key=lambda model: (model.arithmetic != own, DTYPE_BYTES[model.dtype] != width),
    )

    def proposed(problem: Problem, count: int) -> list[Named]:
        for model in models:
            like = replace(problem, dtype=model.dtype, precision=model.precision, epilogue=model.epilogue)
            predictor = predictor_for(model, request.kernels, device)
            if model.knows(like) and (known := predictor.candidates(like, count)):
                return [one[:2] for one in known]
        return []

    return proposed

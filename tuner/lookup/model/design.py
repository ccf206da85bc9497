"""What a survey times: problems drawn over declared ranges, and the configs that tell the model most a second.

Two errors make answers lose: a config that is not the best, and a wrong choice between kernel and library.
Configs share what they teach about each other, and some hundreds of problems suffice. The library has one time
for each problem and jumps where its own rules change. So the library is timed at several times as many problems
as configs are, and the configs that may be the best of a problem are timed there more often than others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup.legality import steps
from tuner.lookup.model.physics import incidence

#: A round size is a multiple of the largest of these that is at most an eighth of it.
ROUND = (8, 16, 32, 64, 128, 256, 512)
#: Dims from which on a size may be round.
ROUND_LEAST = 16
#: Longest dim unless a survey says otherwise, and that of dims that are summed over.
LONGEST, LONGEST_SUM = 16_384, 65_536
#: Problems at which the library alone is timed, for each at which configs are.
LIBRARY_ALONE = 3
#: Times that a problem is drawn anew when it is too large.
DRAWS = 2_000
#: Share of configs timed at random, whatever the model foresees: it may be wrong.
AT_RANDOM = 0.25
#: A config foreseen to be this many times slower than the best is only timed at random.
HOPELESS = 4.0


@dataclass(frozen=True)
class Ranges:
    """What problems are drawn from.

    Attributes:
        most: Dim -> its longest; for those not named 16,384, or 65,536 if it is summed over. The shortest is 1.
        layouts: Layouts; all of the operation's when empty.
        dtype: The operation's first when empty.
        round_share: Share of problems all of whose dims are round.
        most_bytes: A problem's tensors take no more.
        most_flops: Its arithmetic is no more.
    """

    most: Mapping[str, int] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    dtype: str = ""
    round_share: float = 0.5
    most_bytes: float = 4e9
    most_flops: float = 1e12


def draw(operation: Operation, ranges: Ranges, count: int, seed: int) -> list[Problem]:
    """Draws problems: every dim log-uniform, some shares of them round, layouts in turn.

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
        is_round = rng.random() < ranges.round_share
        shape = {
            dim: min(_rounded(size) if is_round else max(round(size), 1), most[dim])
            for dim, size in sizes.items()
        }
        found = operation.problem(shape, ranges.dtype, layout)
        taken = sum(each.bytes for each in found.tensors)
        if found.work.flops <= ranges.most_flops and taken <= ranges.most_bytes:
            return found
    raise InputError(
        f"a survey's ranges leave problems of {operation.name} to draw, got none in {DRAWS} draws; raise "
        "most_bytes or most_flops, or shorten dims"
    )


def _rounded(size: float) -> int:
    if size < ROUND_LEAST:
        return max(round(size), 1)
    unit = max([each for each in ROUND if 8 * each <= size], default=ROUND[0])
    return max(unit, round(size / unit) * unit)


def pool(
    kernels: Mapping[str, Kernel],
    known: Sequence[tuple[str, Config]],
    at_random: Sequence[tuple[str, Config]],
    count: int,
    seed: int,
) -> list[tuple[str, Config]]:
    """The configs of a survey: champions and the like, every kernel's starts, neighbours, and some at random.

    Args:
        kernels: By name.
        known: Champions and runners-up, the best first.
        at_random: Legal configs of any kernel, to fill up with.
        count: Configs at the most.
        seed: Of the choice among neighbours.
    """  # fmt: skip
    starts = [(name, config) for name, kernel in kernels.items() for config in kernel.first_configs()]
    first = dict.fromkeys([(name, config) for name, config in known if name in kernels] + starts)
    around = [
        (name, Config(each))
        for name, config in known
        if name in kernels and _declared(kernels[name], config)
        for each in next(steps(kernels[name], config))
    ]
    np.random.default_rng(seed).shuffle(around)
    left = max(count - len(first), 0)
    filled = [*first, *around[: left // 2], *at_random, *around[left // 2 :]]
    return list(dict.fromkeys(filled))[:count]


def _declared(kernel: Kernel, config: Config) -> bool:
    return all(each.name in config and config[each.name] in each.values for each in kernel.parameters)


@dataclass(frozen=True)
class Turn:
    """A problem's turn in a survey: the library is always timed; configs by their numbers in the pool."""

    problem: Problem
    configs: tuple[int, ...]


def turns(
    problems: Sequence[Problem],
    legal: Callable[[Problem], NDArray[np.bool_]],
    per_problem: int,
    seed: int,
    foreseen: Callable[[Problem], NDArray[np.float64]] | None = None,
) -> Iterator[Turn]:
    """What is timed at each problem, in order.

    Args:
        problems: From `draw`. Configs are timed at one in four, the library at all.
        legal: Problem -> which configs of the pool are legal there.
        per_problem: Configs timed at a problem, at the most.
        seed: Of what is chosen at random.
        foreseen: Problem -> logs of predicted seconds, from a model of the first part of the survey; None
            for that part itself, whose configs are drawn at random.
    """
    for number, problem in enumerate(problems):
        rng = np.random.default_rng((seed, number))
        # One of each four, another one each time: layouts come in turn, too, and each has its share of configs.
        if (number + number // (LIBRARY_ALONE + 1)) % (LIBRARY_ALONE + 1):
            yield Turn(problem, ())
            continue
        order = rng.permutation(np.flatnonzero(legal(problem)))
        if foreseen is not None and len(order):
            order = _promising(order, foreseen(problem), per_problem)
        yield Turn(problem, tuple(int(at) for at in order[:per_problem]))


def _promising(order: NDArray[np.int64], log_s: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The best by prediction that are not hopeless, and a share at random."""
    some = round(AT_RANDOM * count)
    drawn, rest = order[:some], order[some:]
    near = rest[log_s[rest] <= log_s[order].min() + math.log(HOPELESS)]
    ranked = near[np.argsort(log_s[near], kind="stable")]
    return np.concatenate([ranked[: count - len(drawn)], drawn])

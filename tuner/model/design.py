"""Problems drawn over declared ranges: what surveys time, and what answers are judged on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.declare.problem import Operation, Problem
from tuner.errors import InputError
from tuner.model.physics import incidence

#: A round size is a multiple of the largest of these that is at most an eighth of it.
ROUND = (8, 16, 32, 64, 128, 256, 512)
#: Dims from which on a size may be round.
ROUND_LEAST = 16
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

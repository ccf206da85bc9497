"""Medians, intervals and paired comparisons: numbers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Times within this share of each other are reported as the same (NVBench uses the same threshold).
SAME_WITHIN = 0.005
#: Coverage of intervals.
CONFIDENCE = 0.95
#: Scales a median absolute deviation to a normal's standard deviation.
MAD_TO_SIGMA = 1.4826


def noise(samples: Sequence[float]) -> float:
    """Median absolute deviation over the median, as a normal's standard deviation; 0 below two samples."""
    if len(samples) < 2:
        return 0.0
    middle = statistics.median(samples)
    return MAD_TO_SIGMA * statistics.median(abs(x - middle) for x in samples) / middle


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns a confidence interval of the median from order statistics, for any distribution.

    The ranks k and n+1-k enclose the median with probability 1 - 2 * P(Binomial(n, 1/2) < k). With fewer
    than six samples no rank reaches 95 %, and the whole range is returned.

    Args:
        samples: At least one.
        confidence: Probability that the interval contains the median.
    """
    ordered, n = sorted(samples), len(samples)
    tail, rank = 0.0, 0
    for k in range((n + 1) // 2):
        tail += math.comb(n, k) * 0.5**n
        if 2 * tail > 1 - confidence:
            break
        rank = k + 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[n - rank]


@dataclass(frozen=True)
class Comparison:
    """How one thing's time compares with another's, measured in alternating rounds.

    Attributes:
        ratio: Median of time(other) / time(this) over rounds; above 1 this is faster.
        low: Lower end of the ratio's interval.
        high: Upper end.
        verdict: ``faster``, ``same``, ``slower`` or ``ambiguous``.
    """

    ratio: float
    low: float
    high: float
    verdict: str


def compare(this_s: Sequence[float], other_s: Sequence[float]) -> Comparison:
    """Compares times taken in the same rounds, in seconds.

    The verdict is ``same`` below a difference of `SAME_WITHIN`. Beyond it, it is ``faster`` or ``slower`` if
    the interval excludes 1, else ``ambiguous``.

    Args:
        this_s: One time per round.
        other_s: The other's times, one for each of the same rounds.
    """
    ratios = [other / this for this, other in zip(this_s, other_s, strict=True)]
    return _judged(statistics.median(ratios), *median_interval(ratios))


def compare_apart(this_s: Sequence[float], other_s: Sequence[float]) -> Comparison:
    """Compares times of different rounds, in seconds. It cannot account for drift.

    The ratio is that of the medians. Its interval comes from the ends of their intervals.

    Args:
        this_s: At least one.
        other_s: The other's times, at least one.
    """
    (low, high), (other_low, other_high) = median_interval(this_s), median_interval(other_s)
    ratio = statistics.median(other_s) / statistics.median(this_s)
    return _judged(ratio, other_low / high, other_high / low)


def _judged(ratio: float, low: float, high: float) -> Comparison:
    if abs(ratio - 1) < SAME_WITHIN:
        verdict = "same"
    elif low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    else:
        verdict = "ambiguous"
    return Comparison(ratio, low, high, verdict)

"""How participants that take turns compare: verdicts that hold at every look, whatever drifts meanwhile."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.results.measurement import MAD_TO_SIGMA

#: Differences below this share are of no interest.
BOUND = 0.01
#: Chance that an interval ever leaves out the true ratio, over all looks at it.
ALPHA = 0.05
#: Blocks before the first verdict.
LEAST_BLOCKS = 6
#: The interval is narrowest after about so many blocks.
TUNED_FOR_BLOCKS = 16
#: A block's ratio farther from the median than this many deviations counts as if it were so far.
CLIPPED_AT = 3.5

SAME, FASTER, SLOWER, UNKNOWN = "same", "faster", "slower", "unknown"


@dataclass(frozen=True)
class Shift:
    """How much longer one takes than another, as the logarithm of the ratio of their times.

    Attributes:
        log_ratio: log(time of this / time of the other); above 0 this is slower.
        half_width: Half of the interval that holds at every look.
    """

    log_ratio: float
    half_width: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.log_ratio - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.log_ratio + self.half_width

    def verdict(self) -> str:
        """How the two compare.

        Returns:
            ``same`` if the whole interval is within `BOUND`; ``slower`` or ``faster`` if it leaves out 0 and
            its middle is beyond it; else ``unknown``.
        """
        limit = math.log1p(BOUND)
        if -limit < self.low and self.high < limit:
            return SAME
        if abs(self.log_ratio) >= limit and self.half_width < abs(self.log_ratio):
            return SLOWER if self.log_ratio > 0 else FASTER
        return UNKNOWN


def shift(this_s: Sequence[float], other_s: Sequence[float]) -> Shift:
    """Compares two participants of the same blocks.

    The interval is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    ("Time-uniform central limit theory and asymptotic confidence sequences", 2021, theorem 2.2) of the mean of
    the blocks' log ratios, with outliers clipped.

    Args:
        this_s: Two times for each block, in seconds.
        other_s: The other's, of the same blocks.
    """
    logs = block_ratios(this_s, other_s)
    blocks = len(logs)
    if not blocks:
        return Shift(0.0, math.inf)
    clipped = _clipped(logs)
    enough = blocks >= LEAST_BLOCKS
    width = float(np.std(clipped, ddof=1)) * _sequence_factor(blocks) if enough else math.inf
    return Shift(float(np.mean(clipped)), width)


def block_ratios(this_s: Sequence[float], other_s: Sequence[float]) -> NDArray[np.float64]:
    """Logarithms of the ratios this / other, one for each whole block of two turns.

    Args:
        this_s: Two times for each block, in seconds.
        other_s: The other's, of the same blocks.
    """
    whole = min(len(this_s), len(other_s)) // 2 * 2
    this = np.log(np.asarray(this_s[:whole], dtype=np.float64)).reshape(-1, 2).mean(axis=1)
    other = np.log(np.asarray(other_s[:whole], dtype=np.float64)).reshape(-1, 2).mean(axis=1)
    ratios: NDArray[np.float64] = this - other
    return ratios


def _clipped(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = float(np.median(logs))
    away = np.abs(logs - middle)
    # Short times come in steps of the timer, so that more than half may be equal.
    spread = MAD_TO_SIGMA * float(np.median(away)) or float(np.mean(away)) * math.sqrt(math.pi / 2)
    return np.clip(logs, middle - CLIPPED_AT * spread, middle + CLIPPED_AT * spread)


def _sequence_factor(blocks: int) -> float:
    """Half of the interval over the deviation of one block."""
    tail = -2 * math.log(ALPHA)
    rho_squared = (tail + math.log(tail + 1)) / TUNED_FOR_BLOCKS
    inside = blocks * rho_squared + 1
    factor = math.sqrt(2 * inside / (blocks**2 * rho_squared) * math.log(math.sqrt(inside) / ALPHA))
    # The deviation of few blocks is itself uncertain, which the limit theorem leaves out.
    return factor * math.sqrt((blocks - 1) / max(blocks - 3, 1))


#: Who takes part.
CHAMPION, BEFORE, LIBRARY = "champion", "before", "library"


def decided(rounds_s: Mapping[str, Sequence[float]]) -> bool:
    """True if the champion's ratio to each other is known well enough.

    It has a verdict, and its interval is no wider than `BOUND`, so that nights can be compared.

    Args:
        rounds_s: Name of a participant -> two times for each block.
    """
    champion = rounds_s.get(CHAMPION) or next(iter(rounds_s.values()))
    for other in rounds_s.values():
        if other is champion:
            continue
        shifted = shift(champion, other)
        if shifted.half_width > BOUND / 2 or shifted.verdict() == UNKNOWN:
            return False
    return True

"""How a night's seconds are cut into slices, and when there are none left for another. Numbers in, numbers out.

Of what is left of a night the finals of every problem that was begun are kept; the rest is for slices. While
there is enough for all that the plan allows, problems need not compete: each then has its slices in a row,
which saves opening the device again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.stopwatch import finals_share_s

#: Slices that a problem's seconds are cut into, and the bounds of a slice in seconds.
SLICES, LEAST_SLICE_S, MOST_SLICE_S = 6, 10.0, 120.0
#: A slice is at least this many times as long as opening a device.
OPENINGS = 4
#: Seconds that opening a device is taken for before it was seen.
OPENING_S = 4.0
#: Problems compete for a night when they may take more than this many times of what is left.
CONTENDED = 1.1


@dataclass(eq=False)
class Share:
    """What one problem may take of a night, and has taken.

    Attributes:
        limit_s: Seconds that the plan allows it; infinite without a limit.
        finals_s: Seconds of those kept for the finals; known once it is begun.
        spent_s: Seconds so far.
        slices: Slices so far.
        begun: True from the first slice on.
        open: True while its study holds the device.
        opening_s: Seconds that opening the device for it took; 0 before it was.
    """

    limit_s: float
    finals_s: float = 0.0
    spent_s: float = 0.0
    slices: int = 0
    begun: bool = False
    open: bool = False
    opening_s: float = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds that the plan still allows."""
        return max(self.limit_s - self.spent_s, 0.0)


@dataclass
class Slices:
    """Cuts what is left of a night.

    Attributes:
        left_s: Seconds left of the night; infinite without an end.
        shares: Of the problems that are not finished.
    """

    left_s: Callable[[], float]
    shares: list[Share]
    _openings_s: list[float] = field(default_factory=list, init=False)

    @property
    def contended(self) -> bool:
        """True where the plan allows more than is left of the night."""
        return sum(each.rest_s for each in self.shares) > CONTENDED * self.left_s()

    def opened(self, share: Share, seconds: float) -> None:
        """Says how long it took to open the device for a problem."""
        share.opening_s = max(seconds, share.opening_s)
        self._openings_s.append(seconds)

    def _opening_s(self, share: Share) -> float:
        """What it took before, for this problem or the median one."""
        if share.opening_s:
            return share.opening_s
        return statistics.median(self._openings_s) if self._openings_s else OPENING_S

    def begin(self, share: Share) -> None:
        """Keeps time for the finals of a problem."""
        share.begun = True
        share.finals_s = self._finals_s(share)

    def next_s(self, share: Share) -> float:
        """Seconds of the next slice of a problem; 0 where there is no time for one.

        Opening the device comes before it, where it is not open.
        """
        before_s = 0.0 if share.open else self._opening_s(share)
        before_s += 0.0 if share.begun else self._finals_s(share)
        room_s = self._room_s() - before_s
        if room_s < min(LEAST_SLICE_S, share.rest_s):
            return 0.0
        wanted_s = self._wanted_s(share)
        if share.rest_s - share.finals_s - wanted_s < LEAST_SLICE_S:
            # What would be left is not worth a slice of its own.
            wanted_s = share.rest_s
        return min(wanted_s, room_s)

    @property
    def spare(self) -> bool:
        """True where, after a first slice for all that were not begun, there is time for more of another."""
        first_s = sum(
            self._opening_s(each) + self._wanted_s(each) + self._finals_s(each)
            for each in self.shares
            if not each.begun
        )
        return self._room_s() - first_s >= LEAST_SLICE_S

    def _room_s(self) -> float:
        """Seconds for slices: what the finals of those that were begun need is kept."""
        kept_s = sum(
            each.finals_s + (0.0 if each.open else self._opening_s(each)) for each in self.shares if each.begun
        )
        return self.left_s() - kept_s

    def _wanted_s(self, share: Share) -> float:
        fair_s = min(share.limit_s, self.left_s() / max(len(self.shares), 1))
        least_s = max(LEAST_SLICE_S, OPENINGS * self._opening_s(share))
        return min(max(fair_s / SLICES, least_s), max(MOST_SLICE_S, least_s))

    def _finals_s(self, share: Share) -> float:
        budget_s = min(share.limit_s, self.left_s() / max(len(self.shares), 1))
        return finals_share_s(None if math.isinf(budget_s) else max(budget_s, 1.0))

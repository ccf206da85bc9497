"""Divides a night's seconds into slices, and decides when time is up. Numbers in, numbers out.

From the remaining seconds, those for the finals of every begun problem are kept; the rest is for slices. If
there is enough time for everything in the plan, problems need not compete: each has its slices in a row, which
saves opening the device again. With several places, each of which works on one problem at a time, the night has
its seconds once for each of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable

from tuner.night.work import NightItem
from tuner.study.progress import finals_share_s

#: Number of slices into which a problem's seconds are divided, and the bounds of a slice in seconds.
SLICES, LEAST_SLICE_S, MOST_SLICE_S = 6, 10.0, 120.0
#: A slice is longer than opening a device by at least this factor.
OPENINGS = 4
#: Seconds assumed for opening a device before it was measured.
OPENING_S = 4.0
#: Problems compete for a night if the plan allows them more than this multiple of the remaining time.
CONTENDED = 1.1
#: The median of so many latest durations is what is usual.
LATEST = 99


class Slices:
    """Divides the remaining seconds of a night.

    A plan may have many thousand problems, and no step may spend time on each of them. So problems not begun
    are counted by their limit, and only begun ones are summed one by one.

    Attributes:
        begun: Name -> problem, of those that have begun and are not finished.
    """

    def __init__(
        self, left_s: Callable[[], float], problems: Iterable[NightItem], places: Callable[[], int] = lambda: 1
    ) -> None:
        """Begins with no problem begun.

        Args:
            left_s: Seconds left of the night; infinite without an end.
            problems: The unfinished problems.
            places: Number of places that work on them now.
        """
        self.left_s = left_s
        self.begun: dict[str, NightItem] = {}
        self._places = places
        #: Limit in seconds -> number of problems with it that were not begun.
        self._waiting = Counter(problem.limit_s for problem in problems)
        self._openings_s, self._beyonds_s = deque[float](maxlen=LATEST), deque[float](maxlen=LATEST)
        self._usual_opening_s, self._usual_beyond_s = OPENING_S, 0.0

    @property
    def contended(self) -> bool:
        """True if the plan allows more than the remaining time."""
        allowed_s = sum(limit_s * count for limit_s, count in self._waiting.items())
        return allowed_s + sum(problem.rest_s for problem in self.begun.values()) > CONTENDED * self._all_s()

    @property
    def holds(self) -> int:
        """Returns for how many of the problems not begun there is time: opening, a slice and finals."""
        free_s, holds = self._all_s(), 0
        for limit_s, count in sorted(self._waiting.items()):
            finals_s = finals_share_s(None if math.isinf(limit_s) else limit_s / SLICES)
            least_s = self._usual_opening_s + min(LEAST_SLICE_S, limit_s) + finals_s
            taken = count if math.isinf(free_s) else min(count, int(free_s / least_s))
            holds, free_s = holds + taken, free_s - taken * least_s
        return holds

    @property
    def spare(self) -> bool:
        """True if there is time for more of a problem after a first slice for all that were not begun."""
        opening_s = self._usual_opening_s
        first_s = sum(
            count * (opening_s + self._wanted_s(limit_s, opening_s) + self._finals_s(limit_s))
            for limit_s, count in self._waiting.items()
        )
        return self._room_s() - first_s / self._count >= LEAST_SLICE_S

    def opened(self, problem: NightItem, seconds: float) -> None:
        """Records how long opening the device for a problem took."""
        problem.opening_s = max(seconds, problem.opening_s)
        self._openings_s.append(seconds)
        self._usual_opening_s = statistics.median(self._openings_s)

    def worked(self, beyond_s: float) -> None:
        """Records how many seconds a piece of work took beyond its opening and what it was given."""
        self._beyonds_s.append(max(beyond_s, 0.0))
        self._usual_beyond_s = statistics.median(self._beyonds_s)

    def begin(self, problem: NightItem) -> None:
        """Reserves time for the finals of a problem."""
        problem.finals_s, problem.begun = self._finals_s(problem.limit_s), True
        self._waiting -= Counter([problem.limit_s])
        self.begun[problem.name] = problem

    def leave(self, problem: NightItem) -> None:
        """Removes a finished problem."""
        if self.begun.pop(problem.name, None) is None:
            self._waiting -= Counter([problem.limit_s])

    def next_of(self, ranked: Iterable[NightItem], here: NightItem | None) -> tuple[NightItem, float] | None:
        """Returns the first of some problems for which there is time, and the seconds of its slice; or None.

        Args:
            ranked: The problems.
            here: The one whose study is open where the slice would run; None if there is none.
        """
        room_s = self._room_s()
        # Problems with equal limits that were not begun are alike.
        hopeless: set[float] = set()
        for problem in ranked:
            if not problem.begun and problem.limit_s in hopeless:
                continue
            seconds = self._next_s(problem, room_s, problem is here)
            if seconds > 0:
                return problem, seconds
            if not problem.begun:
                hopeless.add(problem.limit_s)
        return None

    def _next_s(self, problem: NightItem, room_s: float, is_open: bool) -> float:
        """Returns the seconds of the next slice of a problem; 0 if there is no time for one.

        If the device is not open, opening it comes first.
        """
        opening_s = self._opening_s(problem)
        room_s -= 0.0 if is_open else opening_s
        room_s -= 0.0 if problem.begun else self._finals_s(problem.limit_s) + self._usual_beyond_s
        if room_s < min(LEAST_SLICE_S, problem.rest_s):
            return 0.0
        wanted_s = self._wanted_s(problem.limit_s, opening_s)
        if problem.rest_s - problem.finals_s - wanted_s < LEAST_SLICE_S:
            # The rest would be too short for a slice of its own.
            wanted_s = problem.rest_s
        return min(wanted_s, room_s)

    @property
    def _count(self) -> int:
        return max(self._places(), 1)

    def _all_s(self) -> float:
        """Seconds left of all places."""
        return self.left_s() * self._count

    def _room_s(self) -> float:
        """Seconds for slices of each place, without those kept for the finals of begun problems.

        Finals handed out one by one to `n` places end by their sum / n and (1 - 1/n) of the longest, whatever
        their order (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
        """
        kept_s = [
            problem.finals_s + self._usual_beyond_s + (0.0 if problem.place else self._opening_s(problem))
            for problem in self.begun.values()
        ]
        share = 1 / self._count
        return self.left_s() - sum(kept_s) * share - max(kept_s, default=0.0) * (1 - share)

    def _opening_s(self, problem: NightItem) -> float:
        """Returns its earlier duration for this problem, or else the usual one."""
        return problem.opening_s or self._usual_opening_s

    def _fair_s(self, limit_s: float) -> float:
        problems = max(self._waiting.total() + len(self.begun), 1)
        return min(limit_s, self.left_s(), self._all_s() / problems)

    def _wanted_s(self, limit_s: float, opening_s: float) -> float:
        least_s = max(LEAST_SLICE_S, OPENINGS * opening_s)
        return min(max(self._fair_s(limit_s) / SLICES, least_s), max(MOST_SLICE_S, least_s))

    def _finals_s(self, limit_s: float) -> float:
        budget_s = self._fair_s(limit_s)
        return finals_share_s(None if math.isinf(budget_s) else max(budget_s, 1.0))

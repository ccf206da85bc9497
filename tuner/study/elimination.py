"""Which competing kernels are hopeless: dropped from a study after their first configs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome
from tuner.results.verdict import THREADS

#: A kernel whose first configs all take more than this many times the best config's time is dropped.
HOPELESS = 5.0
#: First configs that a kernel may show, where it declares several.
FIRST = 3


class Elimination:
    """Watches the first configs of each kernel.

    Cores that a config leaves idle do not count against its kernel: its time is taken as if it used all.
    """

    def __init__(self, first_configs: Mapping[str, int], cores: int) -> None:
        """Begins.

        Args:
            first_configs: Kernel -> legal configs that it declares to be tried first.
            cores: Of a CPU; 1 for another device.
        """
        self._wanted = {name: min(max(count, 1), FIRST) for name, count in first_configs.items()}
        self._cores = max(cores, 1)
        self._tried = dict.fromkeys(first_configs, 0)
        self._at_best_s: dict[str, float] = {}

    def take(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Takes in a trial; failures tell nothing, but for the time that was not enough."""
        time_s = measurement.time_s
        if kernel not in self._wanted:
            return
        if measurement.outcome is Outcome.TIMED_OUT:
            time_s = math.inf
        elif measurement.outcome.failed or time_s is None:
            return
        self._tried[kernel] += 1
        at_best_s = time_s * min(int(config.get(THREADS, self._cores)), self._cores) / self._cores
        self._at_best_s[kernel] = min(at_best_s, self._at_best_s.get(kernel, math.inf))

    def dropped(self, best_s: float | None) -> dict[str, str]:
        """Kernels that are hopeless, and why; each is told once.

        Args:
            best_s: Median of the best config so far, in seconds; None before there is one.
        """
        found: dict[str, str] = {}
        for kernel, at_best_s in list(self._at_best_s.items()):
            if best_s is None or self._tried[kernel] < self._wanted[kernel] or at_best_s <= HOPELESS * best_s:
                continue
            del self._at_best_s[kernel], self._wanted[kernel]
            times = f"{at_best_s / best_s:.0f} times" if math.isfinite(at_best_s) else "many times"
            found[kernel] = (
                f"its first configs take {times} the best config's time; to search it all the same, "
                f"ask for it by --kernel {kernel}"
            )
        return found

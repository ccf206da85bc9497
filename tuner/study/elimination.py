"""Drops hopeless kernels from a study after their first configs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config, Space
from tuner.results.measurement import Measurement, Outcome
from tuner.study.progress import Request

#: Kernel and config.
Key = tuple[str, Config]

#: A kernel is dropped if its first configs are all slower than the best config by this factor.
HOPELESS = 20.0
#: Largest number of first configs that count, if a kernel declares several.
FIRST = 3


class Elimination:
    """Watches the first configs of each kernel.

    Idle cores do not count against a kernel: a config's time is scaled as if it used all cores.
    """

    def __init__(self, first_configs: Mapping[str, int], cores: int, threads: Mapping[str, str]) -> None:
        """Begins.

        Args:
            first_configs: Kernel -> the legal ones of its declared first configs.
            cores: Number of a CPU's cores; 1 for another device.
            threads: Kernel -> its parameter that is the number of CPU threads; empty if it declares none.
        """
        self._threads = threads
        self._wanted = {name: min(max(count, 1), FIRST) for name, count in first_configs.items()}
        self._cores = max(cores, 1)
        self._tried = dict.fromkeys(first_configs, 0)
        self._at_best_s: dict[str, float] = {}

    def take(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Records a trial; failures count only if the time limit was exceeded."""
        time_s = measurement.time_s
        if kernel not in self._wanted:
            return
        if measurement.outcome is Outcome.TIMED_OUT:
            time_s = math.inf
        elif measurement.outcome.failed or time_s is None:
            return
        self._tried[kernel] += 1
        at_best_s = (
            time_s * min(int(config.get(self._threads.get(kernel, ""), self._cores)), self._cores) / self._cores
        )
        self._at_best_s[kernel] = min(at_best_s, self._at_best_s.get(kernel, math.inf))

    def dropped(self, best_s: float | None) -> dict[str, str]:
        """Returns the newly hopeless kernels, each with the reason.

        Args:
            best_s: Median of the best config so far, in seconds; None if there is none yet.
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


def elimination_of(
    request: Request, spaces: Mapping[str, Space], device: DeviceInfo, before: Mapping[Key, Measurement]
) -> Elimination | None:
    """Makes the elimination for a study.

    Args:
        request: What the study is asked to do.
        spaces: Kernel -> its legal configs.
        device: Where.
        before: Measurements that the study takes over.

    Returns:
        None if no kernel is to be dropped, because all configs are requested or slow ones may save energy.
    """
    if not request.drop or request.sampler == "bruteforce" or len(request.objectives) > 1:
        return None
    counts = {
        kernel.name: sum(config in spaces[kernel.name] for config in kernel.first_configs())
        for kernel in request.kernels
        if kernel.name in spaces
    }
    threads = {kernel.name: kernel.threads for kernel in request.kernels}
    elimination = Elimination(counts, device.cores if device.kind == "cpu" else 1, threads)
    for (kernel, config), measurement in before.items():
        elimination.take(kernel, config, measurement)
    return elimination

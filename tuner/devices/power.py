"""Measures power during back-to-back runs: keeps a device busy, and reads a CPU's energy counters.

The counters are RAPL's, as Linux shows them under ``/sys/class/powercap`` (kernel documentation, "Power Capping
Framework"): running totals in microjoules, one folder for each package, each with its own range for
wrap-around.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: Seconds of work before power is read: NVML reports the mean of the last second (NVML API reference).
BUSY_S = 1.0
#: Seconds of work queued at a time, so that the device never waits for the host for long.
BATCH_S = 0.02
COUNTERS = Path("/sys/class/powercap")


def keep_busy(run: Callable[[], None], synchronize: Callable[[], None], seconds: float = BUSY_S) -> int:
    """Runs something again and again.

    Args:
        run: Queues or performs one run.
        synchronize: Waits for what was queued.
        seconds: Duration.

    Returns:
        Number of runs that take about `BATCH_S`.
    """
    batch, end_s = 1, time.monotonic() + seconds
    while True:
        begun_s = time.monotonic()
        for _ in range(batch):
            run()
        synchronize()
        now_s = time.monotonic()
        if now_s >= end_s:
            return batch
        if now_s - begun_s < BATCH_S / 2:
            batch *= 2


class EnergyCounters:
    """The packages' energy counters of this machine.

    Attributes:
        trouble: Reason why they cannot be read; empty if they can.
    """

    def __init__(self, folder: Path = COUNTERS) -> None:
        """Looks for the counters.

        Args:
            folder: Folder of the counters.
        """
        # A package is "intel-rapl:0" (AMD's too), a part of it "intel-rapl:0:1".
        self._files = sorted(folder.glob("intel-rapl:[0-9]*/energy_uj"))
        self._files = [each for each in self._files if each.parent.name.count(":") == 1]
        self.trouble = ""
        if not self._files:
            self.trouble = f"Linux shows no energy counters of this CPU (no {folder}/intel-rapl:0)"
            return
        try:
            self.read_j()
        except (OSError, ValueError):
            self.trouble = (
                f"the energy counters of this CPU are for root alone (`chmod a+r {folder}/*/energy_uj` as root "
                "opens them)"
            )

    def read_j(self) -> list[float]:
        """Reads the joules of each package.

        Raises:
            OSError: A counter cannot be read.
        """
        return [int(each.read_text()) * 1e-6 for each in self._files]

    def between_j(self, before: list[float], after: list[float]) -> float:
        """Returns the joules of all packages between two readings; a counter may have wrapped around once."""
        total = 0.0
        for file, first, last in zip(self._files, before, after, strict=True):
            wrapped = last < first
            total += last - first
            if wrapped:
                total += int((file.parent / "max_energy_range_uj").read_text()) * 1e-6
        return total
